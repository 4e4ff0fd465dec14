#pragma once
// What had to happen before what: beginnings and ends of events as points, dependencies as edges.
// The ground of the critical path; durations and lags are measured, nothing is estimated here.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "traceap/analysis/collectives/meetings.hpp"
#include "traceap/table/event_table.hpp"
#include "traceap/tree/event_tree.hpp"

namespace traceap {

/// Index of a point: the beginning or the end of an event.
using Point = std::uint32_t;
inline constexpr Point kNoPoint = std::numeric_limits<Point>::max();

enum class DependencyKind : std::uint8_t {
  kProgramOrder = 0,  ///< next on the same host thread
  kExecution,         ///< beginning to end of a GPU event
  kStreamOrder,       ///< next on the same stream
  kLaunch,            ///< launch call to the GPU event
  kStreamWait,        ///< a stream waits for work of another one
  kHostWait,          ///< a call returns when GPU work has ended
  kThreadStart,       ///< a thread takes over work that another one hands to it
  kThreadJoin,        ///< a silent thread goes on when the other one is done
  kDeviceOrder,       ///< no launch is known: after what ended last on the device
  kDeviceBusy,        ///< work of another stream fills the device until just now
  kRendezvous,        ///< a collective moves data once its last rank has arrived
  // What simulation/ adds to the graph.
  kQueueLimit,  ///< a launch call waits for room in the stream's queue
  kCopyEngine,  ///< next copy of its direction on the device
  kGraphOrder,  ///< order between streams inside a captured graph
  kTensor,      ///< reads what was written, by an execution trace
  kWorkerPace,  ///< a batch is ready when the loader's workers have made it
};
inline constexpr int kDependencyKindCount = static_cast<int>(DependencyKind::kWorkerPace) + 1;
/// snake_case, such as "stream_order".
std::string_view dependency_kind_name(DependencyKind kind);

/// How an edge is known.
enum class Evidence : std::uint8_t {
  kExplicit = 0,  ///< the trace says so: ids, order on a thread or stream, what a call guarantees
  kInferred,      ///< a recorded call or node, and times that single out its partner
  kAssumed,       ///< times alone
};
inline constexpr int kEvidenceCount = static_cast<int>(Evidence::kAssumed) + 1;
std::string_view evidence_name(Evidence evidence);

/// One rank of a graph.
struct GraphRank {
  const EventTable* table;
  const EventTree* tree;
  std::int64_t offset_ns = 0;  ///< added to its times gives the common clock
};

/// A host thread, a stream, or (without an index) the meeting points of collectives.
struct Lane {
  enum Kind : std::uint8_t { kThread, kStream, kCollectives };
  std::uint32_t rank;
  Kind kind;
  std::uint32_t index;  ///< in table.tracks or tree.streams
  Point begin, end;     ///< its points
};

/// Structure of arrays. Points of a thread are adjacent and in order of time; a GPU event has its
/// beginning and end beside each other. Every edge leads forward: time_ns[source] <=
/// time_ns[point]. Times are those of the host's clock: GPU times are moved by the tree's launch
/// delay correction, and all by the rank's offset.
struct DependencyGraph {
  std::vector<std::int64_t> time_ns;  ///< by point
  std::vector<Row> row;               ///< by point: the event; kNoRow for a meeting point
  std::vector<std::uint32_t> lane;    ///< by point: index in `lanes`
  std::vector<std::uint8_t> is_end;   ///< by point
  std::vector<Lane> lanes;

  // Edges, grouped by the point that they lead to.
  std::vector<std::uint32_t> in_offsets;  ///< points + 1
  std::vector<Point> source;
  std::vector<Row> owner;  ///< of the destination's rank: event that the time between belongs to
  std::vector<DependencyKind> kind;
  std::vector<Evidence> evidence;

  Point size() const { return static_cast<Point>(time_ns.size()); }
  std::size_t edges() const { return source.size(); }
  /// Measured time between the two points of an edge that leads to `point`.
  std::int64_t lag_ns(std::uint32_t edge, Point point) const {
    return time_ns[point] - time_ns[source[edge]];
  }
};

/// Complete host rows on their threads and GPU events on their streams, with the edges that
/// docs/idle_time.md lists. O(n log n) in events; never fails, whatever the times are.
DependencyGraph build_dependency_graph(std::span<const GraphRank> ranks,
                                       const Meetings& meetings = {});

}  // namespace traceap
