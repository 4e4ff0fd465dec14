#pragma once
// Acyclic graphs of plain nodes, for tests of the engine.

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "traceap/simulation/execution_graph.hpp"

namespace traceap {

/// Random acyclic nodes and edges.
struct RandomGraph {
  std::vector<std::int64_t> durations;
  std::vector<PlainEdge> edges;

  explicit RandomGraph(unsigned seed, Point nodes = 200) {
    std::mt19937 random(seed);
    const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
    for (Point i = 0; i < nodes; ++i) durations.push_back(below(1000));
    for (Point i = 1; i < nodes; ++i) {
      edges.push_back({2 * (i - 1 - below(std::min<Point>(i, 8))) + 1, 2 * i, below(50)});
      if (below(2)) edges.push_back({2 * below(i), 2 * i, below(20)});
    }
  }
  /// The longest path to each node's end, by its definition.
  std::vector<std::int64_t> longest_paths() const {
    std::vector<std::int64_t> time(2 * durations.size(), 0);
    for (Point i = 0; i < durations.size(); ++i) {
      for (const PlainEdge& e : edges) {
        if (e.destination == 2 * i) time[2 * i] = std::max(time[2 * i], time[e.source] + e.lag_ns);
      }
      time[2 * i + 1] = time[2 * i] + durations[i];
    }
    return time;
  }
};

}  // namespace traceap
