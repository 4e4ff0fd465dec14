#pragma once
// Limits of the machine as edges: queues of launches, copy engines, the inside of captured graphs.
// Private to simulation/.

#include <cstdint>
#include <span>
#include <vector>

#include "traceap/simulation/execution_graph.hpp"

namespace traceap {

struct TypedEdge {
  Point source, destination;
  Row owner;
  DependencyKind kind;
  Evidence evidence;
};

/// Edges that the calls and events of all ranks show. All lead forward in time. O(n log n).
std::vector<TypedEdge> resource_edges(const ExecutionGraph& graph, std::span<const GraphRank> ranks,
                                      const ExecutionOptions& options);

/// Puts edges among those of a graph, behind the ones that lead to the same point.
void insert_edges(DependencyGraph& graph, std::span<const TypedEdge> edges);

}  // namespace traceap
