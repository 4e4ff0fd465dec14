#pragma once
// A run as a graph that can be replayed: points and dependencies of analysis/, each edge with what
// it costs. docs/simulation_edits.md has the rules.

#include <cstdint>
#include <span>
#include <vector>

#include "traceap/analysis/dependencies/dependency_graph.hpp"

namespace traceap {

/// Index of an edge of an ExecutionGraph.
using EdgeId = std::uint32_t;
inline constexpr EdgeId kNoEdge = std::numeric_limits<EdgeId>::max();

/// Launches that a CUDA stream takes before the next launch call has to wait: nominally 1,024, of
/// which traces show 1,021. See Note [Launch queue] in resources.cpp.
inline constexpr std::uint32_t kQueueDepth = 1021;
inline constexpr std::uint32_t kNominalQueueDepth = 1024;

/// A GPU event that needs what another one wrote, known from an execution trace.
struct GpuDependency {
  std::uint32_t rank;
  Row producer, consumer;
};

struct ExecutionOptions {
  /// Leave out edges that rest on times alone: what the replay then changes is structural doubt.
  bool explicit_only = false;
  std::uint32_t queue_depth = kQueueDepth;  ///< 0: no limit
  std::span<const GpuDependency> dependencies;
};

/// The edges of a graph once more, in the order in which they are replayed: points are positions in
/// that order.
struct ReplayLayout {
  std::vector<std::uint32_t> in_offsets;  ///< by position, of the slots of edges that lead there
  std::vector<std::uint32_t> source;      ///< by slot: position
  std::vector<std::uint32_t> slot;        ///< by edge
};

/// Structure of arrays. A point happens at the latest of source + lag over the edges that lead to
/// it; points without an edge happen when they were measured.
///
/// An edge costs `lag_ns`: measured work (host work, GPU durations) or the typical latency of edges
/// like it (launch, order on a stream, return of a wait). `residual_ns` is what the measured run
/// took beyond that, or less: with residuals a replay gives back every measured time exactly,
/// without them it says how much of the run the dependencies explain.
struct ExecutionGraph {
  DependencyGraph points;                 ///< edges grouped by destination; queue limits included
  std::vector<std::int64_t> lag_ns;       ///< by edge
  std::vector<std::int64_t> residual_ns;  ///< by edge; one edge of a point carries it
  std::vector<std::uint8_t> held;  ///< by point: happens no earlier than measured; see lags.cpp
  std::vector<StringId> name;      ///< by point, of its rank's table; marks without their number
  std::vector<Point> order;        ///< every source stands before its destinations
  std::vector<std::uint32_t> position;  ///< by point: its place in `order`
  ReplayLayout layout;
  std::vector<std::vector<Point>> begin_of, end_of;  ///< by rank and row; kNoPoint
  std::uint32_t dropped_edges = 0;                   ///< edges left out because they closed a cycle
  std::uint32_t contradicted = 0;  ///< given dependencies whose consumer began too early

  Point size() const { return points.size(); }
};

/// O((points + edges) log points). `ranks` must outlive nothing: all that is needed is copied.
ExecutionGraph build_execution_graph(std::span<const GraphRank> ranks,
                                     const Meetings& meetings = {},
                                     const ExecutionOptions& options = {});

/// Makes a graph of plain nodes and edges, for runs that are no Kineto trace (operators of a
/// pipeline schedule, for example). A node is two points, 2 i and 2 i + 1. Throws SchemaError for
/// indices outside, durations below 0, times and lags outside +-kMaxTimeNs, and cycles.
struct PlainEdge {
  Point source, destination;
  std::int64_t lag_ns;
};
ExecutionGraph build_plain_graph(std::span<const std::int64_t> duration_ns,
                                 std::span<const PlainEdge> edges,
                                 std::span<const std::int64_t> start_ns = {});

}  // namespace traceap
