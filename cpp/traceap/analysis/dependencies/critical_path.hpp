#pragma once
// The chain of events that decided when a time range ended, and what its time went into.

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "traceap/analysis/dependencies/dependency_graph.hpp"
#include "traceap/base/intervals.hpp"

namespace traceap {

enum class PathCause : std::uint8_t {
  kDataLoading = 0,  ///< the host makes, or waits for, the next batch
  kHostForward,      ///< the host works in forward
  kHostBackward,     ///< ... in backward
  kHostOptimizer,    ///< ... in the optimizer
  kHostOther,        ///< ... elsewhere
  kHostGap,          ///< the thread records nothing: Python, or code without events
  kCompilation,      ///< code is generated, loaded or tuned; the context is created
  kAllocator,        ///< device or pinned memory is taken or given back
  kProfiler,         ///< the profiler's own work
  kSynchronization,  ///< a waiting call, but for the time that GPU work explains
  kLaunchLatency,    ///< from the launch call to the start of its work
  kGpuCompute,       ///< kernels
  kCommunication,    ///< collectives, on the GPU or on the host
  kCopy,             ///< copies on the GPU, and host time in a copy call that waits
  kGpuGap,           ///< queued work starts after work that it follows
  kUnknown,          ///< no recorded dependency reaches here
};
inline constexpr int kPathCauseCount = static_cast<int>(PathCause::kUnknown) + 1;
std::string_view path_cause_name(PathCause cause);

/// A piece of the path: `row` did, or was waited for, from start to end.
struct PathSegment {
  std::int64_t start_ns, end_ns;  ///< common clock: the host's, GPU times corrected
  std::uint32_t rank;             ///< index of the rank
  Row row;                        ///< of that rank; kNoRow if no event covers it
  std::uint32_t lane_index;       ///< in the tracks of the table or the streams of the tree
  Lane::Kind lane_kind;           ///< kCollectives where it is on no thread and no stream
  PathCause cause;
  DependencyKind kind;  ///< the edge that was followed
  Evidence evidence;
  /// How much earlier the next best predecessor was ready: shortening what lies before by more
  /// than this moves the path. kNoId: there is no other predecessor.
  std::int64_t margin_ns;
};

struct CriticalPath {
  Interval range;                     ///< what the segments tile, without hole or overlap
  std::vector<PathSegment> segments;  ///< by time
  std::array<std::int64_t, kPathCauseCount> total_ns{};  ///< sums to the range
  std::int64_t assumed_ns = 0;        ///< time on edges that are assumed, and unknown time
  Point anchor = kNoPoint;            ///< the point from which the path was walked back
  std::size_t points = 0, edges = 0;  ///< of the graph
};

/// What the time of a path went into, without the events: a fifth of the memory. Each cause begins
/// where the one before it ends, the first one with the range.
struct PathCauses {
  std::vector<PathCause> cause;  ///< by time, never the same twice in a row
  std::vector<std::int64_t> end_ns;
};

/// Walks back from the last end of the main threads and the GPUs: at each point to the predecessor
/// that was ready last. The whole path is walked, then clipped to `range`, so that the paths of
/// steps are parts of one path. O(points + rows).
CriticalPath find_critical_path(const DependencyGraph& graph, std::span<const GraphRank> ranks,
                                Interval range);
/// The causes of the same path.
PathCauses find_path_causes(const DependencyGraph& graph, std::span<const GraphRank> ranks,
                            Interval range);

}  // namespace traceap
