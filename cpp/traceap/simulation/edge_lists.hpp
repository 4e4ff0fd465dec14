#pragma once
// Edges by the points that they lead to or start at.

#include <cstdint>
#include <span>
#include <vector>

#include "traceap/analysis/dependencies/dependency_graph.hpp"

namespace traceap {

/// Edges of some kinds that lead to points, of each point once, in order. Bit k of `kinds` stands
/// for DependencyKind k. O(points + edges), O(points log points) more where they don't ascend.
/// Throws SchemaError for what is no number of a point.
std::vector<std::int64_t> edges_into(const DependencyGraph& graph,
                                     std::span<const std::int64_t> points, std::uint32_t kinds);

/// By edge: the point that it leads to.
std::vector<Point> destinations(const DependencyGraph& graph);

/// Edges of point p: edges[offsets[p]] to edges[offsets[p + 1]].
struct EdgesBySource {
  std::vector<std::int64_t> offsets;  ///< points + 1
  std::vector<std::int64_t> edges;
};
EdgesBySource edges_by_source(const DependencyGraph& graph);

}  // namespace traceap
