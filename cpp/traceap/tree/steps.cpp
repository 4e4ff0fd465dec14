// The main thread, the profiler's steps and the profiled time.

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>

#include "traceap/base/interrupt.hpp"
#include "traceap/tree/build_parts.hpp"

namespace traceap {

namespace {

/// What speaks for a track being the main one, the strongest first.
struct TrackScore {
  std::uint64_t steps = 0;      ///< ProfilerStep#N
  std::uint64_t marks = 0;      ///< optimizer and input annotations: the training loop's own
  std::uint64_t launches = 0;   ///< GPU events launched outside backward
  std::uint64_t operators = 0;  ///< host rows outside backward that are no Python frames
  std::uint64_t rows = 0;       ///< host rows outside backward

  auto key() const { return std::tie(steps, marks, launches, operators, rows); }
};

/// Annotations are operators in traces before 2022.
bool is_mark_kind(EventKind kind) {
  return kind == EventKind::kUserAnnotation || kind == EventKind::kCpuOp;
}

/// Marks of steps: the profiler's, or JAX's StepTraceAnnotation, whose number is an argument.
class StepMarks {
 public:
  explicit StepMarks(const TreeContext& context)
      : context_(context), number_(context.table, "step_num") {}

  bool is_step(Row row) const {
    return context_.has_trait(row, kTraitProfilerStep) || number_.has(row);
  }
  std::string name(Row row) const {
    std::string name(context_.table.name_of(row));
    const auto number = number_.integer(row);
    return number ? name + '#' + std::to_string(*number) : name;
  }

 private:
  const TreeContext& context_;
  RareKey number_;
};

TrackScore score_track(const TreeContext& context, const EventTree& tree, const StepMarks& marks,
                       TrackId track) {
  TrackScore score;
  for (std::uint32_t i = tree.host_offsets[track]; i < tree.host_offsets[track + 1]; ++i) {
    poll_interrupt();
    const Row row = tree.host_rows[i];
    const NameTraits traits = context.traits_of(row);
    const Phase phase = tree.phase[row];
    score.steps += marks.is_step(row) && is_mark_kind(context.table.kind[row]);
    // Frames of the loader's own threads speak of input too; annotations are the loop's.
    score.marks +=
        is_mark_kind(context.table.kind[row]) && (traits & (kTraitInput | kTraitOptimizer)) != 0;
    if (phase == Phase::kBackward) continue;
    ++score.rows;
    score.operators += context.table.kind[row] != EventKind::kPythonFunction;
    score.launches += tree.launched_by(row).size();
  }
  return score;
}

std::vector<Row> step_rows(const TreeContext& context, const EventTree& tree,
                           const StepMarks& marks, TrackId track) {
  std::vector<Row> rows;
  for (std::uint32_t i = tree.host_offsets[track]; i < tree.host_offsets[track + 1]; ++i) {
    poll_interrupt();
    const Row row = tree.host_rows[i];
    if (!is_mark_kind(context.table.kind[row])) continue;
    if (marks.is_step(row)) rows.push_back(row);
  }
  return rows;
}

void add_step(const TreeContext& context, EventTree& tree, const StepMarks& marks, Row row) {
  const EventTable& table = context.table;
  const std::int64_t start_ns = table.ts_ns[row];
  if (!tree.steps.empty()) {
    Step& last = tree.steps.back();
    if (last.end_ns - context.options.overlap_tolerance_ns > start_ns) {
      tree.diagnostics.add("overlapping_steps",
                           "Step annotations overlap an earlier step; they were left out.");
      return;
    }
    last.end_ns = std::min(last.end_ns, start_ns);
  }
  tree.steps.push_back({marks.name(row), start_ns, table.end_ns(row), row});
}

}  // namespace

void choose_main_track(const TreeContext& context, EventTree& tree) {
  const StepMarks marks(context);
  TrackScore best;
  for (const TrackId track : tree.host_tracks) {
    poll_interrupt();
    const TrackScore score = score_track(context, tree, marks, track);
    const bool first = tree.main_track == kNoTrack;
    const bool better =
        first || score.key() > best.key() ||
        (score.key() == best.key() &&
         is_named_before(context.table.tracks[track], context.table.tracks[tree.main_track]));
    if (!better) continue;
    best = score;
    tree.main_track = track;
  }
}

void collect_steps(const TreeContext& context, EventTree& tree) {
  const StepMarks marks(context);
  std::uint64_t elsewhere = 0;
  for (const TrackId track : tree.host_tracks) {
    poll_interrupt();
    const std::vector<Row> rows = step_rows(context, tree, marks, track);
    if (track != tree.main_track) {
      elsewhere += rows.size();
      continue;
    }
    for (const Row row : rows) add_step(context, tree, marks, row);
  }
  tree.diagnostics.add("steps_on_other_threads",
                       "Step annotations of threads other than the main one were left out.",
                       elsewhere);
}

void measure_profiled(const TreeContext& context, EventTree& tree) {
  if (!tree.steps.empty() && !tree.steps_inferred) {
    tree.profiled = {tree.steps.front().start_ns, tree.steps.back().end_ns};
    return;
  }
  const EventTable& table = context.table;
  Interval all{std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()};
  for (Row row = 0; row < table.size(); ++row) {
    poll_interrupt();
    if (!table.is_complete(row) || table.kind[row] == EventKind::kProfilerTrace) continue;
    all.start_ns = std::min(all.start_ns, table.ts_ns[row]);
    all.end_ns = std::max(all.end_ns, table.end_ns(row));
  }
  if (all.start_ns <= all.end_ns) tree.profiled = all;
}

}  // namespace traceap
