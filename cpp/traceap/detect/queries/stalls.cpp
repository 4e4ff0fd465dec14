#include "traceap/detect/queries/stalls.hpp"

#include <algorithm>
#include <utility>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/statistics.hpp"
#include "traceap/base/sums.hpp"
#include "traceap/detect/queries/process_state.hpp"
#include "traceap/detect/queries/ranges.hpp"

namespace traceap {

bool lacks_records(const Signals& signals) {
  const auto& notes = signals.tree.recording.notes;
  return std::any_of(notes.begin(), notes.end(), [](const RecordingNote& note) {
    return note.fault == RecordingFault::kLaunchesWithoutGpuWork ||
           note.fault == RecordingFault::kGpuWorkWithoutLaunch;
  });
}

Interval stall_window(const Signals& signals, Interval host_call) {
  const Interval call = signals.on_gpu_clock(host_call);
  const Row next = first_row_from(signals.table, signals.tree.gpu_rows, call.end_ns);
  if (next == kNoRow || covered_ns(signals.gpu.busy, call) == 0) return call;
  const std::int64_t refilled_ns = signals.table.ts_ns[next];
  const bool refills = refilled_ns <= add_saturated(call.end_ns, kRefillReachNs);
  return {call.start_ns, refills ? refilled_ns : call.end_ns};
}

IntervalSet idle_inside(const Signals& signals, std::vector<Interval> intervals) {
  return set_intersection(make_union(std::move(intervals)), signals.host_idle);
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

namespace {

/// A moment at which the lead that a finding's calls have cost the host changes.
struct LeadChange {
  enum Kind : std::uint8_t { kHeld, kCharged, kIdle, kSynchronised };
  std::int64_t at_ns;
  Kind kind;
  Interval interval;
};

/// Waits for a GPU at work, without those of `holds`. A copy call that waits counts as one.
std::vector<Interval> other_waits(const Signals& signals, const IntervalSet& holds) {
  std::vector<Interval> waits;
  for (Row r : signals.api_rows) {
    if (is_synchronisation(signals.api(r))) waits.push_back(interval_of(signals.table, r));
  }
  for (const Copy& copy : signals.copies) {
    if (copy.launch == kNoRow || !is_host_device(copy.kind.direction)) continue;
    const bool waited = copy.sync != kNoRow || copy.kind.memory == HostMemory::kPageable ||
                        signals.api(copy.launch) == ApiClass::kCopy;
    if (waited) waits.push_back(copy.host);
  }
  const CoverIndex held(holds), busy(signals.gpu.busy);
  std::vector<Interval> others;
  for (const Interval& wait : waits) {
    const Interval call = signals.on_gpu_clock(wait);
    if (held.covered_ns(call) == 0 && busy.covered_ns(call) > 0) others.push_back(call);
  }
  return others;
}

/// Does the GPU wait for a host that would have been done earlier, had it begun earlier? What the
/// allocator frees waits for the GPU itself, so that no lead survives it.
bool is_host_at_work(IdleCause cause) {
  return cause == IdleCause::kHostWait || cause == IdleCause::kDataLoading ||
         cause == IdleCause::kCompilation;
}

/// What the host does right behind a call for more than kRefillReachNs, while the GPU has nothing:
/// it works on what it got.
IntervalSet own_work_behind(const Signals& signals, const IntervalSet& holds) {
  std::vector<Interval> pauses;
  for (const Interval& hold : holds) {
    const Row next = first_row_from(signals.table, signals.tree.gpu_rows, hold.end_ns);
    const Interval moment{hold.end_ns, add_saturated(hold.end_ns, 1)};
    if (next == kNoRow || covered_ns(signals.gpu.busy, moment) > 0) continue;
    const Interval pause{hold.end_ns, signals.table.ts_ns[next]};
    if (pause.length_ns() > kRefillReachNs) pauses.push_back(pause);
  }
  return make_union(std::move(pauses));
}

}  // namespace

IntervalSet with_lost_lead(const Signals& signals, IntervalSet cost, std::vector<Interval> holds) {
  for (Interval& hold : holds) hold = signals.on_gpu_clock(hold);
  if (signals.gpu.busy.empty()) return cost;
  // What the GPU did before its first event was not recorded.
  const Interval recorded{signals.gpu.busy.front().start_ns, signals.profiled.end_ns};
  const IntervalSet held = set_clip(make_union(std::move(holds)), recorded);
  std::vector<LeadChange> changes;
  for (const Interval& hold : held) changes.push_back({hold.start_ns, LeadChange::kHeld, hold});
  for (const Interval& part : cost) changes.push_back({part.start_ns, LeadChange::kCharged, part});
  for (const Interval& wait : other_waits(signals, held)) {
    changes.push_back({wait.end_ns, LeadChange::kSynchronised, wait});
  }
  // How far ahead the host is behind work without a record, nobody knows.
  for (const Interval& lost : signals.tree.recording.missing) {
    changes.push_back({lost.start_ns, LeadChange::kSynchronised, lost});
  }
  std::vector<Interval> waiting;
  for (const IdleInterval& idle : signals.idle.intervals) {
    if (!is_host_at_work(idle.cause) || idle.next_gpu_row == kNoRow) continue;
    if (signals.tree.launch[idle.next_gpu_row] == kNoRow) continue;
    if (idle.interval.start_ns >= recorded.start_ns) waiting.push_back(idle.interval);
  }
  for (const Interval& idle : set_difference(make_union(std::move(waiting)), cost)) {
    changes.push_back({idle.start_ns, LeadChange::kIdle, idle});
  }
  std::sort(changes.begin(), changes.end(), [](const LeadChange& a, const LeadChange& b) {
    return a.at_ns != b.at_ns ? a.at_ns < b.at_ns : a.kind < b.kind;
  });
  const IntervalSet pauses = own_work_behind(signals, held);
  const CoverIndex own_work(pauses);
  std::int64_t lead_ns = 0;
  std::vector<Interval> late(cost.begin(), cost.end());
  for (const LeadChange& change : changes) {
    poll_interrupt();
    if (change.kind == LeadChange::kHeld) {
      add_to(lead_ns, change.interval.length_ns());
    } else if (change.kind == LeadChange::kSynchronised) {
      lead_ns = 0;
    } else {
      const std::int64_t lost_ns = std::min(lead_ns, change.interval.length_ns());
      lead_ns -= lost_ns;
      const std::int64_t end_ns = change.interval.end_ns;
      if (change.kind == LeadChange::kCharged || lost_ns == 0) continue;
      if (own_work.covered_ns(change.interval) == 0) late.push_back({end_ns - lost_ns, end_ns});
    }
  }
  return make_union(std::move(late));
}

IntervalSet with_lost_lead(const Signals& signals, IntervalSet cost, const std::vector<Row>& rows) {
  const std::vector<std::uint8_t> launching = launching_tracks(signals);
  std::vector<Interval> holds;
  for (Row r : rows) {
    if (launching[signals.table.track[r]] != 0) holds.push_back(interval_of(signals.table, r));
  }
  return with_lost_lead(signals, std::move(cost), std::move(holds));
}

std::optional<std::int64_t> usual_gap_ns(const Signals& signals, const IntervalSet& stalls,
                                         const IntervalSet& late) {
  constexpr std::int64_t kLeastEvents = 20;  // what a few do is not usual
  const EventTree& tree = signals.tree;
  const IntervalSet waits = set_union(stalls, late);
  const CoverIndex known(waits), lost(set_union(signals.gpu.not_judged, tree.recording.missing));
  std::int64_t events = 0;
  for (const Row r : tree.gpu_rows) {
    poll_interrupt();
    const std::int64_t start_ns = signals.table.ts_ns[r];
    const Interval before{add_saturated(start_ns, -1), start_ns};
    const bool counts = tree.launch[r] != kNoRow && known.covered_ns(before) == 0;
    if (counts && lost.covered_ns(before) == 0) ++events;
  }
  if (events < kLeastEvents) return std::nullopt;
  std::int64_t total_ns = 0;
  for (const IdleInterval& idle : signals.idle.intervals) {
    if (idle.cause != IdleCause::kHostWait || known.covered_ns(idle.interval) > 0) continue;
    add_to(total_ns, std::min(idle.interval.length_ns(), kLaunchLatencyBoundNs));
  }
  constexpr std::int64_t kLeastGapNs = 5'000;  // less is the device's own latency
  const std::int64_t usual_ns = total_ns / events;
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

IntervalSet without_usual_gaps(const IntervalSet& stalls, std::int64_t usual_ns) {
  return split_gaps(stalls, usual_ns, false);
}

IntervalSet usual_gaps_of(const IntervalSet& stalls, std::int64_t usual_ns) {
  return split_gaps(stalls, usual_ns, true);
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

bool has_python_frames(const Signals& signals) {
  const auto& rows = signals.tree.host_rows;
  return std::any_of(rows.begin(), rows.end(),
                     [&](Row r) { return signals.table.kind[r] == EventKind::kPythonFunction; });
}

namespace {

constexpr std::int64_t kNoticedSilenceNs = 10'000'000;

/// The shortest silence that is noticed: see Note [Long silences].
std::int64_t least_silence_ns(const Signals& signals) {
  constexpr std::int64_t kOneIn = 10;
  if (has_python_frames(signals)) return kNoticedSilenceNs;
  std::vector<std::int64_t> steps;
  for (const Step& step : signals.tree.steps) steps.push_back(step.end_ns - step.start_ns);
  const std::int64_t whole_ns = steps.empty() ? signals.profiled.length_ns() : median_of(steps);
  return std::clamp(whole_ns / kOneIn, kRefillReachNs, kNoticedSilenceNs);
}

}  // namespace

IntervalSet long_silences(const Signals& signals) {
  const std::int64_t least_ns = least_silence_ns(signals);
  std::vector<std::int64_t> borders;
  for (const Step& step : signals.tree.steps) {
    for (const std::int64_t time_ns : {step.start_ns, step.end_ns}) {
      borders.push_back(signals.on_gpu_clock({time_ns, time_ns}).start_ns);
    }
  }
  std::sort(borders.begin(), borders.end());
  const auto holds_border = [&](const Interval& part) {
    const auto first = std::lower_bound(borders.begin(), borders.end(), part.start_ns);
    return first != borders.end() && *first <= part.end_ns;
  };
  IntervalSet silent = host_silence_of(signals);
  std::erase_if(silent, [&](const Interval& part) {
    if (part.length_ns() >= kNoticedSilenceNs) return false;
    return part.length_ns() < least_ns || holds_border(part);
  });
  return silent;
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
