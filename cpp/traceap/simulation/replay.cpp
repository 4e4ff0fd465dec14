#include "traceap/simulation/replay.hpp"

#include <algorithm>
#include <utility>

#include "traceap/base/error.hpp"
#include "traceap/base/interrupt.hpp"
#include "traceap/base/intervals.hpp"
#include "traceap/simulation/replayer.hpp"

namespace traceap {

std::vector<std::int64_t> replay(const ExecutionGraph& graph, const GraphDelta& delta,
                                 const ReplayOptions& options) {
  Replayer replayer(graph, options);
  replayer.edit(&delta);
  std::vector<std::int64_t> time_ns(graph.size());
  replayer.run(time_ns);
  return time_ns;
}

std::vector<std::int64_t> replay_chain(const ExecutionGraph& graph,
                                       std::span<const PlainEdge> carries, std::uint32_t copies,
                                       const GraphDelta& delta, const ReplayOptions& options) {
  check_edges(graph, carries);
  Replayer replayer(graph, options);
  replayer.edit(&delta);
  EdgesByDestination carried(graph.size());
  carried.assign({carries.begin(), carries.end()});
  std::vector<std::int64_t> time_ns(graph.size() * std::size_t{copies});
  const auto copy = [&](std::uint32_t i) {
    return std::span(time_ns).subspan(i * std::size_t{graph.size()}, graph.size());
  };
  if (copies > 0) replayer.run(copy(0));
  for (std::uint32_t i = 1; i < copies; ++i) replayer.run_behind(copy(i - 1), carried, copy(i));
  return time_ns;
}

std::vector<std::uint32_t> closing_edges(const ExecutionGraph& graph, const GraphDelta& delta) {
  check_delta(graph, delta);
  std::vector<std::uint8_t> dropped(graph.points.edges(), 0);
  for (const EdgeId edge : delta.dropped) dropped[edge] = 1;
  return order_with(graph, delta.added, dropped).left_out;
}

std::vector<EdgeId> binding_edges(const ExecutionGraph& graph,
                                  std::span<const std::int64_t> time_ns,
                                  const ReplayOptions& options) {
  if (time_ns.size() != graph.size()) throw SchemaError("one time for each point is needed");
  const DependencyGraph& points = graph.points;
  std::vector<EdgeId> binding(graph.size(), kNoEdge);
  for (Point point = 0; point < graph.size(); ++point) {
    poll_interrupt();
    std::int64_t latest = kNever;
    for (EdgeId e = points.in_offsets[point]; e < points.in_offsets[point + 1]; ++e) {
      std::int64_t reached = add_saturated(time_ns[points.source[e]], graph.lag_ns[e]);
      if (options.with_residuals) reached = add_saturated(reached, graph.residual_ns[e]);
      if (reached <= latest) continue;
      latest = reached;
      binding[point] = e;
    }
  }
  return binding;
}

}  // namespace traceap
