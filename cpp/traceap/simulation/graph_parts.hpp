#pragma once
// An ExecutionGraph from arrays: for runs that no trace stands behind, and for one that gains work.

#include <cstdint>
#include <span>

#include "traceap/simulation/execution_graph.hpp"

namespace traceap {

/// Points, lanes and edges as columns. The points of a lane stand beside each other, in their
/// order, and so do the lanes.
struct GraphParts {
  // By lane.
  std::span<const std::uint32_t> lane_rank, lane_index;
  std::span<const std::uint8_t> lane_kind;  ///< Lane::Kind
  // By point.
  std::span<const std::int64_t> time_ns;  ///< when a point happens that no edge leads to
  std::span<const std::uint32_t> lane;    ///< never decreases
  std::span<const Row> row;               ///< of its rank's table; kNoRow: none
  std::span<const std::uint8_t> is_end;
  std::span<const std::uint8_t> held;  ///< happens no earlier than `time_ns`
  std::span<const StringId> name;      ///< what steps have in common; kNoString
  // By edge, in any order. Edges to one point stay in theirs.
  std::span<const Point> source, destination;
  std::span<const std::uint8_t> kind;      ///< DependencyKind
  std::span<const std::uint8_t> evidence;  ///< Evidence
  std::span<const Row> owner;              ///< whose time it is; kNoRow
  std::span<const std::int64_t> lag_ns, residual_ns;
  // By rank.
  std::span<const std::uint32_t> rows;  ///< how many its table has
};

/// The graph, whose points happen when a replay of it says. Throws SchemaError for columns of
/// different lengths, indices and codes outside, a lane that decreases, times and lags outside
/// +-kMaxTimeNs, two points for one side of a row, and cycles. O(points + edges).
ExecutionGraph build_graph(const GraphParts& parts);

}  // namespace traceap
