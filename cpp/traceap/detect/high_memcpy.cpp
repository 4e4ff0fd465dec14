// The GPU spends its time on copies between host and device, or waits while the host sits in one.
//
// Cost of every such copy, batch uploads too: its time that no kernel covers, plus GPU idle while
// the host is inside the copy call and the synchronisation that belongs to it (.item(), .cpu()).

#include <algorithm>

#include "traceap/detect/evidence.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

constexpr std::string_view kType = "high_memcpy";
/// Copies that are needless (metrics read each step, a round trip to NumPy) vanish whole, batch
/// uploads can only be hidden: half is the middle of "none" and "all".
constexpr SavingShares kSaving{SavingBasis::kIdleOrExposed, 0.0, 0.5};

struct Tally {
  std::int64_t up = 0, down = 0, up_bytes = 0, down_bytes = 0, waits = 0;
};

void count(const Copy& copy, Tally& tally) {
  const std::int64_t bytes = copy.bytes.value_or(0);
  const bool up = copy.kind.direction == CopyDirection::kHostToDevice;
  (up ? tally.up : tally.down) += 1;
  (up ? tally.up_bytes : tally.down_bytes) += bytes;
  if (copy.sync != kNoRow) ++tally.waits;
}

}  // namespace

Finding detect_high_memcpy(const Signals& signals) {
  if (!signals.has_gpu) return abstain(kType, {"GPU events"});
  Draft draft(kType);
  Tally tally;
  std::vector<Interval> copied, held;
  bool orphan = false;
  for (const Copy& copy : signals.copies) {
    if (!is_host_device(copy.kind.direction) || !in_profile(signals, copy.row)) continue;
    count(copy, tally);
    draft.evidence.push_back(copy.row);
    copied.push_back(interval_of(signals.table, copy.row));
    if (copy.launch != kNoRow) held.push_back(signals.on_gpu_clock(copy.host));
    orphan = orphan || copy.launch == kNoRow;
  }
  const IntervalSet exposed = set_difference(make_union(std::move(copied)), signals.gpu.compute);
  const IntervalSet waiting = set_intersection(make_union(std::move(held)), signals.gpu_idle);
  draft.cost = set_union(exposed, waiting);
  draft.saving = kSaving;
  draft.confidence = orphan ? 0.8 : 0.95;
  if (orphan) draft.missing_signals.emplace_back("launch calls of some copies");
  draft.fact("host to device", tally.up);
  draft.fact("host to device bytes", tally.up_bytes);
  draft.fact("device to host", tally.down);
  draft.fact("device to host bytes", tally.down_bytes);
  draft.fact("copies the host waited for", tally.waits);
  draft.fact("exposed copy time", format_ms(total_length_ns(exposed)));
  draft.fact("GPU idle in copy calls", format_ms(total_length_ns(waiting)));
  return finish_finding(signals, std::move(draft));
}

}  // namespace traceap
