// A copy from pinned memory that still makes the host wait: non_blocking=True is missing.

#include "traceap/detect/queries/support.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

constexpr std::string_view kType = "blocking_copy";

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
      uploads.bytes += copy.bytes.value_or(0);
    }
    uploads.memory_unknown = uploads.memory_unknown || copy.kind.memory == HostMemory::kUnknown;
  }
  return uploads;
}

}  // namespace

Finding detect_blocking_copy(const Signals& signals) {
  if (!signals.has_gpu) return abstain(kType, {"GPU events"});
  if (signals.api_rows.empty()) return abstain(kType, {"runtime calls"});
  const Uploads uploads = find_uploads(signals);
  if (uploads.blocking.empty()) {
    if (uploads.memory_unknown) return abstain(kType, {"pinned or pageable in copy names"});
    return absent(kType);
  }
  Draft draft(kType);
  std::vector<Interval> stalls;
  for (const Copy* copy : uploads.blocking) {
    stalls.push_back(stall_window(signals, copy->host));
    draft.evidence.push_back(copy->row);
  }
  draft.cost = unexplained_idle_inside(signals, std::move(stalls));
  draft.saving.basis = SavingBasis::kIdle;
  draft.fact("copies", static_cast<std::int64_t>(draft.evidence.size()));
  if (uploads.bytes > 0) draft.fact("bytes", format_bytes(uploads.bytes));
  return finish_finding(signals, std::move(draft));
}

}  // namespace traceap
