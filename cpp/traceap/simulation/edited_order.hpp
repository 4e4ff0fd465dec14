#pragma once
// In which order the points of an edited graph are replayed. Private to simulation/.

#include <cstdint>
#include <span>
#include <vector>

#include "traceap/simulation/execution_graph.hpp"

namespace traceap {

struct EditedOrder {
  std::vector<std::uint32_t> order;     ///< positions in graph.order; empty: as they are
  std::vector<std::uint32_t> left_out;  ///< added edges that close a cycle, ascending
};

/// `added` edges between positions on top of those of the graph whose slots are not `dropped`. See
/// Note [Edges that close a cycle] in edited_order.cpp. O(points + edges), and O(points) more for
/// each added edge against the order where they close a cycle.
EditedOrder order_with(const ExecutionGraph& graph, std::span<const PlainEdge> added,
                       std::span<const std::uint8_t> dropped);

}  // namespace traceap
