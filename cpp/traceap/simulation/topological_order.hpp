#pragma once
// An order in which every source stands before its destinations. Private to simulation/.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "traceap/simulation/execution_graph.hpp"

namespace traceap {

/// Edges grouped by destination (`in_offsets`, `source`) plus further ones; edges that are
/// `dropped` (empty: none) don't count. Of points that are ready at once the lowest comes first.
/// Empty if there is a cycle. O(points + edges) and the ready points' heap.
std::optional<std::vector<Point>> topological_order(std::span<const std::uint32_t> in_offsets,
                                                    std::span<const Point> source,
                                                    std::span<const PlainEdge> added,
                                                    std::span<const std::uint8_t> dropped);

/// The same, but where there is a cycle edges are dropped, weakest evidence first, until there is
/// none; `dropped` says which.
std::vector<Point> break_cycles(const DependencyGraph& graph, std::vector<std::uint8_t>& dropped);

}  // namespace traceap
