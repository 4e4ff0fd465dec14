#pragma once
// What each edge of a graph costs, from measured times. Private to simulation/.

#include <span>

#include "traceap/simulation/execution_graph.hpp"

namespace traceap {

/// Sets lag_ns and residual_ns of all edges, and which points are held; see the notes in lags.cpp.
/// `take_ns`: by rank what a fetch costs that finds its batch ready. O(points + edges).
void measure_lags(ExecutionGraph& graph, std::span<const GraphRank> ranks,
                  std::span<const std::int64_t> take_ns);

}  // namespace traceap
