#pragma once
// New costs of edges, as edits give them: columns of edges and lags, put together and multiplied.

#include <cstdint>
#include <span>
#include <vector>

namespace traceap {

/// Edges, and as many lags in ns.
struct LagView {
  std::span<const std::int64_t> edges, lags_ns;
};

/// Edges, each once and in order, and their lags in ns.
struct EdgeLags {
  std::vector<std::int64_t> edges, lags_ns;
};

/// Throws SchemaError for what is no number of an edge.
void check_edge_numbers(std::span<const std::int64_t> edges);

/// Several changes one behind the other: of two lags for one edge the later holds. O(n), or
/// O(n log n) for few of many edges. Throws SchemaError for what is no number of an edge.
EdgeLags later_lags(std::span<const LagView> changes);

/// Two changes of the same costs at once, each with every edge once and in order. Where both change
/// an edge their ratios are multiplied; an edge that costs nothing has no ratio: there what costs
/// more holds. `cost_ns`: of every edge before. O(edges of both). Throws SchemaError for an edge
/// beyond `cost_ns`.
EdgeLags both_lags(std::span<const std::int64_t> cost_ns, const LagView& one, const LagView& other);

}  // namespace traceap
