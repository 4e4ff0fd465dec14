#pragma once
// How fast worker processes of a loader deliver batches, as edges. Private to simulation/.

#include <cstdint>
#include <span>
#include <vector>

#include "traceap/simulation/execution_graph.hpp"
#include "traceap/simulation/resources.hpp"

namespace traceap {

struct WorkerPace {
  std::vector<TypedEdge> edges;       ///< the owner is the fetch that waited
  std::vector<std::int64_t> take_ns;  ///< by rank: what a fetch costs that finds its batch ready
};

/// See Note [Worker pace] in worker_pace.cpp. O(rows).
WorkerPace worker_pace(const ExecutionGraph& graph, std::span<const GraphRank> ranks);

}  // namespace traceap
