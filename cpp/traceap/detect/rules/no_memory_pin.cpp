// Batches are uploaded from pageable memory: the driver stages them through its own pinned buffer
// and the host is held until the data has left it.
//
// Cost: the copy where no kernel covers it, and the GPU's idle time until the next kernel. Idle
// time that has a cause of its own (a loader, a compiler, the allocator) is not the copy's; idle
// time in which the host did something else counts up to the time the copy held the host, since
// that is what the host would have gained.

#include <algorithm>

#include "traceap/base/sums.hpp"
#include "traceap/detect/queries/small_uploads.hpp"
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

/// Does something else explain this idle time, which then must not be blamed on a copy?
bool has_own_cause(IdleCause cause) {
  return cause == IdleCause::kDataLoading || cause == IdleCause::kCompilation ||
         cause == IdleCause::kAllocator || cause == IdleCause::kProfiler ||
         cause == IdleCause::kCommunicationWait;
}
bool host_was_elsewhere(IdleCause cause) {
  return cause == IdleCause::kHostWait || cause == IdleCause::kUnknown;
}

/// Adds the idle time from the end of `copy` to the next kernel. `idle` is where to start looking.
void add_stall(const Signals& signals, const Copy& copy, std::int64_t next_kernel_ns,
               std::vector<Interval>& cost) {
  const std::int64_t begin = signals.table.end_ns(copy.row);
  const auto& idle = signals.idle.intervals;
  auto it = std::lower_bound(idle.begin(), idle.end(), begin, [](const IdleInterval& i, auto time) {
    return i.interval.end_ns <= time;
  });
  std::int64_t elsewhere_left = copy.host.length_ns();
  for (; it != idle.end() && it->interval.start_ns < next_kernel_ns; ++it) {
    Interval part{std::max(it->interval.start_ns, begin),
                  std::min(it->interval.end_ns, next_kernel_ns)};
    if (has_own_cause(it->cause)) continue;
    if (host_was_elsewhere(it->cause)) {
      part.end_ns = std::min(part.end_ns, part.start_ns + elsewhere_left);
      elsewhere_left -= part.length_ns();
    }
    cost.push_back(part);
  }
}

/// Uploads of one kind of host memory that held the host.
struct Uploads {
  std::vector<const Copy*> copies;
  std::int64_t bytes = 0;
  bool all_sizes_known = true;
  bool any_orphan = false;
  bool small() const { return all_sizes_known && bytes < kSmallUploadBytes; }
};

Uploads collect_uploads(const Signals& signals, HostMemory memory) {
  Uploads uploads;
  // By start, as the copies. Hundreds of constants are small_copies: pinning would not help them.
  const std::vector<const Copy*> constants = find_small_uploads(signals).copies;
  auto constant = constants.begin();
  for (const Copy& copy : signals.copies) {
    if (constant != constants.end() && *constant == &copy) {
      ++constant;
      continue;
    }
    // A copy of unknown direction is of unknown memory too: it could be an upload.
    const bool upload = copy.kind.direction == CopyDirection::kHostToDevice ||
                        copy.kind.direction == CopyDirection::kUnknown;
    if (!upload || copy.kind.memory != memory) continue;
    if (!in_profile(signals, copy.row) || !holds_host(signals, copy)) continue;
    uploads.copies.push_back(&copy);
    add_to(uploads.bytes, copy.bytes.value_or(0));
    uploads.all_sizes_known = uploads.all_sizes_known && copy.bytes.has_value();
    uploads.any_orphan = uploads.any_orphan || copy.launch == kNoRow;
  }
  return uploads;
}

/// Starts of all GPU events that are no copies between host and device, sorted.
std::vector<std::int64_t> kernel_starts(const Signals& signals) {
  std::vector<std::int64_t> starts;
  for (Row r : signals.tree.gpu_rows) {
    if (signals.tree.gpu_class[r] != GpuClass::kMemcpy) starts.push_back(signals.table.ts_ns[r]);
  }
  return starts;
}

std::vector<Interval> cost_of(const Signals& signals, const std::vector<const Copy*>& copies) {
  std::vector<Interval> copied;
  for (const Copy* copy : copies) copied.push_back(interval_of(signals.table, copy->row));
  std::vector<Interval> cost = set_difference(make_union(std::move(copied)), signals.gpu.compute);
  const std::vector<std::int64_t> starts = kernel_starts(signals);
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const std::int64_t end = signals.table.end_ns(copies[i]->row);
    const auto next = std::lower_bound(starts.begin(), starts.end(), end);
    if (next == starts.end()) continue;
    // The next upload has a stall of its own.
    const std::int64_t until =
        i + 1 < copies.size()
            ? std::min(*next, std::max(end, signals.table.ts_ns[copies[i + 1]->row]))
            : *next;
    add_stall(signals, *copies[i], until, cost);
  }
  return cost;
}

Finding judge_uploads(const Signals& signals, const Uploads& uploads) {
  Draft draft(kSaving);
  if (!uploads.small()) draft.cost = cost_of(signals, uploads.copies);
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
