// A copy from pinned memory that still makes the host wait: non_blocking=True is missing.
//
// Cost: the copy where no kernel covers it, since on a stream of its own it would run beside the
// computation, and the idle time of the GPU while the host waits and then refills the queue.

#include "traceap/base/sums.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

constexpr SavingShares kSaving{.basis = SavingBasis::kIdleOrExposed};

struct Uploads {
  std::vector<const Copy*> blocking;  ///< pinned, and the host waits for it
  std::int64_t bytes = 0;
  bool any_linked = false;
  bool memory_unknown = false;  ///< a synchronised copy does not say which memory it reads
};

Uploads find_uploads(const Signals& signals) {
  Uploads uploads;
  for (const Copy& copy : signals.copies) {
    if (copy.kind.direction != CopyDirection::kHostToDevice || copy.launch == kNoRow) continue;
    uploads.any_linked = true;
    if (copy.sync == kNoRow && signals.api(copy.launch) != ApiClass::kCopy) continue;
    if (copy.kind.memory == HostMemory::kPinned) {
      uploads.blocking.push_back(&copy);
      add_to(uploads.bytes, copy.bytes.value_or(0));
    }
    uploads.memory_unknown = uploads.memory_unknown || copy.kind.memory == HostMemory::kUnknown;
  }
  return uploads;
}

Finding detect(const Signals& signals) {
  if (!signals.has_gpu) return abstain({"GPU events"});
  if (signals.api_rows.empty()) return abstain({"runtime calls"});
  const Uploads uploads = find_uploads(signals);
  if (uploads.blocking.empty()) {
    if (uploads.memory_unknown) return abstain({"pinned or pageable in copy names"});
    return absent();
  }
  Draft draft(kSaving);
  std::vector<Interval> copied, stalls, calls;
  for (const Copy* copy : uploads.blocking) {
    copied.push_back(interval_of(signals.table, copy->row));
    stalls.push_back(stall_window(signals, copy->host));
    calls.push_back(copy->host);
    draft.evidence.push_back(copy->row);
  }
  draft.cost = set_union(set_difference(make_union(std::move(copied)), signals.gpu.compute),
                         unexplained_idle_inside(signals, std::move(stalls)));
  draft.cost = with_lost_lead(signals, std::move(draft.cost), std::move(calls));
  draft.count("copies", draft.evidence.size());
  if (uploads.bytes > 0) draft.bytes("bytes", uploads.bytes);
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule blocking_copy{.type = "blocking_copy", .saving = kSaving, .detect = detect};
}

}  // namespace traceap
