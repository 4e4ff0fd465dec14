// Long silences (Note [Long silences]) in which the GPU runs out of work:
// garbage collection, locks, checkpoints, plain Python. A run that computes on the host has no GPU
// to do anything.

#include <algorithm>

#include "traceap/base/interrupt.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/process_state.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

constexpr SavingShares kSaving{.basis = SavingBasis::kIdle};

/// Innermost row of the main thread that covers the time, or kNoRow: a frame or an annotation.
Row covering_row(const Signals& signals, std::int64_t gpu_time_ns) {
  const EventTree& tree = signals.tree;
  if (tree.main_track == kNoTrack) return kNoRow;
  const std::int64_t time_ns = add_saturated(gpu_time_ns, tree.launch_delay_correction_ns);
  const auto begin = tree.host_rows.begin() + tree.host_offsets[tree.main_track];
  const auto end = tree.host_rows.begin() + tree.host_offsets[tree.main_track + 1];
  const auto after = std::upper_bound(
      begin, end, time_ns, [&](std::int64_t time, Row r) { return time < signals.table.ts_ns[r]; });
  Row r = after == begin ? kNoRow : *(after - 1);
  while (r != kNoRow && signals.table.end_ns(r) <= time_ns) r = tree.parent[r];
  return r;
}

/// What encloses the longest silence, for a person.
void add_place(const Signals& signals, Row row, Draft& draft) {
  if (row == kNoRow) return;
  const std::string name(signals.table.name_of(row).substr(0, 100));
  if (signals.table.kind[row] == EventKind::kPythonFunction) {
    draft.text("frame", name);
  } else {
    draft.text("range", name);
  }
}

/// First GPU event behind the gap if its launch came out of the silence: then it is the host that
/// the GPU waited for. Work that was queued before, or nothing at all, waited for something else.
Row awaited_row(const Signals& signals, const Interval& gap) {
  const Row next = first_row_from(signals.table, signals.tree.gpu_rows, gap.end_ns);
  if (next == kNoRow) return kNoRow;
  const Row launch = signals.tree.launch[next];
  if (launch == kNoRow) return kNoRow;
  const Interval call = signals.on_gpu_clock(interval_of(signals.table, launch));
  return call.start_ns >= gap.start_ns ? launch : kNoRow;
}

/// Where the run computes on the host: the operator that ends the gap, or kNoRow at the end.
Row next_operator(const Signals& signals, const Interval& gap) {
  const LazyNames is_operator(signals.table, is_operator_name);
  const EventTable& table = signals.table;
  const auto from = std::lower_bound(table.ts_ns.begin(), table.ts_ns.end(), gap.end_ns);
  for (auto r = static_cast<Row>(from - table.ts_ns.begin()); r < table.size(); ++r) {
    poll_interrupt();
    if (table.kind[r] == EventKind::kCpuOp && is_operator(r)) return r;
  }
  return kNoRow;
}

/// Nothing shows whether the GPU's next work was queued before the silence.
Finding judge_without_launches(const Signals& signals, const IntervalSet& silent) {
  const IntervalSet gaps = unexplained_idle_inside(signals, silent);
  if (!is_material(signals, total_length_ns(gaps))) return absent();
  return abstain({"launch calls of GPU events"});
}

Finding detect(const Signals& signals) {
  if (!signals.has_gpu && !signals.on_host) return abstain({"GPU events"});
  if (!signals.has_operators) return abstain({"host operators"});
  IntervalSet silent = long_silences(signals);
  if (!signals.on_host && signals.tree.linked_gpu_rows.empty())
    return judge_without_launches(signals, silent);
  Draft draft(kSaving);
  Interval longest{0, 0};
  const ProcessState state = find_process_state(signals);
  const IntervalSet explained = state.explained();
  const CoverIndex known(explained);
  for (const Interval& gap : unexplained_idle_inside(signals, silent)) {
    if (gap.length_ns() - known.covered_ns(gap) <= kLaunchLatencyBoundNs) continue;
    const Row awaited = signals.on_host ? next_operator(signals, gap) : awaited_row(signals, gap);
    if (awaited == kNoRow) continue;
    draft.cost.push_back(gap);
    if (gap.length_ns() > longest.length_ns()) longest = gap;
    const Row row = covering_row(signals, gap.start_ns + gap.length_ns() / 2);
    draft.evidence.push_back(row != kNoRow ? row : awaited);
  }
  if (draft.cost.empty()) return absent();
  draft.count("gaps", draft.cost.size());
  // A silence that the GPU waits for has cost the host its lead as well: Note [Lost lead].
  std::erase_if(silent, [&](const Interval& gap) { return covered_ns(draft.cost, gap) == 0; });
  for (Interval& silence : silent) silence = signals.on_host_clock(silence);
  draft.cost = with_lost_lead(signals, std::move(draft.cost), std::move(silent));
  draft.cost = set_difference(draft.cost, explained);
  // The cause itself is not in the trace; what the system and the collector did is taken off.
  draft.confidence = state.has_threads ? 0.8 : 0.7;
  draft.duration("longest", longest.length_ns());
  add_place(signals, covering_row(signals, longest.start_ns + longest.length_ns() / 2), draft);
  if (!has_python_frames(signals)) draft.missing_signals.emplace_back("Python frames (with_stack)");
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule host_silence{.type = "host_silence", .saving = kSaving, .detect = detect};
}

}  // namespace traceap
