// Results are read back into pageable memory step after step: the driver stages them through its
// own pinned buffer and holds the host until they are there, whether the program asked to wait
// (.cpu(), with a synchronisation behind it) or not (non_blocking=True).
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
/// Once is no loop: results at the end come in as many copies as there are tensors.
constexpr std::size_t kMinRepeats = 2;

/// A call that lasted, with the synchronisation right behind it, until its copy was done.
bool is_held_readback(const Signals& signals, const Copy& copy) {
  return copy.kind.direction == CopyDirection::kDeviceToHost && copy.launch != kNoRow &&
         in_profile(signals, copy.row) &&
         signals.on_gpu_clock(copy.host).end_ns >= signals.table.end_ns(copy.row);
}
/// Did the program ask to wait for the copy?
bool is_meant_to_wait(const Signals& signals, const Copy& copy) {
  return copy.sync != kNoRow || signals.api(copy.launch) != ApiClass::kAsyncCopy;
}

/// Groups of copies with computation between them.
class Groups {
 public:
  explicit Groups(const Signals& signals) : signals_(signals) {}
  /// Copies by start.
  void add(Interval copy) {
    const bool again = copies_.empty() ||
                       covered_ns(signals_.gpu.compute, {copies_.back().end_ns, copy.start_ns}) > 0;
    if (again) ++count_;
    copies_.push_back(copy);
  }
  bool repeat() const { return count_ >= kMinRepeats; }
  bool matter() const {
    return repeat() && is_material(signals_, total_length_ns(make_union(copies_)));
  }

 private:
  const Signals& signals_;
  std::vector<Interval> copies_;
  std::size_t count_ = 0;
};

struct Readbacks {
  explicit Readbacks(const Signals& signals)
      : repeats(signals), unsized(signals), unknown_memory(signals) {}
  std::vector<const Copy*> pageable;
  Groups repeats;  ///< of these
  std::int64_t bytes = 0;
  Groups unsized, unknown_memory;  ///< these could be such copies too
};

Readbacks find_readbacks(const Signals& signals) {
  Readbacks found(signals);
  for (const Copy& copy : signals.copies) {
    if (!is_held_readback(signals, copy)) continue;
    if (copy.bytes && *copy.bytes < kMinBytes) continue;
    const bool pageable = copy.kind.memory == HostMemory::kPageable;
    const Interval time = interval_of(signals.table, copy.row);
    if (pageable && copy.bytes) {
      found.pageable.push_back(&copy);
      found.repeats.add(time);
      add_to(found.bytes, *copy.bytes);
    } else if (pageable) {
      found.unsized.add(time);
    } else if (copy.kind.memory == HostMemory::kUnknown) {
      found.unknown_memory.add(time);
    }
  }
  return found;
}

Finding without_readbacks(const Readbacks& found) {
  if (found.unsized.matter()) return abstain({"sizes of the copies"});
  if (found.unknown_memory.matter()) {
    return abstain({"pageable or pinned in the names of the copies"});
  }
  return absent();
}

Finding detect(const Signals& signals) {
  if (!signals.has_gpu) return abstain({"GPU events"});
  if (signals.api_rows.empty()) return abstain({"runtime calls"});
  const Readbacks found = find_readbacks(signals);
  if (!found.repeats.repeat()) return without_readbacks(found);
  Draft draft(kSaving);
  std::vector<Interval> copied, stalls, calls;
  std::size_t awaited = 0;
  for (const Copy* copy : found.pageable) {
    if (is_meant_to_wait(signals, *copy)) ++awaited;
    copied.push_back(interval_of(signals.table, copy->row));
    stalls.push_back(stall_window(signals, copy->host));
    calls.push_back(copy->host);
    draft.evidence.push_back(copy->row);
  }
  draft.cost = set_union(set_difference(make_union(std::move(copied)), signals.gpu.compute),
                         unexplained_idle_inside(signals, std::move(stalls)));
  draft.cost = with_lost_lead(signals, std::move(draft.cost), std::move(calls));
  draft.count("copies", draft.evidence.size());
  draft.bytes("bytes", found.bytes);
  draft.count("meant to wait", awaited);
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule pageable_readback{
    .type = "pageable_readback", .claim = Claim::kSpecific, .saving = kSaving, .detect = detect};
}

}  // namespace traceap
