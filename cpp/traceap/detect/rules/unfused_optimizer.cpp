// The optimiser's step launches small kernels parameter by parameter instead of a few that update
// all parameters (foreach, fused, compiled).

#include <algorithm>

#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/pointwise.hpp"
#include "traceap/detect/queries/ranges.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// A fused step takes one launch per some hundred tensors and a foreach step about ten times that;
/// SGD by parameter takes one to three launches per parameter, Adam ten or more. With fewer
/// launches than this there is nothing to fuse.
constexpr std::size_t kMinLaunches = 50;
/// Most launches of the step must be single: a foreach step launches a few of them as well.
constexpr double kMinSingleShare = 0.5;
/// Without a simulator: half of the GPU work, as a fused update reads and writes every tensor once
/// where the single operators do it two to ten times; the other half stays.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdleAndWork, .best = 0.5};

bool is_step_range(std::string_view name) {
  return name.substr(0, 15) == "Optimizer.step#" || contains(name, "): _single_tensor_");
}

bool is_fused_operator(std::string_view name) {
  return contains(name, "_foreach_") || contains(name, "_fused_") || contains(name, "triton_") ||
         contains(name, "fused_optimizer");
}

struct StepCost {
  std::vector<Row> single;  ///< pointwise kernels that update one tensor
  std::size_t launches = 0;
};

template <class KernelNames, class OperatorNames>
StepCost judge_step(const Signals& signals, const std::vector<Row>& gpu_rows,
                    const KernelNames& pointwise, const OperatorNames& fused_operator) {
  StepCost step;
  for (Row r : gpu_rows) {
    if (signals.table.kind[r] != EventKind::kKernel) continue;
    if (signals.tree.gpu_class[r] != GpuClass::kCompute) continue;
    ++step.launches;
    const Row op = signals.tree.op[r];
    if (pointwise(r) && (op == kNoRow || !fused_operator(op))) step.single.push_back(r);
  }
  return step;
}

Finding without_ranges(const Signals& signals) {
  if (!signals.has_operators) return abstain({"host operators"});
  if (has_backward(signals)) return abstain({"Optimizer.step ranges"});
  return absent();  // inference
}

Finding detect(const Signals& signals) {
  if (!signals.has_gpu) return abstain({"GPU events"});
  const EventTable& table = signals.table;
  const LazyNames is_step(table, is_step_range);
  const auto outer = outermost_ranges(signals, is_step);
  const std::vector<RangeLaunches> ranges = launches_by_range(signals, outer);
  if (ranges.empty()) return without_ranges(signals);
  if (!signals.links_operators()) return abstain({missing_link(signals)});

  // An optimiser's matrix products (Muon) or reductions are not what fusing is about.
  const LazyNames pointwise(table, is_pointwise_kernel);
  const LazyNames fused_operator(table, is_fused_operator);
  Draft draft(kSaving);
  std::size_t launches = 0, steps = 0;
  for (const RangeLaunches& range : ranges) {
    const StepCost step = judge_step(signals, range.gpu_rows, pointwise, fused_operator);
    if (step.single.size() < kMinLaunches) continue;
    if (static_cast<double>(step.single.size()) <
        kMinSingleShare * static_cast<double>(step.launches)) {
      continue;
    }
    ++steps;
    launches += step.single.size();
    const Interval extent = extent_of(table, step.single);
    for (Row r : step.single) draft.cost.push_back(interval_of(table, r));
    const IntervalSet idle = idle_inside(signals, {extent});
    draft.cost.insert(draft.cost.end(), idle.begin(), idle.end());
    draft.evidence.push_back(range.range);
  }
  if (steps == 0) return absent();
  draft.count("launches per step", launches / steps);
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule unfused_optimizer{.type = "unfused_optimizer",
                                        .subject = Subject::kTraining,
                                        .saving = kSaving,
                                        .detect = detect};
}

}  // namespace traceap
