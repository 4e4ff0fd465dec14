// Tokens travel to their experts and back while nothing computes, although the batch could be split
// in two halves that take turns: one computes while the other is exchanged.
//
// Cost: dispatch and combine without compute beside them, less what they wait (expert_imbalance).

#include <algorithm>
#include <optional>
#include <vector>

#include "traceap/detect/queries/exchanges.hpp"
#include "traceap/detect/rules.hpp"
#include "traceap/tree/iteration_name.hpp"

namespace traceap {
namespace {

/// Half a batch takes more than half of the time of a whole: below this share of the profiled time
/// nothing is gained.
constexpr double kLeastShare = 0.1;
/// Where this much of the exchange runs under compute, batches take turns already.
constexpr double kOverlappedShare = 0.5;
/// Two halves read the weights twice, and kernels slow down beside an exchange.
constexpr SavingShares kSaving{
    .basis = SavingBasis::kIdleOrExposed, .low = 0.1, .best = 0.5, .high = 1.0};

/// Requests in the largest iteration, as far as these are marked.
std::optional<std::int64_t> most_requests(const Signals& signals) {
  std::optional<std::int64_t> most;
  for (const Step& step : signals.tree.steps) {
    const auto mark = read_iteration_name(step.name);
    if (mark && mark->requests) most = std::max(most.value_or(0), *mark->requests);
  }
  return most;
}

IntervalSet transfers_of(const Signals& signals, const std::vector<Exchange>& exchanges) {
  std::vector<Interval> transfers;
  for (const Exchange& exchange : exchanges) {
    Interval own = interval_of(signals.table, exchange.row);
    own.start_ns += exchange.wait_ns.value_or(0);
    transfers.push_back(own);
  }
  return set_clip(make_union(std::move(transfers)), signals.profiled);
}

Finding detect(const Signals& signals) {
  if (signals.tree.workload.role == Role::kTraining) return absent();
  const std::vector<Exchange> exchanges = find_exchanges(signals);
  if (exchanges.empty()) return absent();
  if (most_requests(signals).value_or(2) < 2) return absent();
  const IntervalSet transfers = transfers_of(signals, exchanges);
  const IntervalSet exposed = set_difference(transfers, signals.gpu.compute);
  const auto all_ns = static_cast<double>(total_length_ns(transfers));
  const auto exposed_ns = static_cast<double>(total_length_ns(exposed));
  if (exposed_ns <= (1.0 - kOverlappedShare) * all_ns) return absent();
  if (exposed_ns < kLeastShare * static_cast<double>(signals.profiled_ns())) return absent();
  Draft draft(kSaving);
  draft.cost = exposed;
  for (const Exchange& exchange : exchanges) {
    draft.evidence.push_back(exchange.row);
    draft.evidence_weights.push_back(signals.table.dur_ns[exchange.row] -
                                     exchange.wait_ns.value_or(0));
  }
  // Compute of the other half is all that can cover it.
  draft.saving_limit_ns = total_length_ns(set_clip(signals.gpu.compute, signals.profiled));
  draft.confidence = 0.8;  // that two halves are worth it depends on the batch
  draft.count("exchanges", exchanges.size());
  draft.share("under compute", 1.0 - exposed_ns / all_ns);
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule exchange_exposed{.type = "exchange_exposed",
                                       .claim = Claim::kSpecific,
                                       .subject = Subject::kCollectives,
                                       .saving = kSaving,
                                       .detect = detect};
}

}  // namespace traceap
