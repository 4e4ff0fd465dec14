#pragma once
// In which order a graph is replayed, and the graph laid out in that order. Private to simulation/.

#include <vector>

#include "traceap/simulation/execution_graph.hpp"

namespace traceap {

/// Sets order, position and layout of a graph, by time; see Note [Order of time] in
/// replay_order.cpp. False where edges lead back in time or close a cycle: then none is set.
/// O(points + edges), and a logarithm for points that lie close together.
bool order_by_time(ExecutionGraph& graph);

/// The same from an order in which every source stands before its destinations. O(points + edges).
void use_order(ExecutionGraph& graph, std::vector<Point> order);

}  // namespace traceap
