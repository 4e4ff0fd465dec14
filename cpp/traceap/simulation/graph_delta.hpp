#pragma once
// What an edit changes in a graph.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "traceap/simulation/edge_lags.hpp"
#include "traceap/simulation/execution_graph.hpp"

namespace traceap {

/// What an edit changes; the graph itself stays as it is, so that many edits share it.
struct GraphDelta {
  std::vector<EdgeId> edges;          ///< with new lags; of two lags for one edge the later holds
  std::vector<std::int64_t> lags_ns;  ///< residuals included
  std::vector<EdgeId> dropped;
  std::vector<PlainEdge> added;
  std::vector<PlainEdge> carried;  ///< from a copy of a chain to the next

  std::size_t size() const { return edges.size() + dropped.size() + added.size() + carried.size(); }
  bool empty() const { return size() == 0; }
  /// Throws SchemaError for a lag outside +-kMaxTimeNs, as `add` does.
  void set_lag(EdgeId edge, std::int64_t lag_ns);
  /// The same for many. Throws also for what is no number of an edge.
  void set_lags(const LagView& lags);
  void drop(EdgeId edge) { dropped.push_back(edge); }
  void add(Point source, Point destination, std::int64_t lag_ns);
  void carry(Point source, Point destination, std::int64_t lag_ns);
  /// Both changes; where they touch the same edge, `other` wins.
  void join(const GraphDelta& other);
};

/// Throws SchemaError where a delta names edges or points outside the graph.
void check_delta(const ExecutionGraph& graph, const GraphDelta& delta);
/// Throws SchemaError for an edge between points outside the graph.
void check_edges(const ExecutionGraph& graph, std::span<const PlainEdge> edges);

}  // namespace traceap
