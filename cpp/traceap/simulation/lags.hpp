#pragma once
// What each edge of a graph costs, from measured times. Private to simulation/.

#include <span>

#include "traceap/simulation/execution_graph.hpp"

namespace traceap {

/// Sets lag_ns and residual_ns of all edges; see Note [Lags] in lags.cpp. O(points + edges).
void measure_lags(ExecutionGraph& graph, std::span<const GraphRank> ranks);

}  // namespace traceap
