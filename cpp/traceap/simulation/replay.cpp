#include "traceap/simulation/replay.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "traceap/base/error.hpp"
#include "traceap/base/interrupt.hpp"
#include "traceap/base/intervals.hpp"
#include "traceap/simulation/replayer.hpp"

namespace traceap {
namespace {

/// Times by position to times by point.
void place(const ExecutionGraph& graph, std::span<const std::int64_t> by_position,
           std::span<std::int64_t> by_point) {
  for (std::size_t i = 0; i < by_position.size(); ++i) by_point[graph.order[i]] = by_position[i];
}

}  // namespace

std::vector<std::int64_t> replay(const ExecutionGraph& graph, const GraphDelta& delta,
                                 const ReplayOptions& options) {
  Replayer replayer(graph, options);
  replayer.edit(&delta);
  std::vector<std::int64_t> by_position(graph.size()), time_ns(graph.size());
  run_passes(std::array{Pass{&replayer, by_position, {}}}, EdgesByDestination(graph));
  place(graph, by_position, time_ns);
  return time_ns;
}

std::vector<std::int64_t> replay_chain(const ExecutionGraph& graph,
                                       std::span<const PlainEdge> carries, std::uint32_t copies,
                                       const GraphDelta& delta, const ReplayOptions& options) {
  check_edges(graph, carries);
  Replayer replayer(graph, options);
  replayer.edit(&delta);
  EdgesByDestination carried(graph);
  carried.assign_points(carries);
  std::vector<std::int64_t> now(graph.size()), before(graph.size());
  std::vector<std::int64_t> time_ns(graph.size() * std::size_t{copies});
  for (std::uint32_t copy = 0; copy < copies; ++copy) {
    std::swap(now, before);
    const auto behind = copy == 0 ? std::span<std::int64_t>() : std::span(before);
    run_passes(std::array{Pass{&replayer, now, behind, copy}}, carried);
    const std::size_t first = copy * std::size_t{graph.size()};
    place(graph, now, std::span(time_ns).subspan(first, graph.size()));
  }
  return time_ns;
}

std::vector<std::uint32_t> closing_edges(const ExecutionGraph& graph, const GraphDelta& delta) {
  check_delta(graph, delta);
  return order_with(graph, edges_by_position(graph, delta.added), slots_of(graph, delta.dropped))
      .left_out;
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
