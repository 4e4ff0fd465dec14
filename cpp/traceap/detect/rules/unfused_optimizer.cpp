// The optimiser's step launches small kernels parameter by parameter instead of a few that update
// all parameters (foreach, fused, compiled). Where the run computes on the host, operators are what
// it launches.

#include <algorithm>
#include <iterator>

#include "traceap/detect/queries/host_work.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/operators.hpp"
#include "traceap/detect/queries/pointwise.hpp"
#include "traceap/detect/queries/ranges.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// A fused step takes one launch per some hundred tensors and a foreach step about ten times that;
/// SGD by parameter takes one to three launches per parameter, Adam ten or more. With fewer
/// launches than this in a step's range there is nothing to fuse.
constexpr std::size_t kMinLaunches = 16;
/// Without a range, so many updates in a row are no accident.
constexpr std::size_t kMinOwnUpdates = 50;
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

/// Are so many single updates, of so many launches in all, a loop over parameters?
bool is_unfused(std::size_t single, std::size_t launches) {
  return single >= kMinLaunches &&
         static_cast<double>(single) >= kMinSingleShare * static_cast<double>(launches);
}

/// Between a backward pass and an update of a program's own lies little, such as clipping.
constexpr std::size_t kMostBetween = 20;
/// An update writes into parameters: of its operators at least one in so many works in place.
constexpr std::size_t kInPlaceOneIn = 4;

bool is_in_place(std::string_view name) { return name.ends_with('_'); }

/// Loops over parameters without a range: runs of pointwise operators of one thread, right behind a
/// backward pass, up to the next operator of another kind.
class OwnLoops {
 public:
  explicit OwnLoops(const Signals& signals)
      : signals_(signals),
        backward_(signals.table, is_backward_node),
        pointwise_(signals.table, is_pointwise_operator),
        in_place_(signals.table, is_in_place) {}

  std::vector<std::vector<Row>> find() {
    const std::vector<std::uint8_t> awaited = awaited_tracks(signals_);
    for (const std::vector<Row>& operators : outermost_operators(signals_)) {
      if (awaited[signals_.table.track[operators.front()]] == 0) continue;
      since_backward_ = kMostBetween + 1;
      for (const Row r : operators) add(r);
      end_run();
    }
    return std::move(loops_);
  }

 private:
  void add(Row row) {
    if (pointwise_(row)) {
      if (since_backward_ <= kMostBetween) run_.push_back(row);
      return;
    }
    end_run();
    since_backward_ = backward_(row) ? 0 : since_backward_ + 1;
  }
  void end_run() {
    const auto in_place =
        static_cast<std::size_t>(std::count_if(run_.begin(), run_.end(), in_place_));
    if (run_.size() >= kMinOwnUpdates && kInPlaceOneIn * in_place >= run_.size()) {
      loops_.push_back(run_);
    }
    run_.clear();
  }

  const Signals& signals_;
  LazyNames<> backward_, pointwise_, in_place_;
  std::size_t since_backward_ = 0;
  std::vector<Row> run_;
  std::vector<std::vector<Row>> loops_;
};

Finding judge_own_loops(const Signals& signals) {
  std::vector<std::vector<Row>> loops = OwnLoops(signals).find();
  if (loops.empty()) return without_ranges(signals);
  Draft draft(kSaving);
  for (const std::vector<Row>& loop : loops) {
    draft.cost.push_back(signals.on_gpu_clock(extent_of(signals.table, loop)));
    draft.evidence.insert(draft.evidence.end(), loop.begin(), loop.end());
  }
  draft.confidence = 0.7;  // that it is an update, only its place and its operators tell
  draft.count("operators per step", draft.evidence.size() / loops.size());
  return finish_finding(signals, std::move(draft));
}

Finding detect_on_host(const Signals& signals) {
  const LazyNames is_step(signals.table, is_step_range);
  const LazyNames pointwise(signals.table, is_pointwise_operator);
  const std::vector<Row> ranges = range_rows(outermost_ranges(signals, is_step));
  if (ranges.empty()) return judge_own_loops(signals);
  Draft draft(kSaving);
  std::size_t operators = 0;
  for (const Row range : ranges) {
    const std::vector<Row> called = operators_called_inside(signals, range);
    std::vector<Row> single;
    std::copy_if(called.begin(), called.end(), std::back_inserter(single), pointwise);
    if (!is_unfused(single.size(), called.size())) continue;
    operators += single.size();
    draft.cost.push_back(signals.on_gpu_clock(extent_of(signals.table, single)));
    draft.evidence.push_back(range);
  }
  if (draft.evidence.empty()) return absent();
  draft.count("operators per step", operators / draft.evidence.size());
  return finish_finding(signals, std::move(draft));
}

Finding detect(const Signals& signals) {
  if (signals.on_host) return detect_on_host(signals);
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
    if (!is_unfused(step.single.size(), step.launches)) continue;
    ++steps;
    launches += step.single.size();
    const Interval extent = extent_of(table, step.single);
    for (Row r : step.single) draft.cost.push_back(interval_of(table, r));
    const IntervalSet idle = set_clip(
        idle_with_cause(signals, {IdleCause::kHostWait, IdleCause::kLaunchLatency}), extent);
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
                                        .reads_kernel_names = true,
                                        .saving = kSaving,
                                        .detect = detect};
}

}  // namespace traceap
