#pragma once
// Iterations of a serving engine, by the annotations that the engine leaves in a trace.

#include <vector>

#include "traceap/tree/event_tree.hpp"

namespace traceap {

/// Annotations of the thread that has most of them, by start. Where annotations nest, as in traces
/// that were split by a tool, the innermost ones count. O(n).
std::vector<Row> find_iterations(const EventTable& table, const EventTree& tree);

}  // namespace traceap
