// DistributedDataParallel walks the autograd graph in every step to find parameters that take no
// part in the loss.

#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/ranges.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

constexpr SavingShares kSaving{.basis = SavingBasis::kIdle};

Finding detect(const Signals& signals) {
  if (!signals.has_host_ops) return abstain({"host operators"});
  const LazyNames is_search(signals.table, [](std::string_view name) {
    return contains(name, "search_unused_parameters");
  });
  const std::vector<Row> rows = range_rows(outermost_ranges(signals, is_search));
  if (rows.empty()) return absent();
  Draft draft(kSaving);
  std::vector<Interval> intervals;
  for (Row r : rows) intervals.push_back(signals.on_gpu_clock(interval_of(signals.table, r)));
  draft.cost = idle_inside(signals, std::move(intervals));
  draft.evidence = rows;
  draft.count("searches", rows.size());
  if (!signals.has_gpu) {
    draft.missing_signals.emplace_back("GPU events: host time is counted as lost");
    draft.confidence = 0.7;  // the GPU may have had work queued
  }
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule find_unused_parameters{.type = "find_unused_parameters",
                                             .subject = Subject::kCollectives,
                                             .saving = kSaving,
                                             .detect = detect};
}

}  // namespace traceap
