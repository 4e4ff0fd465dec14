#pragma once
// What the edges of each step would cost, judged by the other steps alone.

#include <cstdint>
#include <span>
#include <vector>

#include "traceap/simulation/execution_graph.hpp"

namespace traceap {

/// By edge: its cost in ns (lag and residual), where it leads into a step the mean cost of the same
/// edge in the rank's other steps. See Note [The same edge] in held_out.cpp. `step_of` has the step
/// of each point, below `steps`, or kNoStep. O(points + edges). Throws SchemaError for steps that
/// are not there.
std::vector<std::int64_t> held_out_lags(const ExecutionGraph& graph,
                                        std::span<const std::uint32_t> step_of,
                                        std::uint32_t steps);

}  // namespace traceap
