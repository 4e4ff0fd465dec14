#include "traceap/simulation/graph_delta.hpp"

#include <string>

#include "traceap/base/error.hpp"
#include "traceap/base/intervals.hpp"

namespace traceap {
namespace {

std::int64_t checked_lag_ns(std::int64_t lag_ns) {
  if (lag_ns >= -kMaxTimeNs && lag_ns <= kMaxTimeNs) return lag_ns;
  throw SchemaError("edit: a lag of at most " + std::to_string(kMaxTimeNs) +
                    " ns was expected, either way, not of " + std::to_string(lag_ns) + " ns");
}

}  // namespace

void GraphDelta::set_lag(EdgeId edge, std::int64_t lag_ns) {
  lags.emplace_back(edge, checked_lag_ns(lag_ns));
}

void GraphDelta::add(Point source, Point destination, std::int64_t lag_ns) {
  added.push_back({source, destination, checked_lag_ns(lag_ns)});
}

void GraphDelta::carry(Point source, Point destination, std::int64_t lag_ns) {
  carried.push_back({source, destination, checked_lag_ns(lag_ns)});
}

void GraphDelta::join(const GraphDelta& other) {
  lags.insert(lags.end(), other.lags.begin(), other.lags.end());
  dropped.insert(dropped.end(), other.dropped.begin(), other.dropped.end());
  added.insert(added.end(), other.added.begin(), other.added.end());
  carried.insert(carried.end(), other.carried.begin(), other.carried.end());
}

void check_delta(const ExecutionGraph& graph, const GraphDelta& delta) {
  const auto check = [&](EdgeId edge) {
    if (edge < graph.points.edges()) return;
    throw SchemaError("edit: there is no edge " + std::to_string(edge));
  };
  for (const auto& [edge, lag_ns] : delta.lags) check(edge);
  for (const EdgeId edge : delta.dropped) check(edge);
  check_edges(graph, delta.added);
  check_edges(graph, delta.carried);
}

void check_edges(const ExecutionGraph& graph, std::span<const PlainEdge> edges) {
  for (const PlainEdge& edge : edges) {
    if (edge.source < graph.size() && edge.destination < graph.size()) continue;
    throw SchemaError("edit: an added edge names a point outside the graph");
  }
}

}  // namespace traceap
