// cudaMemset without Async: the host waits until memory is filled, and the queue runs dry.
//
// Cost: the stalls of the calls that lasted until their memset was done. On memory of the device
// the call may return earlier; then it costs nothing.

#include <algorithm>

#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

constexpr SavingShares kSaving{.basis = SavingBasis::kIdle};
/// Once is no loop.
constexpr std::size_t kMinRepeats = 2;

bool is_synchronous(std::string_view name) { return !contains(name, "Async"); }

/// Did the call return only when what it had started was done?
bool held_host(const Signals& signals, Row call) {
  const auto memsets = signals.tree.launched_by(call);
  const std::int64_t end_ns = signals.on_gpu_clock(interval_of(signals.table, call)).end_ns;
  return !memsets.empty() && std::all_of(memsets.begin(), memsets.end(),
                                         [&](Row r) { return signals.table.end_ns(r) <= end_ns; });
}

Finding detect(const Signals& signals) {
  if (!signals.has_gpu) return abstain({"GPU events"});
  if (signals.api_rows.empty()) return abstain({"runtime calls"});
  const LazyNames synchronous(signals.table, is_synchronous);
  Draft draft(kSaving);
  std::vector<Interval> stalls;
  for (Row r : signals.api_rows) {
    if (signals.api(r) != ApiClass::kMemset || !synchronous(r)) continue;
    if (!in_profile(signals, r) || !held_host(signals, r)) continue;
    stalls.push_back(stall_window(signals, interval_of(signals.table, r)));
    draft.evidence.push_back(r);
  }
  if (draft.evidence.size() < kMinRepeats) return absent();
  draft.cost =
      with_lost_lead(signals, unexplained_idle_inside(signals, std::move(stalls)), draft.evidence);
  draft.count("calls", draft.evidence.size());
  add_per_step_fact(signals, draft, "per step", draft.evidence.size());
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule synchronous_memset{
    .type = "synchronous_memset", .claim = Claim::kSpecific, .saving = kSaving, .detect = detect};
}

}  // namespace traceap
