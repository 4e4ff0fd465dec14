// Which part of a training step a row belongs to.
//
// Note [Phases]: first by name: the innermost ancestor (or the row itself) whose name says so. A
// "forward" inside a backward range is recomputation and stays backward; inside Optimizer.step it
// is the closure and counts as forward. An op that a backward op goes back to is forward whatever a
// range around it says (a loss inside "## backward ##"). Then by place: rows of the main thread
// that nothing names are forward if they come before the last backward range of their step (or
// before its end where a step has no backward, as in inference). Rows of the autograd engine's
// threads that nothing names are backward. GPU events take the phase of their launch call, else of
// their op.

#include <algorithm>

#include "traceap/base/interrupt.hpp"
#include "traceap/tree/build_parts.hpp"

namespace traceap {

namespace {

Phase phase_by_name(EventKind kind, NameTraits traits) {
  if (is_api_call(kind)) return Phase::kOther;
  if (traits & kTraitInput) return Phase::kInput;
  if (traits & kTraitBackward) return Phase::kBackward;
  if (traits & kTraitOptimizer) return Phase::kOptimizer;
  return traits & kTraitForward ? Phase::kForward : Phase::kOther;
}

Phase combine(Phase above, Phase own) {
  if (own == Phase::kOther || above == Phase::kInput) return above;
  if (own == Phase::kForward && above == Phase::kBackward) return above;
  return own;
}

/// Until when a row of each step that nothing names counts as forward.
class ForwardLimits {
 public:
  ForwardLimits(const TreeContext& context, const EventTree& tree)
      : steps_(tree.steps), limits_(tree.steps.size(), kNoId) {
    for (const Row row : tree.host_rows) {
      poll_interrupt();
      if (tree.phase[row] != Phase::kBackward) continue;
      const Row parent = tree.parent[row];
      if (parent != kNoRow && tree.phase[parent] == Phase::kBackward) continue;
      const std::size_t step = find_step(context.table.ts_ns[row]);
      if (step != kNone) limits_[step] = std::max(limits_[step], context.table.ts_ns[row]);
    }
    for (std::size_t i = 0; i < limits_.size(); ++i) {
      if (limits_[i] == kNoId) limits_[i] = steps_[i].end_ns;
    }
  }

  /// Does a row belong to forward by its place? A range that goes on behind the limit wraps more
  /// than forward; a call is judged by its start alone.
  bool covers(const EventTable& table, Row row) const {
    const std::size_t step = find_step(table.ts_ns[row]);
    if (step == kNone || table.ts_ns[row] >= limits_[step]) return false;
    return is_api_call(table.kind[row]) || table.end_ns(row) <= limits_[step];
  }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  std::size_t find_step(std::int64_t time_ns) const {
    const auto after = std::partition_point(
        steps_.begin(), steps_.end(), [&](const Step& step) { return step.start_ns <= time_ns; });
    if (after == steps_.begin()) return kNone;
    const auto step = after - 1;
    return time_ns < step->end_ns ? static_cast<std::size_t>(step - steps_.begin()) : kNone;
  }

  const std::vector<Step>& steps_;
  std::vector<std::int64_t> limits_;
};

std::vector<bool> mark_forward_targets(const TreeContext& context, const EventTree& tree) {
  std::vector<bool> is_target(context.table.size());
  for (const SequencedOp& op : context.sequenced) {
    if (tree.forward[op.row] != kNoRow) is_target[tree.forward[op.row]] = true;
  }
  return is_target;
}

class PhasePlacer {
 public:
  PhasePlacer(const TreeContext& context, EventTree& tree)
      : context_(context),
        table_(context.table),
        tree_(tree),
        limits_(context, tree),
        is_target_(mark_forward_targets(context, tree)) {}

  void place_track(TrackId track) {
    const bool is_main = track == tree_.main_track;
    const bool is_engine = !is_main && runs_backward_nodes(track);
    for (std::uint32_t i = tree_.host_offsets[track]; i < tree_.host_offsets[track + 1]; ++i) {
      poll_interrupt();
      const Row row = tree_.host_rows[i];
      if (is_engine) {
        if (tree_.phase[row] == Phase::kOther) tree_.phase[row] = Phase::kBackward;
      } else if (may_be_forward(row, is_main)) {
        tree_.phase[row] = Phase::kForward;
      }
    }
  }

  void place_gpu_row(Row row) {
    const Row host_row = tree_.launch[row] != kNoRow ? tree_.launch[row] : tree_.op[row];
    if (host_row != kNoRow) tree_.phase[row] = tree_.phase[host_row];
  }

 private:
  bool runs_backward_nodes(TrackId track) const {
    for (std::uint32_t i = tree_.host_offsets[track]; i < tree_.host_offsets[track + 1];
         i = tree_.subtree_end[i]) {
      if (context_.has_trait(tree_.host_rows[i], kTraitBackwardNode)) return true;
    }
    return false;
  }

  bool may_be_forward(Row row, bool is_main) const {
    const Phase named = tree_.phase[row];
    if (is_target_[row] && named != Phase::kInput) return true;
    const Row parent = tree_.parent[row];
    const Phase above = parent == kNoRow ? Phase::kOther : tree_.phase[parent];
    // Below a row that became forward here; what the name pass gave it came from further up.
    if (above == Phase::kForward && named != Phase::kForward && !names_itself(row)) return true;
    if (!is_main || named != Phase::kOther) return false;
    const EventKind kind = table_.kind[row];
    if (kind == EventKind::kPythonFunction || context_.has_trait(row, kTraitProfilerStep)) {
      return false;
    }
    return limits_.covers(table_, row);
  }

  bool names_itself(Row row) const {
    return phase_by_name(table_.kind[row], context_.traits_of(row)) != Phase::kOther;
  }

  const TreeContext& context_;
  const EventTable& table_;
  EventTree& tree_;
  ForwardLimits limits_;
  std::vector<bool> is_target_;
};

}  // namespace

void name_phases(TreeContext& context, EventTree& tree) {
  const EventTable& table = context.table;
  tree.phase.assign(table.size(), Phase::kOther);
  context.in_engine.assign(table.size(), false);
  for (const Row row : tree.host_rows) {
    poll_interrupt();
    const Row parent = tree.parent[row];
    const Phase above = parent == kNoRow ? Phase::kOther : tree.phase[parent];
    const bool is_node =
        table.kind[row] == EventKind::kCpuOp && context.has_trait(row, kTraitBackwardNode);
    context.in_engine[row] = is_node || (parent != kNoRow && context.in_engine[parent]);
    tree.phase[row] = combine(above, phase_by_name(table.kind[row], context.traits_of(row)));
  }
}

void place_phases(const TreeContext& context, EventTree& tree) {
  PhasePlacer placer(context, tree);
  for (const TrackId track : tree.host_tracks) placer.place_track(track);
  for (const Row row : tree.gpu_rows) placer.place_gpu_row(row);
}

}  // namespace traceap
