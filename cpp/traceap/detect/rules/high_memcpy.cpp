// The GPU spends its time on copies between host and device, or waits while the host sits in one.
//
// Cost of every such copy, batch uploads too: its time that no kernel covers, plus GPU idle while
// the host is inside the copy call and the synchronisation that belongs to it (.item(), .cpu()).
// Where the call waits for work outside the file, that is not the copy's doing.

#include <algorithm>

#include "traceap/base/sums.hpp"
#include "traceap/detect/queries/small_uploads.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// Copies that are needless (metrics read each step, a round trip to NumPy) vanish whole, batch
/// uploads can only be hidden: half is the middle of "none" and "all".
constexpr SavingShares kSaving{.basis = SavingBasis::kIdleOrExposed, .best = 0.5};

struct Copies {
  std::vector<Row> rows;
  std::vector<Interval> copied, held, calls, stalls;
  std::int64_t up = 0, down = 0, up_bytes = 0, down_bytes = 0, waits = 0;
  bool orphan = false;
};

void add(const Signals& signals, const Copy& copy, Copies& copies) {
  const bool up = copy.kind.direction == CopyDirection::kHostToDevice;
  (up ? copies.up : copies.down) += 1;
  add_to(up ? copies.up_bytes : copies.down_bytes, copy.bytes.value_or(0));
  if (copy.sync != kNoRow) ++copies.waits;
  copies.rows.push_back(copy.row);
  copies.copied.push_back(interval_of(signals.table, copy.row));
  copies.orphan = copies.orphan || copy.launch == kNoRow;
  if (copy.launch != kNoRow) {
    copies.held.push_back(signals.on_gpu_clock(copy.host));
    if (copy.bytes.value_or(0) < kSmallUploadBytes) return;  // values and constants: not its fix
    copies.calls.push_back(copy.host);
    copies.stalls.push_back(stall_window(signals, copy.host));
  }
}

Finding judge(const Signals& signals, Copies copies) {
  Draft draft(kSaving);
  const IntervalSet exposed =
      set_difference(make_union(std::move(copies.copied)), signals.gpu.compute);
  const IntervalSet waiting = set_difference(idle_inside(signals, std::move(copies.held)),
                                             idle_with_cause(signals, {IdleCause::kUnknown}));
  draft.cost = set_union(exposed, waiting);
  // The refill of the queue is not in the definition, but a copy that goes takes it along.
  draft.regained = with_lost_lead(
      signals, unexplained_idle_inside(signals, std::move(copies.stalls)), std::move(copies.calls));
  draft.evidence = std::move(copies.rows);
  // Without its call nothing shows how long a copy held the host.
  draft.confidence = copies.orphan ? 0.8 : 0.95;
  if (copies.orphan) draft.missing_signals.emplace_back("launch calls of some copies");
  draft.count("host to device", copies.up);
  draft.bytes("host to device bytes", copies.up_bytes);
  draft.count("device to host", copies.down);
  draft.bytes("device to host bytes", copies.down_bytes);
  draft.count("copies the host waited for", copies.waits);
  draft.duration("exposed copy time", total_length_ns(exposed));
  draft.duration("GPU idle in copy calls", total_length_ns(waiting));
  return finish_finding(signals, std::move(draft));
}

/// Without their calls nothing shows how long copies held the host: at most for the idle time on
/// both sides of each.
bool is_open_without_calls(const Signals& signals, const Copies& copies) {
  if (!copies.orphan) return false;
  const IntervalSet copied = make_union(copies.copied);
  IntervalSet possible = set_difference(copied, signals.gpu.compute);
  for (const Interval& idle : signals.gpu_idle) {
    const Interval beside{add_saturated(idle.start_ns, -1), add_saturated(idle.end_ns, 1)};
    if (covered_ns(copied, beside) > 0) possible.push_back(idle);
  }
  possible = set_clip(make_union(std::move(possible)), signals.profiled);
  return is_material(signals, total_length_ns(possible));
}

Finding detect(const Signals& signals) {
  if (!signals.has_gpu) return abstain({"GPU events"});
  Copies known, possible;
  for (const Copy& copy : signals.copies) {
    if (!in_profile(signals, copy.row)) continue;
    const bool unknown = copy.kind.direction == CopyDirection::kUnknown;
    if (!unknown && !is_host_device(copy.kind.direction)) continue;
    add(signals, copy, possible);
    if (!unknown) add(signals, copy, known);
  }
  const bool any_unknown = possible.rows.size() > known.rows.size();
  const bool open = is_open_without_calls(signals, known);
  Finding finding = judge(signals, std::move(known));
  if (finding.verdict != Verdict::kPresent && open) return abstain({"launch calls of the copies"});
  if (finding.verdict == Verdict::kPresent || !any_unknown) return finding;
  if (judge(signals, std::move(possible)).verdict != Verdict::kPresent) return finding;
  return abstain({"direction of the copies"});
}

}  // namespace

namespace rules {
extern constexpr Rule high_memcpy{.type = "high_memcpy",
                                  .paper_place = 3,
                                  .claim = Claim::kGeneral,
                                  .saving = kSaving,
                                  .detect = detect};
}

}  // namespace traceap
