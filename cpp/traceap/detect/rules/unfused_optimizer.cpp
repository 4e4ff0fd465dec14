// The optimiser's step launches small kernels parameter by parameter instead of a few that update
// all parameters (foreach, fused, compiled). Where the run computes on the host, operators are what
// it launches.

#include <algorithm>
#include <iterator>
#include <span>

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
/// Note [Turns]: fewer launches are a loop over parameters where they show its turns: the same
/// operators in the same order for each parameter, of which a small model has some. What a foreach
/// or fused step leaves over, and the one parameter that an update inside of the backward pass
/// works on, make no such turns.
constexpr std::size_t kLeastParameters = 4;
constexpr std::size_t kFewLaunches = 8;
/// Most launches of the step must be single: a foreach step launches a few of them as well.
constexpr double kMinSingleShare = 0.5;
/// Without a simulator: half of the GPU work, as a fused update reads and writes every tensor once
/// where the single operators do it two to ten times; the other half stays.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdleAndWork, .best = 0.5};

bool is_step_range(std::string_view name) {
  return name.substr(0, 15) == "Optimizer.step#" || contains(name, "): _single_tensor_");
}

bool is_fused_kernel(std::string_view name) {
  return contains(name, "multi_tensor_apply") || contains(name, "triton_");
}

bool is_fused_operator(std::string_view name) {
  return contains(name, "_foreach_") || contains(name, "_fused_") || contains(name, "triton_") ||
         contains(name, "fused_optimizer");
}

/// How often the longest beginning of `names` that repeats itself does so, where that is all of
/// them: 6 for "mul add mul add ...", twelve long. Short lists only: O(length squared).
std::size_t turns_of(std::span<const StringId> names) {
  for (std::size_t period = 1; period * kLeastParameters <= names.size(); ++period) {
    if (names.size() % period != 0) continue;
    const auto later = names.subspan(period);
    if (std::equal(later.begin(), later.end(), names.begin())) return names.size() / period;
  }
  return 0;
}

struct StepCost {
  std::vector<Row> single;  ///< pointwise kernels that update one tensor
  std::size_t launches = 0;
  bool fused = false;  ///< some update several at once
};

/// What GPU work updates parameters, and how many at once.
class Updates {
 public:
  explicit Updates(const Signals& signals)
      : signals_(signals),
        pointwise_(signals.table, is_pointwise_kernel),
        fused_operator_(signals.table, is_fused_operator),
        fused_kernel_(signals.table, is_fused_kernel) {}

  StepCost judge(const std::vector<Row>& gpu_rows) const {
    StepCost step;
    for (Row r : gpu_rows) {
      if (signals_.table.kind[r] != EventKind::kKernel) continue;
      if (signals_.tree.gpu_class[r] != GpuClass::kCompute) continue;
      ++step.launches;
      const Row op = signals_.tree.op[r];
      const bool fused = op != kNoRow && fused_operator_(op);
      step.fused = step.fused || fused || fused_kernel_(r);
      if (pointwise_(r) && !fused) step.single.push_back(r);
    }
    return step;
  }

  /// See Note [Turns].
  bool shows_turns(const StepCost& step) const {
    if (step.fused || step.launches < kFewLaunches) return false;
    if (step.launches >= kMinLaunches || step.single.size() < step.launches) return false;
    std::vector<StringId> names;
    for (const Row r : step.single) {
      const Row op = signals_.tree.op[r];
      names.push_back(signals_.table.name[op == kNoRow ? r : op]);
    }
    return turns_of(names) >= kLeastParameters;
  }

 private:
  const Signals& signals_;
  LazyNames<> pointwise_, fused_operator_, fused_kernel_;
};

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
    const bool updates = run_.size() >= kMinOwnUpdates || shows_turns();
    if (updates && kInPlaceOneIn * in_place >= run_.size()) loops_.push_back(run_);
    run_.clear();
  }
  /// See Note [Turns].
  bool shows_turns() const {
    if (run_.size() < kMinLaunches || run_.size() >= kMinOwnUpdates) return false;
    std::vector<StringId> names;
    for (const Row r : run_) names.push_back(signals_.table.name[r]);
    return turns_of(names) >= kLeastParameters;
  }

  const Signals& signals_;
  LazyNames<> backward_, pointwise_, in_place_;
  std::size_t since_backward_ = 0;
  std::vector<Row> run_;
  std::vector<std::vector<Row>> loops_;
};

/// The kernels of one loop, and the time between them in which the host is late.
void add_gpu_cost(const Signals& signals, const std::vector<Row>& kernels, Draft& draft) {
  for (Row r : kernels) draft.cost.push_back(interval_of(signals.table, r));
  const IntervalSet idle =
      set_clip(idle_with_cause(signals, {IdleCause::kHostWait, IdleCause::kLaunchLatency}),
               extent_of(signals.table, kernels));
  draft.cost.insert(draft.cost.end(), idle.begin(), idle.end());
}

Finding judge_own_loops(const Signals& signals) {
  if (!signals.on_host && !signals.links_operators()) return without_ranges(signals);
  std::vector<std::vector<Row>> loops = OwnLoops(signals).find();
  if (loops.empty()) return without_ranges(signals);
  Draft draft(kSaving);
  for (const std::vector<Row>& loop : loops) {
    draft.evidence.insert(draft.evidence.end(), loop.begin(), loop.end());
    if (signals.on_host) {
      draft.cost.push_back(signals.on_gpu_clock(extent_of(signals.table, loop)));
      continue;
    }
    std::vector<Row> kernels;
    for (const Row r : loop) {
      const std::vector<Row> launched = gpu_rows_inside(signals, r);
      kernels.insert(kernels.end(), launched.begin(), launched.end());
    }
    add_gpu_cost(signals, kernels, draft);
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
  if (ranges.empty()) return judge_own_loops(signals);
  if (!signals.links_operators()) return abstain({missing_link(signals)});

  // An optimiser's matrix products (Muon) or reductions are not what fusing is about.
  const Updates updates(signals);
  const LazyNames backward(table, is_backward_node);
  const std::vector<Row> inside_backward = outermost_ranges(signals, backward);
  Draft draft(kSaving);
  std::size_t launches = 0, steps = 0;
  for (const RangeLaunches& range : ranges) {
    const StepCost step = updates.judge(range.gpu_rows);
    const bool alone = inside_backward[range.range] == kNoRow;
    if (!is_unfused(step.single.size(), step.launches) && !(alone && updates.shows_turns(step)))
      continue;
    ++steps;
    launches += step.single.size();
    add_gpu_cost(signals, step.single, draft);
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
