// A copy from pinned memory that still makes the host wait: non_blocking=True is missing.

#include "traceap/base/sums.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

constexpr SavingShares kSaving{.basis = SavingBasis::kIdle};

struct Uploads {
  std::vector<const Copy*> blocking;  ///< pinned, with a synchronise call behind
  std::int64_t bytes = 0;
  bool any_linked = false;
  bool memory_unknown = false;  ///< a synchronised copy does not say which memory it reads
};

Uploads find_uploads(const Signals& signals) {
  Uploads uploads;
  for (const Copy& copy : signals.copies) {
    if (copy.kind.direction != CopyDirection::kHostToDevice || copy.launch == kNoRow) continue;
    uploads.any_linked = true;
    if (copy.sync == kNoRow) continue;
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
  std::vector<Interval> stalls;
  for (const Copy* copy : uploads.blocking) {
    stalls.push_back(stall_window(signals, copy->host));
    draft.evidence.push_back(copy->row);
  }
  draft.cost = unexplained_idle_inside(signals, std::move(stalls));
  draft.count("copies", draft.evidence.size());
  if (uploads.bytes > 0) draft.bytes("bytes", uploads.bytes);
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule blocking_copy{.type = "blocking_copy", .saving = kSaving, .detect = detect};
}

}  // namespace traceap
