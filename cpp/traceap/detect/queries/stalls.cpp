#include "traceap/detect/queries/stalls.hpp"

#include <algorithm>
#include <utility>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/sums.hpp"

namespace traceap {

Interval stall_window(const Signals& signals, Interval host_call) {
  const Interval call = signals.on_gpu_clock(host_call);
  const Row next = first_row_from(signals.table, signals.tree.gpu_rows, call.end_ns);
  if (next == kNoRow || covered_ns(signals.gpu.busy, call) == 0) return call;
  const std::int64_t refilled_ns = signals.table.ts_ns[next];
  const bool refills = refilled_ns <= add_saturated(call.end_ns, kRefillReachNs);
  return {call.start_ns, refills ? refilled_ns : call.end_ns};
}

IntervalSet idle_inside(const Signals& signals, std::vector<Interval> intervals) {
  return set_intersection(make_union(std::move(intervals)), signals.gpu_idle);
}

IntervalSet unexplained_idle_inside(const Signals& signals, std::vector<Interval> intervals) {
  const IntervalSet elsewhere =
      idle_with_cause(signals, {IdleCause::kDataLoading, IdleCause::kCompilation,
                                IdleCause::kProfiler, IdleCause::kUnknown});
  IntervalSet idle = set_difference(idle_inside(signals, std::move(intervals)), elsewhere);
  const IntervalSet& busy = signals.gpu.busy;
  if (busy.empty()) return idle;
  return set_clip(idle, {busy.front().start_ns, signals.profiled.end_ns});
}

std::int64_t usual_gap_ns(const Signals& signals, const IntervalSet& stalls) {
  constexpr std::size_t kLeastEvents = 20;  // what a few do is not usual
  const std::size_t events = signals.tree.gpu_rows.size();
  if (events < kLeastEvents + stalls.size()) return 0;
  std::int64_t total_ns = 0;
  for (const IdleInterval& idle : signals.idle.intervals) {
    if (idle.cause != IdleCause::kHostWait || covered_ns(stalls, idle.interval) > 0) continue;
    add_to(total_ns, std::min(idle.interval.length_ns(), kLaunchLatencyBoundNs));
  }
  constexpr std::int64_t kLeastGapNs = 5'000;  // less is the device's own latency
  const std::int64_t usual_ns = total_ns / static_cast<std::int64_t>(events - stalls.size());
  return usual_ns < kLeastGapNs ? 0 : usual_ns;
}

namespace {

IntervalSet split_gaps(const IntervalSet& stalls, std::int64_t usual_ns, bool usual) {
  IntervalSet parts;
  for (const Interval& stall : stalls) {
    const std::int64_t border_ns = std::max(stall.start_ns, stall.end_ns - usual_ns);
    const Interval part =
        usual ? Interval{border_ns, stall.end_ns} : Interval{stall.start_ns, border_ns};
    if (part.length_ns() > 0) parts.push_back(part);
  }
  return parts;
}

}  // namespace

IntervalSet without_usual_gaps(const Signals& signals, const IntervalSet& stalls) {
  return split_gaps(stalls, usual_gap_ns(signals, stalls), false);
}

IntervalSet usual_gaps_of(const Signals& signals, const IntervalSet& stalls) {
  return split_gaps(stalls, usual_gap_ns(signals, stalls), true);
}

IntervalSet idle_with_cause(const Signals& signals, std::initializer_list<IdleCause> causes) {
  std::vector<Interval> found;
  for (const IdleInterval& idle : signals.idle.intervals) {
    if (std::find(causes.begin(), causes.end(), idle.cause) != causes.end()) {
      found.push_back(idle.interval);
    }
  }
  return make_union(std::move(found));
}

IntervalSet idle_of_fetches(const Signals& signals, std::vector<Interval> fetches) {
  const bool has_causes = signals.has_gpu && !signals.on_host;
  const IntervalSet idle =
      has_causes ? idle_with_cause(signals, {IdleCause::kDataLoading}) : signals.gpu_idle;
  return set_intersection(make_union(std::move(fetches)), idle);
}

WorkRows::WorkRows(const Signals& signals)
    : signals_(signals),
      is_operator_(signals.table, is_operator_name),
      has_annotations_(std::any_of(
          signals.tree.host_rows.begin(), signals.tree.host_rows.end(),
          [&](Row r) { return signals.table.kind[r] == EventKind::kUserAnnotation; })) {}

bool WorkRows::operator()(Row host_row) const {
  const EventKind kind = signals_.table.kind[host_row];
  if (is_api_call(kind)) return true;
  if (kind != EventKind::kCpuOp) return false;
  return has_annotations_ || is_operator_(host_row) ||
         subtree_rows(signals_.tree, host_row).empty();
}

IntervalSet silent_idle(const Signals& signals, std::int64_t min_length_ns) {
  const EventTable& table = signals.table;
  const WorkRows works(signals);
  IntervalSet work;  // rows come by start, so the union grows at its end
  for (Row r = 0; r < table.size(); ++r) {
    poll_interrupt();
    if (signals.tree.host_position[r] == kNoRow || !works(r)) continue;
    const Interval next = signals.on_gpu_clock(interval_of(table, r));
    if (next.end_ns <= next.start_ns) continue;
    if (!work.empty() && next.start_ns <= work.back().end_ns) {
      work.back().end_ns = std::max(work.back().end_ns, next.end_ns);
    } else {
      work.push_back(next);
    }
  }
  const IntervalSet silence = set_complement(work, signals.profiled);
  IntervalSet silent = set_intersection(signals.gpu_idle, silence);
  std::erase_if(silent, [&](const Interval& i) { return i.length_ns() < min_length_ns; });
  return silent;
}

}  // namespace traceap
