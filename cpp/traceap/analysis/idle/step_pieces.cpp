#include "traceap/analysis/idle/step_pieces.hpp"

#include <algorithm>
#include <array>

#include "traceap/analysis/idle/idle.hpp"
#include "traceap/analysis/idle/timeline.hpp"
#include "traceap/base/interrupt.hpp"

namespace traceap {
namespace {

static_assert(kStepPartCount == kPartIdle + kIdleCauseCount);

/// Takes stretches of time in order of their start and puts what lies in a step into columns.
class PieceWriter {
 public:
  PieceWriter(std::span<const Interval> bounds, StepPieces& pieces)
      : bounds_(bounds), pieces_(pieces) {}

  /// Stretches of another part begin anew.
  void restart() {
    first_ = 0;
    open_ = false;
  }

  void add(Interval stretch, StepPart part, Row row) {
    while (first_ < bounds_.size() && bounds_[first_].end_ns <= stretch.start_ns) ++first_;
    for (std::size_t step = first_; step < bounds_.size(); ++step) {
      const std::int64_t start = std::max(stretch.start_ns, bounds_[step].start_ns);
      const std::int64_t length = std::min(stretch.end_ns, bounds_[step].end_ns) - start;
      if (bounds_[step].start_ns >= stretch.end_ns) break;
      if (length > 0) put(static_cast<std::uint32_t>(step), part, row, length);
    }
  }

 private:
  void put(std::uint32_t step, StepPart part, Row row, std::int64_t ns) {
    if (open_ && pieces_.step.back() == step && pieces_.part.back() == part &&
        pieces_.row.back() == row) {
      pieces_.ns.back() += ns;
      ++pieces_.count.back();
      return;
    }
    open_ = true;
    pieces_.step.push_back(step);
    pieces_.part.push_back(part);
    pieces_.row.push_back(row);
    pieces_.ns.push_back(ns);
    pieces_.count.push_back(1);
  }

  std::span<const Interval> bounds_;
  StepPieces& pieces_;
  std::size_t first_ = 0;
  bool open_ = false;
};

/// The instants of a class that no earlier event of it has and that `above` leaves.
void add_class(const EventTable& table, const EventTree& tree, GpuClass wanted, StepPart part,
               const IntervalSet& above, PieceWriter& writer) {
  writer.restart();
  std::int64_t covered = kNoId;
  std::size_t hidden = 0;  // first member of `above` that ends behind the current start
  for (const Row row : tree.gpu_rows) {
    poll_interrupt();
    if (tree.gpu_class[row] != wanted) continue;
    std::int64_t start = std::max(table.ts_ns[row], covered);
    const std::int64_t end = table.end_ns(row);
    if (end <= start) continue;
    covered = end;
    while (hidden < above.size() && above[hidden].end_ns <= start) ++hidden;
    for (std::size_t i = hidden; start < end; ++i) {
      const bool free = i == above.size() || above[i].start_ns >= end;
      if (free || above[i].start_ns > start) {
        writer.add({start, free ? end : above[i].start_ns}, part, row);
      }
      if (free) break;
      start = above[i].end_ns;
    }
  }
}

void add_idle(const EventTable& table, const EventTree& tree, const GpuIntervals& gpu,
              std::span<const Interval> bounds, PieceWriter& writer) {
  writer.restart();
  const Interval hull{bounds.front().start_ns, bounds.back().end_ns};
  for (const IdleInterval& idle : explain_idle(table, tree, gpu, hull).intervals) {
    const auto part = static_cast<StepPart>(kPartIdle + static_cast<int>(idle.cause));
    writer.add(idle.interval, part, idle.explained_by);
  }
}

/// What neither the records nor the causes of idle time tell.
void add_missing(const IntervalSet& busy, const IntervalSet& not_judged, PieceWriter& writer) {
  writer.restart();
  const auto part = static_cast<StepPart>(kPartIdle + static_cast<int>(IdleCause::kUnknown));
  for (const Interval& gap : set_difference(not_judged, busy)) writer.add(gap, part, kNoRow);
}

/// Each instant of the main thread to the innermost row around it.
void add_host(const EventTable& table, const EventTree& tree, Interval hull, PieceWriter& writer) {
  writer.restart();
  struct Open {
    Row row;
    std::int64_t end_ns;
  };
  std::vector<Open> stack;
  std::int64_t now = hull.start_ns;
  const auto run_to = [&](std::int64_t time_ns) {
    if (time_ns <= now) return;
    writer.add({now, time_ns}, kPartHost, stack.empty() ? kNoRow : stack.back().row);
    now = time_ns;
  };
  const auto close_until = [&](std::int64_t time_ns) {
    while (!stack.empty() && stack.back().end_ns <= time_ns) {
      run_to(stack.back().end_ns);
      stack.pop_back();
    }
  };
  if (tree.main_track != kNoTrack) {
    const std::uint32_t end = tree.host_offsets[tree.main_track + 1];
    for (std::uint32_t i = tree.host_offsets[tree.main_track]; i < end; ++i) {
      poll_interrupt();
      const Row row = tree.host_rows[i];
      close_until(table.ts_ns[row]);
      run_to(table.ts_ns[row]);
      const std::int64_t limit = stack.empty() ? hull.end_ns : stack.back().end_ns;
      stack.push_back({row, std::min(table.end_ns(row), limit)});
    }
  }
  close_until(hull.end_ns);
  run_to(hull.end_ns);
}

}  // namespace

std::string_view step_part_name(StepPart part) {
  constexpr std::array<std::string_view, kPartIdle> kNames{"compute", "exposed_communication",
                                                           "exposed_memcpy", "host"};
  if (part < kPartIdle) return kNames[part];
  return idle_cause_name(static_cast<IdleCause>(part - kPartIdle));
}

StepPieces build_step_pieces(const EventTable& table, const EventTree& tree,
                             std::span<const Interval> bounds) {
  StepPieces pieces;
  if (bounds.empty()) return pieces;
  PieceWriter writer(bounds, pieces);
  if (tree.gpu_rows.empty()) {
    add_host(table, tree, {bounds.front().start_ns, bounds.back().end_ns}, writer);
    return pieces;
  }
  const GpuIntervals gpu = build_gpu_intervals(table, tree, {.keep_not_judged = true});
  add_class(table, tree, GpuClass::kCompute, kPartCompute, {}, writer);
  add_class(table, tree, GpuClass::kCommunication, kPartCommunication, gpu.compute, writer);
  add_class(table, tree, GpuClass::kMemcpy, kPartMemcpy, set_union(gpu.compute, gpu.communication),
            writer);
  add_idle(table, tree, build_gpu_intervals(table, tree), bounds, writer);
  add_missing(gpu.busy, set_union(tree.recording.not_judged, tree.recording.missing), writer);
  return pieces;
}

}  // namespace traceap
