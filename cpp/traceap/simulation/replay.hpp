#pragma once
// The engine: when everything happens, in a graph as it is or with an edit.

#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "traceap/simulation/execution_graph.hpp"

namespace traceap {

/// What an edit changes; the graph itself stays as it is, so that many edits share it.
struct GraphDelta {
  std::vector<std::pair<EdgeId, std::int64_t>> lags;  ///< edge and its new lag, residual included
  std::vector<EdgeId> dropped;
  std::vector<PlainEdge> added;

  bool empty() const { return lags.empty() && dropped.empty() && added.empty(); }
  /// Throws SchemaError for a lag outside +-kMaxTimeNs, as `add` does.
  void set_lag(EdgeId edge, std::int64_t lag_ns);
  void drop(EdgeId edge) { dropped.push_back(edge); }
  void add(Point source, Point destination, std::int64_t lag_ns);
  /// Both changes; where they touch the same edge, `other` wins.
  void join(const GraphDelta& other);
};

struct ReplayOptions {
  bool with_residuals = true;
};

/// Time of each point, ns of the common clock; times stop at the ends of 64 bits. O(points +
/// edges), deterministic. Throws SchemaError for an edit that names edges or points outside the
/// graph, or that closes a cycle.
std::vector<std::int64_t> replay(const ExecutionGraph& graph, const GraphDelta& delta = {},
                                 const ReplayOptions& options = {});

/// Time of a point that does not happen in a copy of a chain.
inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::min();

/// Copies of the run one behind the other, for traces of one iteration: `carries` lead from points
/// of a copy to points of the next. A point that nothing leads to happens as measured in the first
/// copy, and in the others only if a carry leads there; otherwise it and what needs nothing else
/// is kNever. Returns copies x points. O(copies x (points + edges + carries)). Throws like replay.
std::vector<std::int64_t> replay_chain(const ExecutionGraph& graph,
                                       std::span<const PlainEdge> carries, std::uint32_t copies,
                                       const GraphDelta& delta = {},
                                       const ReplayOptions& options = {});

/// The edge on which each point waited longest in a replay; kNoEdge for points without edges.
std::vector<EdgeId> binding_edges(const ExecutionGraph& graph,
                                  std::span<const std::int64_t> time_ns,
                                  const ReplayOptions& options = {});

}  // namespace traceap
