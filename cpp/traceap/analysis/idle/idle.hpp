#pragma once
// Why the GPU had nothing to do: every idle interval gets one cause and the host event behind it.

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "traceap/analysis/idle/timeline.hpp"

namespace traceap {

enum class IdleCause : std::uint8_t {
  kDataLoading = 0,    ///< the host waits for, or makes, the next batch
  kHostWait,           ///< the host is busy and the queue is empty: CPU bound
  kSynchronization,    ///< the host waited for the GPU, then had to refill the queue
  kMemoryCopy,         ///< the host sits in a blocking copy call, or refills the queue after it
  kCommunicationWait,  ///< the next work waits for a collective, or the host waits on one
  kCompilation,        ///< dynamo, inductor, autotuning, code loading, start of the context
  kAllocator,          ///< cudaMalloc, cudaFree and kin
  kLaunchLatency,      ///< work was queued already: the time the device takes to start it
  kProfiler,           ///< the profiler's own overhead
  kUnknown,            ///< no event explains it: it waits for work outside the file
  kWithinGraph,        ///< between nodes of one replay of a CUDA graph: no launch lies between
};
inline constexpr int kIdleCauseCount = static_cast<int>(IdleCause::kWithinGraph) + 1;
/// snake_case, such as "data_loading".
std::string_view idle_cause_name(IdleCause cause);

struct IdleInterval {
  Interval interval;
  IdleCause cause;
  Row explained_by;  ///< host row that explains it; kNoRow if none
  Row next_gpu_row;  ///< first GPU event after it; kNoRow at the end of `bounds`
};

struct IdleBreakdown {
  std::vector<IdleInterval> intervals;  ///< sorted, disjoint; their union is the idle time exactly
  std::array<std::int64_t, kIdleCauseCount> total_ns{};  ///< sums to the idle time exactly
};

/// A device starts work 1 to 25 us after its launch call returned (public traces, 84 us at most;
/// HTA counts a delay above 100 us as an outlier). Up to this much is the price of an empty queue;
/// queued work that waits longer waits for something that the trace does not show.
inline constexpr std::int64_t kLaunchLatencyBoundNs = 100'000;

/// From the return of a call that waited for the GPU to the next launch call the host takes 10 to
/// 230 us on most public traces, up to 330 us on nine out of ten: so long the queue is empty
/// because of the wait. Longer only where the wait itself was longer: without it the host would
/// have been ahead by as much.
inline constexpr std::int64_t kRefillBoundNs = 300'000;
/// A host that is free launches its next kernel within some tens of microseconds, 640 us at most on
/// public traces; with the profiler and Python on top, 1 ms is still some fifty operations. One
/// that takes longer does something else: the pause is no refill.
inline constexpr std::int64_t kRefillReachNs = 1'000'000;

/// Idle = complement of gpu.busy and gpu.not_judged in `bounds`. An idle interval may be split
/// where the cause changes (the host loads data, then launches). The rules stand in
/// docs/idle_time.md. Narrower bounds give the same causes, clipped. O(idle intervals * log
/// events + host rows met).
IdleBreakdown explain_idle(const EventTable& table, const EventTree& tree, const GpuIntervals& gpu,
                           Interval bounds);

}  // namespace traceap
