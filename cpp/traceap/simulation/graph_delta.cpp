#include "traceap/simulation/graph_delta.hpp"

#include <algorithm>
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
  lags_ns.push_back(checked_lag_ns(lag_ns));
  edges.push_back(edge);
}

void GraphDelta::set_lags(const LagView& lags) {
  check_edge_numbers(lags.edges);
  std::int64_t least_ns = 0, most_ns = 0;
  for (const std::int64_t lag_ns : lags.lags_ns) {
    least_ns = std::min(least_ns, lag_ns);
    most_ns = std::max(most_ns, lag_ns);
  }
  checked_lag_ns(least_ns);
  checked_lag_ns(most_ns);
  lags_ns.insert(lags_ns.end(), lags.lags_ns.begin(), lags.lags_ns.end());
  const std::size_t before = edges.size();
  edges.resize(before + lags.edges.size());
  std::transform(lags.edges.begin(), lags.edges.end(), edges.data() + before,
                 [](std::int64_t edge) { return static_cast<EdgeId>(edge); });
}

void GraphDelta::add(Point source, Point destination, std::int64_t lag_ns) {
  added.push_back({source, destination, checked_lag_ns(lag_ns)});
}

void GraphDelta::carry(Point source, Point destination, std::int64_t lag_ns) {
  carried.push_back({source, destination, checked_lag_ns(lag_ns)});
}

void GraphDelta::join(const GraphDelta& other) {
  edges.insert(edges.end(), other.edges.begin(), other.edges.end());
  lags_ns.insert(lags_ns.end(), other.lags_ns.begin(), other.lags_ns.end());
  dropped.insert(dropped.end(), other.dropped.begin(), other.dropped.end());
  added.insert(added.end(), other.added.begin(), other.added.end());
  carried.insert(carried.end(), other.carried.begin(), other.carried.end());
}

void check_delta(const ExecutionGraph& graph, const GraphDelta& delta) {
  const auto check = [&](EdgeId edge) {
    if (edge < graph.points.edges()) return;
    throw SchemaError("edit: there is no edge " + std::to_string(edge));
  };
  for (const EdgeId edge : delta.edges) check(edge);
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
