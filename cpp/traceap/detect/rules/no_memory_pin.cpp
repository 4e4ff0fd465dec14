// Batches are uploaded from pageable memory: the driver stages them through its own pinned buffer
// and the host is held until the data has left it.
//
// Cost: the copy where no kernel covers it, and the GPU's idle time around it that is the copy's:
// while the host sat in the call, and while it refilled the queue behind it, up to the next kernel.
// What the host did there for its own sake, or a loader, is not the copy's.

#include "traceap/base/sums.hpp"
#include "traceap/detect/queries/small_uploads.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// The host counts as held if its call lasts at least this share of the copy.
constexpr double kHeldShare = 0.5;
/// Pinned copies run at link speed, about twice the staged ones, and can run under compute: the
/// bound is all of the cost, the careful figure the half that pinning alone gives.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdleOrExposed, .low = 0.3, .best = 0.7};

bool holds_host(const Signals& signals, const Copy& copy) {
  if (copy.launch == kNoRow) return true;  // can't be seen; lowers the confidence
  return static_cast<double>(copy.host.length_ns()) >=
         kHeldShare * static_cast<double>(signals.table.dur_ns[copy.row]);
}

/// Uploads of one kind of host memory that held the host.
struct Uploads {
  std::vector<const Copy*> copies;
  std::int64_t bytes = 0;
  bool all_sizes_known = true;
  bool any_orphan = false;
};

/// Could it be a batch? Constants are small: pinning would not help them, and the host does not
/// wait for them.
bool is_upload(const Copy& copy) {
  // A copy of unknown direction is of unknown memory too: it could be an upload.
  return (copy.kind.direction == CopyDirection::kHostToDevice ||
          copy.kind.direction == CopyDirection::kUnknown) &&
         copy.bytes.value_or(kSmallUploadBytes) >= kSmallUploadBytes;
}

Uploads collect_uploads(const Signals& signals, HostMemory memory) {
  Uploads uploads;
  for (const Copy& copy : signals.copies) {
    if (!is_upload(copy) || copy.kind.memory != memory) continue;
    if (!in_profile(signals, copy.row) || !holds_host(signals, copy)) continue;
    uploads.copies.push_back(&copy);
    add_to(uploads.bytes, copy.bytes.value_or(0));
    uploads.all_sizes_known = uploads.all_sizes_known && copy.bytes.has_value();
    uploads.any_orphan = uploads.any_orphan || copy.launch == kNoRow;
  }
  return uploads;
}

/// Did the call find the GPU at work? Then it emptied the queue, and the refill is its doing.
/// Otherwise the host was late already, and would have been without the copy.
bool emptied_queue(const Signals& signals, const Copy& copy) {
  if (copy.launch == kNoRow) return false;
  const std::int64_t called_ns = signals.on_gpu_clock(copy.host).start_ns;
  const Interval moment{called_ns, add_saturated(called_ns, 1)};
  return covered_ns(signals.gpu.compute, moment) > 0 ||
         covered_ns(signals.gpu.communication, moment) > 0;
}

/// The copies where no kernel covers them, and idle time that is theirs: in the call, and behind
/// the copy up to the next GPU event.
IntervalSet cost_of(const Signals& signals, const std::vector<const Copy*>& copies) {
  std::vector<Interval> copied, around, calls;
  for (const Copy* copy : copies) {
    const Interval time = interval_of(signals.table, copy->row);
    const Row next = first_row_from(signals.table, signals.tree.gpu_rows, time.end_ns);
    copied.push_back(time);
    if (copy->launch != kNoRow) {
      around.push_back(signals.on_gpu_clock(copy->host));
      calls.push_back(copy->host);
    }
    if (next != kNoRow && emptied_queue(signals, *copy)) {
      around.push_back({time.end_ns, signals.table.ts_ns[next]});
    }
  }
  const IntervalSet own_idle = idle_with_cause(
      signals, {IdleCause::kMemoryCopy, IdleCause::kSynchronization, IdleCause::kLaunchLatency});
  IntervalSet cost = set_union(set_difference(make_union(std::move(copied)), signals.gpu.compute),
                               set_intersection(make_union(std::move(around)), own_idle));
  return with_lost_lead(signals, std::move(cost), std::move(calls));
}

Finding judge_uploads(const Signals& signals, const Uploads& uploads) {
  Draft draft(kSaving);
  draft.cost = cost_of(signals, uploads.copies);
  for (const Copy* copy : uploads.copies) draft.evidence.push_back(copy->row);
  // Without calls or sizes it is not seen whether the host was held, or how much there was.
  draft.confidence = uploads.any_orphan || !uploads.all_sizes_known ? 0.7 : 0.95;
  draft.count("copies", uploads.copies.size());
  draft.bytes("bytes", uploads.bytes);
  return finish_finding(signals, std::move(draft));
}

Finding detect(const Signals& signals) {
  if (!signals.has_gpu) return abstain({"GPU events"});
  const Finding finding = judge_uploads(signals, collect_uploads(signals, HostMemory::kPageable));
  if (finding.verdict == Verdict::kPresent) return finding;
  // AMD's copies carry no word on the host's memory: these could be the same.
  const Uploads unknown = collect_uploads(signals, HostMemory::kUnknown);
  if (judge_uploads(signals, unknown).verdict != Verdict::kPresent) return finding;
  return abstain({"pageable or pinned in the names of the copies"});
}

}  // namespace

namespace rules {
extern constexpr Rule no_memory_pin{
    .type = "no_memory_pin", .paper_place = 2, .saving = kSaving, .detect = detect};
}

}  // namespace traceap
