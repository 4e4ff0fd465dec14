// zero_grad fills gradients with zeros; the default since PyTorch 2.0 drops them.

#include <algorithm>

#include "traceap/detect/queries/host_work.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/ranges.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

constexpr SavingShares kSaving{.basis = SavingBasis::kCost};
bool is_zero_grad_range(std::string_view name) {
  return name.substr(0, 20) == "Optimizer.zero_grad#" ||
         (contains(name, ".py(") && contains(name, "): zero_grad"));
}

bool is_zeroing_operator(std::string_view name) {
  return name == "aten::zero_" || name == "aten::fill_" || contains(name, "_foreach_zero_");
}

/// Nothing shows how gradients are zeroed.
Finding without_ranges(const Signals& signals) {
  if (!has_backward(signals)) return absent();
  // Both ranges came with the same PyTorch: a step without zero_grad sets gradients otherwise.
  const LazyNames is_step(
      signals.table, [](std::string_view name) { return name.substr(0, 15) == "Optimizer.step#"; });
  const bool has_steps = std::any_of(signals.tree.host_rows.begin(), signals.tree.host_rows.end(),
                                     [&](Row r) { return is_step(r); });
  // A loop over gradients of its own leaves no range.
  return has_steps ? absent(0.6) : abstain({"Optimizer.zero_grad ranges"});
}

/// Where the run computes on the host the operators that fill are the work.
Finding detect_on_host(const Signals& signals, const std::vector<Row>& ranges) {
  const LazyNames zeroing(signals.table, is_zeroing_operator);
  Draft draft(kSaving);
  std::size_t fills = 0;
  for (const Row range : ranges) {
    std::vector<Row> filling;
    for (const Row r : operators_called_inside(signals, range)) {
      if (zeroing(r)) filling.push_back(r);
    }
    if (filling.empty()) continue;
    fills += filling.size();
    draft.cost.push_back(signals.on_gpu_clock(extent_of(signals.table, filling)));
    draft.evidence.push_back(range);
  }
  if (draft.evidence.empty()) return absent();
  draft.count("operators per step", fills / draft.evidence.size());
  return finish_finding(signals, std::move(draft));
}

Finding detect(const Signals& signals) {
  if (!signals.has_gpu && !signals.on_host) return abstain({"GPU events"});
  if (!signals.has_operators) return abstain({"host operators"});
  const EventTable& table = signals.table;
  const LazyNames is_range(table, is_zero_grad_range);
  const std::vector<Row> outer = outermost_ranges(signals, is_range);
  const std::vector<Row> called = range_rows(outer);
  if (called.empty()) return without_ranges(signals);
  if (signals.on_host) return detect_on_host(signals, called);
  if (!signals.links_operators()) return abstain({missing_link(signals)});
  const LazyNames zeroing(table, is_zeroing_operator);
  Draft draft(kSaving);
  std::size_t launches = 0;
  for (const RangeLaunches& range : launches_by_range(signals, outer)) {
    std::vector<Row> fills;
    for (Row r : range.gpu_rows) {
      const Row op = signals.tree.op[r];
      if (table.kind[r] == EventKind::kGpuMemset || (op != kNoRow && zeroing(op))) {
        fills.push_back(r);
      }
    }
    if (fills.empty()) continue;
    launches += fills.size();
    for (Row r : fills) draft.cost.push_back(interval_of(table, r));
    const IntervalSet idle = idle_inside(signals, {extent_of(table, fills)});
    draft.cost.insert(draft.cost.end(), idle.begin(), idle.end());
    draft.evidence.push_back(range.range);
  }
  if (draft.evidence.empty()) return absent();
  draft.count("launches per step", launches / draft.evidence.size());
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule zero_grad_not_none{.type = "zero_grad_not_none",
                                         .subject = Subject::kTraining,
                                         .saving = kSaving,
                                         .detect = detect};
}

}  // namespace traceap
