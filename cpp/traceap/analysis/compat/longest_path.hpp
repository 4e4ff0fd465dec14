#pragma once
// Longest weighted path of a directed graph, with ties settled by the order of nodes and edges.

#include <cstdint>
#include <span>
#include <vector>

namespace traceap {

struct WeightedEdge {
  std::uint32_t source, destination;
  std::int64_t weight;
};

struct LongestPath {
  std::vector<std::uint32_t> nodes;  ///< first to last; empty without nodes or with a cycle
  std::int64_t length = 0;           ///< sum of the weights
  bool is_acyclic = true;
};

/// Nodes are visited in topological generations, each in the order in which edges made its nodes
/// free; nodes of the first generation in the order in which `edges` names them. Of predecessors
/// with equal distance the one of the earliest edge wins, of ends with equal distance the one
/// visited first (networkx.dag_longest_path behaves so). A distance below 0 starts anew.
/// O(nodes + edges).
LongestPath find_longest_path(std::uint32_t nodes, std::span<const WeightedEdge> edges);

}  // namespace traceap
