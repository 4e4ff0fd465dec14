// From points and dependencies to a graph that can be replayed.

#include "traceap/simulation/execution_graph.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "traceap/base/error.hpp"
#include "traceap/base/interrupt.hpp"
#include "traceap/base/intervals.hpp"
#include "traceap/base/offsets.hpp"
#include "traceap/simulation/lags.hpp"
#include "traceap/simulation/replay_order.hpp"
#include "traceap/simulation/resources.hpp"
#include "traceap/simulation/topological_order.hpp"
#include "traceap/simulation/worker_pace.hpp"

namespace traceap {
namespace {

void check_range(std::int64_t ns, std::int64_t least_ns, const std::string& what) {
  if (ns >= least_ns && ns <= kMaxTimeNs) return;
  throw SchemaError(what + ": from " + std::to_string(least_ns) + " to " +
                    std::to_string(kMaxTimeNs) + " ns were expected, not " + std::to_string(ns));
}

/// Leaves out the edges that `keep` refuses.
template <typename Keep>
void filter_edges(DependencyGraph& graph, Keep keep) {
  std::uint32_t kept = 0, edge = 0;
  for (Point p = 0; p < graph.size(); ++p) {
    poll_interrupt();
    const std::uint32_t last = graph.in_offsets[p + 1];
    for (; edge < last; ++edge) {
      if (!keep(edge)) continue;
      graph.source[kept] = graph.source[edge];
      graph.owner[kept] = graph.owner[edge];
      graph.kind[kept] = graph.kind[edge];
      graph.evidence[kept] = graph.evidence[edge];
      ++kept;
    }
    graph.in_offsets[p + 1] = kept;
  }
  graph.source.resize(kept);
  graph.owner.resize(kept);
  graph.kind.resize(kept);
  graph.evidence.resize(kept);
}

/// Edges of the given GPU dependencies; those that times contradict are counted instead.
std::vector<TypedEdge> tensor_edges(ExecutionGraph& graph,
                                    std::span<const GpuDependency> dependencies) {
  std::vector<TypedEdge> edges;
  for (const GpuDependency& d : dependencies) {
    if (d.rank >= graph.begin_of.size() || d.producer >= graph.end_of[d.rank].size() ||
        d.consumer >= graph.begin_of[d.rank].size()) {
      throw SchemaError("a dependency names an event outside the trace");
    }
    const Point source = graph.end_of[d.rank][d.producer];
    const Point destination = graph.begin_of[d.rank][d.consumer];
    if (source == kNoPoint || destination == kNoPoint || source == destination) continue;
    if (graph.points.time_ns[source] > graph.points.time_ns[destination]) {
      ++graph.contradicted;
      continue;
    }
    edges.push_back(
        {source, destination, d.consumer, DependencyKind::kTensor, Evidence::kExplicit});
  }
  return edges;
}

void index_rows(ExecutionGraph& graph, std::span<const GraphRank> ranks) {
  for (const GraphRank& rank : ranks) {
    graph.begin_of.emplace_back(rank.table->size(), kNoPoint);
    graph.end_of.emplace_back(rank.table->size(), kNoPoint);
  }
  for (Point p = 0; p < graph.size(); ++p) {
    poll_interrupt();
    const Row row = graph.points.row[p];
    if (row == kNoRow) continue;
    auto& of = graph.points.is_end[p] ? graph.end_of : graph.begin_of;
    Point& side = of[graph.points.lanes[graph.points.lane[p]].rank][row];
    if (side == kNoPoint) side = p;  // points within a row come later
  }
}

/// Is a row named after its number? Marks of steps were operators in traces before 2022.
bool is_numbered(EventKind kind, std::string_view name_without_number) {
  return kind == EventKind::kUserAnnotation ||
         (kind == EventKind::kCpuOp && name_without_number.ends_with('#'));
}

/// Names by id, where those of marks stand for all that differ in a number at their end:
/// "ProfilerStep#3" is the same mark as "ProfilerStep#4", in another step.
std::vector<StringId> names_without_numbers(const EventTable& table) {
  std::vector<StringId> names(table.strings.size());
  std::iota(names.begin(), names.end(), StringId{0});
  std::vector<std::uint8_t> seen(names.size(), 0);
  std::unordered_map<std::string_view, StringId> first;
  for (Row row = 0; row < table.size(); ++row) {
    poll_interrupt();
    const StringId id = table.name[row];
    if (std::exchange(seen[id], 1)) continue;
    std::string_view text = table.name_of(row);
    text = text.substr(0, text.find_last_not_of("0123456789") + 1);
    if (is_numbered(table.kind[row], text)) names[id] = first.emplace(text, id).first->second;
  }
  return names;
}

void name_points(ExecutionGraph& graph, std::span<const GraphRank> ranks) {
  std::vector<std::vector<StringId>> names;
  for (const GraphRank& rank : ranks) names.push_back(names_without_numbers(*rank.table));
  graph.name.assign(graph.size(), kNoString);
  for (Point p = 0; p < graph.size(); ++p) {
    poll_interrupt();
    const Row row = graph.points.row[p];
    if (row == kNoRow) continue;
    const std::uint32_t rank = graph.points.lanes[graph.points.lane[p]].rank;
    graph.name[p] = names[rank][ranks[rank].table->name[row]];
  }
}

/// Leaves out edges that close a cycle, the least certain first.
void drop_cycles(ExecutionGraph& graph) {
  std::vector<std::uint8_t> dropped;
  std::vector<Point> order = break_cycles(graph.points, dropped);
  graph.dropped_edges =
      static_cast<std::uint32_t>(std::count(dropped.begin(), dropped.end(), std::uint8_t{1}));
  if (graph.dropped_edges > 0) {
    filter_edges(graph.points, [&](std::uint32_t e) { return !dropped[e]; });
  }
  if (!order_by_time(graph)) use_order(graph, std::move(order));
}

}  // namespace

ExecutionGraph build_execution_graph(std::span<const GraphRank> ranks, const Meetings& meetings,
                                     const ExecutionOptions& options) {
  ExecutionGraph graph;
  graph.points = build_dependency_graph(ranks, meetings);
  index_rows(graph, ranks);
  const WorkerPace pace = worker_pace(graph, ranks);
  std::vector<TypedEdge> more = resource_edges(graph, ranks, options);
  for (const auto& edges : {tensor_edges(graph, options.dependencies), pace.edges}) {
    more.insert(more.end(), edges.begin(), edges.end());
  }
  insert_edges(graph.points, more);
  if (options.explicit_only) {
    filter_edges(graph.points,
                 [&](std::uint32_t e) { return graph.points.evidence[e] != Evidence::kAssumed; });
  }
  if (!order_by_time(graph)) drop_cycles(graph);
  name_points(graph, ranks);
  measure_lags(graph, ranks, pace.take_ns);
  return graph;
}

ExecutionGraph build_plain_graph(std::span<const std::int64_t> duration_ns,
                                 std::span<const PlainEdge> edges,
                                 std::span<const std::int64_t> start_ns) {
  const auto nodes = static_cast<Point>(duration_ns.size());
  if (!start_ns.empty() && start_ns.size() != duration_ns.size()) {
    throw SchemaError("a start for each node is needed, or none");
  }
  ExecutionGraph graph;
  DependencyGraph& points = graph.points;
  points.lanes.push_back({0, Lane::kThread, 0, 0, 2 * nodes});
  points.lane.assign(2 * std::size_t{nodes}, 0);
  CountingSort by_destination(2 * std::size_t{nodes});
  for (Point i = 0; i < nodes; ++i) {
    poll_interrupt();
    const std::int64_t start = start_ns.empty() ? 0 : start_ns[i];
    check_range(duration_ns[i], 0, "duration of node " + std::to_string(i));
    check_range(start, -kMaxTimeNs, "start of node " + std::to_string(i));
    points.time_ns.insert(points.time_ns.end(), {start, start + duration_ns[i]});
    points.row.insert(points.row.end(), {i, i});
    points.is_end.insert(points.is_end.end(), {0, 1});
    by_destination.count(2 * i + 1);
  }
  for (const PlainEdge& edge : edges) {
    if (edge.source >= 2 * nodes || edge.destination >= 2 * nodes) {
      throw SchemaError("an edge names a point outside the graph");
    }
    check_range(edge.lag_ns, -kMaxTimeNs, "lag of an edge");
    by_destination.count(edge.destination);
  }
  const std::size_t total = by_destination.start_placing();
  points.source.resize(total);
  points.owner.resize(total, kNoRow);
  points.kind.resize(total, DependencyKind::kProgramOrder);
  points.evidence.resize(total, Evidence::kExplicit);
  graph.lag_ns.resize(total);
  graph.residual_ns.assign(total, 0);
  const auto place = [&](Point source, Point destination, std::int64_t lag, DependencyKind kind) {
    const std::uint32_t at = by_destination.place(destination);
    points.source[at] = source;
    points.kind[at] = kind;
    graph.lag_ns[at] = lag;
  };
  for (Point i = 0; i < nodes; ++i)
    place(2 * i, 2 * i + 1, duration_ns[i], DependencyKind::kExecution);
  for (const PlainEdge& edge : edges) {
    place(edge.source, edge.destination, edge.lag_ns, DependencyKind::kProgramOrder);
  }
  points.in_offsets = by_destination.take_offsets();
  if (!order_by_time(graph)) {
    auto order = topological_order(points.in_offsets, points.source, {}, {});
    if (!order) throw SchemaError("the edges close a cycle");
    use_order(graph, std::move(*order));
  }
  graph.name.assign(graph.size(), kNoString);
  graph.held.assign(graph.size(), 0);
  return graph;
}

}  // namespace traceap
