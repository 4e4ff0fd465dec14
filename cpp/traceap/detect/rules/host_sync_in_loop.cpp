// Operators that need a value on the host: .item(), nonzero, boolean masks, small .cpu(). Each
// makes the host wait until the queue is empty; then the GPU waits for the host.

#include <algorithm>

#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/ranges.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/queries/value_reads.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

constexpr SavingShares kSaving{.basis = SavingBasis::kIdle};
/// Once is no loop.
constexpr std::size_t kMinRepeats = 2;

/// What a host that is late anyway leaves before every kernel is not the wait's doing: cpu_bound
/// has it (Note [Usual gap]). Where so little is left that it would not be material, all of the
/// stalls count: a host that is late pays for the calls as well, which idle time does not show.
IntervalSet charged(const Signals& signals, const ReadCost& cost) {
  IntervalSet excess = set_union(without_usual_gaps(cost.stalls, cost.usual_gap_ns), cost.late);
  if (is_material(signals, total_length_ns(excess))) return excess;
  return set_union(cost.stalls, cost.late);
}

Finding detect(const Signals& signals) {
  if (!signals.has_gpu) return abstain({"GPU events"});
  if (signals.api_rows.empty()) return abstain({"runtime calls"});
  const EventTable& table = signals.table;
  const auto& [syncs, unsized] = signals.value_reads;
  const ReadCost read_cost = cost_of_reads(signals, syncs);
  const IntervalSet cost = charged(signals, read_cost);
  if (!is_material(signals, total_length_ns(cost)) && unsized.size() >= kMinRepeats) {
    const IntervalSet more = charged(signals, cost_of_reads(signals, unsized));
    const std::int64_t possible_ns = total_length_ns(set_union(cost, more));
    if (is_material(signals, possible_ns)) return abstain({"sizes of the copies"});
  }
  if (syncs.size() < kMinRepeats) return absent();
  if (read_cost.gap_lost && is_material(signals, total_length_ns(cost))) {
    return abstain({"GPU records of the launches"});
  }

  Draft draft(kSaving);
  std::vector<Row> operators;
  const LazyNames is_aten(table,
                          [](std::string_view name) { return name.substr(0, 6) == "aten::"; });
  const std::vector<Row> outermost = outermost_ranges(
      signals, [&](Row r) { return table.kind[r] == EventKind::kCpuOp && is_aten(r); });
  for (const ValueRead& sync : syncs) {
    const Row op = outermost[sync.call];  // what the program called: aten::to rather than copy_
    draft.evidence.push_back(op != kNoRow ? op : sync.call);
    if (op != kNoRow) operators.push_back(op);
  }
  draft.cost = cost;
  draft.count("syncs", syncs.size());
  add_per_step_fact(signals, draft, "per step", syncs.size());
  if (!operators.empty()) draft.text("operations", most_frequent_names(table, operators, 3));
  if (!signals.has_operators) {
    draft.missing_signals.emplace_back("host operators: which operation reads the value");
    draft.confidence = 0.6;  // the program may need what it reads
  }
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule host_sync_in_loop{
    .type = "host_sync_in_loop", .saving = kSaving, .detect = detect};
}

}  // namespace traceap
