// DistributedDataParallel walks the autograd graph in every step to find parameters that take no
// part in the loss.

#include "traceap/detect/queries/support.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

constexpr std::string_view kType = "find_unused_parameters";

}  // namespace

Finding detect_find_unused_parameters(const Signals& signals) {
  if (!signals.has_host_ops) return abstain(kType, {"host operators"});
  const LazyNames is_search(signals.table, [](std::string_view name) {
    return contains(name, "search_unused_parameters");
  });
  const std::vector<Row> rows = range_rows(outermost_ranges(signals, is_search));
  if (rows.empty()) return absent(kType);
  Draft draft(kType);
  std::vector<Interval> intervals;
  for (Row r : rows) intervals.push_back(signals.on_gpu_clock(interval_of(signals.table, r)));
  draft.cost = idle_inside(signals, std::move(intervals));
  draft.evidence = rows;
  draft.saving.basis = SavingBasis::kIdle;
  draft.fact("searches", static_cast<std::int64_t>(rows.size()));
  if (!signals.has_gpu) {
    draft.missing_signals.emplace_back("GPU events: host time is counted as lost");
    draft.confidence = 0.7;
  }
  return finish_finding(signals, std::move(draft));
}

}  // namespace traceap
