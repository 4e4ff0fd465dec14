#include <algorithm>

#include "exercises.hpp"
#include "traceap/analysis/idle/host_self.hpp"
#include "traceap/analysis/idle/idle.hpp"
#include "traceap/analysis/idle/step_pieces.hpp"
#include "traceap/analysis/idle/timeline.hpp"

namespace traceap::fuzz {
namespace {

void check_timeline(const Timeline& t) {
  Sum parts, whole;
  parts += t.compute_ns;
  parts += t.exposed_communication_ns;
  parts += t.exposed_memcpy_ns;
  check(parts == t.busy_ns, "the parts of the busy time add up to it");
  whole += t.busy_ns;
  whole += t.idle_ns;
  check(whole == t.span_ns, "busy and idle time add up to the span");
}

void check_timelines(const Rank& rank, const GpuIntervals& gpu, Interval bounds) {
  for (const IntervalSet* set : {&gpu.busy, &gpu.compute, &gpu.communication, &gpu.memcpy}) {
    check_set(*set);
  }
  check_timeline(compute_timeline(gpu));
  check_timeline(compute_timeline(gpu, bounds));
  for (const bool linked_only : {false, true}) {
    for (const auto& [device, timeline] :
         compute_device_timelines(rank.table, rank.tree, linked_only)) {
      check_timeline(timeline);
      check_timeline(
          compute_timeline(build_gpu_intervals(rank.table, rank.tree, {linked_only, device})));
    }
  }
}

void check_idle(const Rank& rank, const IdleBreakdown& idle, std::int64_t idle_ns) {
  Sum total;
  for (const std::int64_t ns : idle.total_ns) total += ns;
  check(total == idle_ns, "causes add up to the idle time");
  for (std::size_t i = 0; i < idle.intervals.size(); ++i) {
    const IdleInterval& piece = idle.intervals[i];
    check(piece.interval.start_ns < piece.interval.end_ns, "idle time is no point");
    check(i == 0 || idle.intervals[i - 1].interval.end_ns <= piece.interval.start_ns, "by time");
    check(static_cast<int>(piece.cause) < kIdleCauseCount, "a cause is one of the causes");
    check_row(rank.table, piece.explained_by);
    check_row(rank.table, piece.next_gpu_row);
  }
}

void check_host(const Rank& rank, const IdleBreakdown& idle, Interval bounds) {
  std::vector<std::int32_t> group_of(rank.size());
  for (Row row = 0; row < rank.size(); ++row) {
    group_of[row] = row % 3 == 0 ? -1 : static_cast<std::int32_t>(rank.table.name[row] % 4);
  }
  const HostIdle host = build_host_idle(rank.table, rank.tree, idle, bounds, group_of, 4);
  for (const HostThread& thread : host.threads) {
    for (std::size_t cause = 0; cause < idle.total_ns.size(); ++cause) {
      Sum both;
      both += thread.busy_idle_ns[cause];
      both += thread.silent_idle_ns[cause];
      check(both == idle.total_ns[cause], "a thread is busy or silent while the GPU is idle");
    }
  }
  check(host.self_ns.size() == 5 && host.idle_self_ns.size() == 5, "an entry for each group");
}

void check_pieces(const Rank& rank) {
  std::vector<Interval> bounds;
  for (const Step& step : rank.tree.steps) bounds.push_back({step.start_ns, step.end_ns});
  if (bounds.empty()) bounds.push_back(rank.tree.profiled);
  const StepPieces pieces = build_step_pieces(rank.table, rank.tree, bounds);
  std::vector<Sum> sums(bounds.size());
  for (std::size_t i = 0; i < pieces.ns.size(); ++i) {
    check(pieces.ns[i] > 0 && pieces.part[i] < kStepPartCount, "a piece of a step");
    check_row(rank.table, pieces.row[i]);
    sums.at(pieces.step[i]) += pieces.ns[i];
  }
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    check(sums[i] == bounds[i].length_ns(), "pieces add up to the step");
  }
}

}  // namespace

void exercise_idle(const Rank& rank, Choices& choices) {
  const GpuIntervals gpu = build_gpu_intervals(rank.table, rank.tree);
  const std::int64_t start = add_saturated(gpu.span.start_ns, choices.number());
  const Interval bounds{
      start, std::max(start, add_saturated(start, choices.number() % 1'000'000 * 1'000))};
  check_timelines(rank, gpu, bounds);
  for (const Interval& part : {gpu.span, rank.tree.profiled, bounds}) {
    const IdleBreakdown idle = explain_idle(rank.table, rank.tree, gpu, part);
    // The gaps of impossible records are idle in a timeline and have no cause.
    const IntervalSet gaps =
        set_difference(set_difference(rank.tree.recording.missing, gpu.not_judged), gpu.busy);
    check_idle(rank, idle, compute_timeline(gpu, part).idle_ns - covered_ns(gaps, part));
    check_host(rank, idle, part);
  }
  check_pieces(rank);
}

}  // namespace traceap::fuzz
