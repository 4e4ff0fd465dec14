// Results are fetched with an asynchronous copy into pageable memory: CUDA makes it wait all the
// same, although the program asked not to (non_blocking=True and no synchronisation behind it).
//
// Cost: the copies where no kernel covers them, and the stalls of their calls.

#include "traceap/base/sums.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/ranges.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// Copies into pinned memory run at link speed and beside kernels; where the result is needed at
/// once the wait stays.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdleOrExposed, .low = 0.2, .best = 0.7};
/// Smaller reads are of values: INTERFACE calls copies below this small constants
/// (host_sync_in_loop).
constexpr std::int64_t kMinBytes = 64 << 10;
/// Once is no loop.
constexpr std::size_t kMinRepeats = 2;

/// An asynchronous call that lasted until its copy was done, with nobody waiting behind it.
bool is_held_readback(const Signals& signals, const Copy& copy) {
  return copy.kind.direction == CopyDirection::kDeviceToHost && copy.launch != kNoRow &&
         copy.sync == kNoRow && signals.api(copy.launch) == ApiClass::kAsyncCopy &&
         in_profile(signals, copy.row) &&
         signals.on_gpu_clock(copy.host).end_ns >= signals.table.end_ns(copy.row);
}

struct Readbacks {
  std::vector<const Copy*> pageable;
  std::int64_t bytes = 0;
  std::vector<Interval> unsized, unknown_memory;  ///< these could be such copies too
};

Readbacks find_readbacks(const Signals& signals) {
  Readbacks found;
  for (const Copy& copy : signals.copies) {
    if (!is_held_readback(signals, copy)) continue;
    if (copy.bytes && *copy.bytes < kMinBytes) continue;
    const bool pageable = copy.kind.memory == HostMemory::kPageable;
    if (pageable && copy.bytes) {
      found.pageable.push_back(&copy);
      add_to(found.bytes, *copy.bytes);
    } else if (pageable) {
      found.unsized.push_back(interval_of(signals.table, copy.row));
    } else if (copy.kind.memory == HostMemory::kUnknown) {
      found.unknown_memory.push_back(interval_of(signals.table, copy.row));
    }
  }
  return found;
}

Finding without_readbacks(const Signals& signals, Readbacks found) {
  const auto matter = [&](std::vector<Interval> copies) {
    return copies.size() >= kMinRepeats &&
           is_material(signals, total_length_ns(make_union(std::move(copies))));
  };
  if (matter(std::move(found.unsized))) return abstain({"sizes of the copies"});
  if (matter(std::move(found.unknown_memory))) {
    return abstain({"pageable or pinned in the names of the copies"});
  }
  return absent();
}

Finding detect(const Signals& signals) {
  if (!signals.has_gpu) return abstain({"GPU events"});
  if (signals.api_rows.empty()) return abstain({"runtime calls"});
  Readbacks found = find_readbacks(signals);
  if (found.pageable.size() < kMinRepeats) return without_readbacks(signals, std::move(found));
  Draft draft(kSaving);
  std::vector<Interval> copied, stalls;
  for (const Copy* copy : found.pageable) {
    copied.push_back(interval_of(signals.table, copy->row));
    stalls.push_back(stall_window(signals, copy->host));
    draft.evidence.push_back(copy->row);
  }
  draft.cost = set_union(set_difference(make_union(std::move(copied)), signals.gpu.compute),
                         unexplained_idle_inside(signals, std::move(stalls)));
  draft.count("copies", draft.evidence.size());
  draft.bytes("bytes", found.bytes);
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule pageable_readback{
    .type = "pageable_readback", .claim = Claim::kSpecific, .saving = kSaving, .detect = detect};
}

}  // namespace traceap
