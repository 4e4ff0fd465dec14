#include "traceap/simulation/graph_parts.hpp"

#include <string>

#include "traceap/base/error.hpp"
#include "traceap/base/interrupt.hpp"
#include "traceap/base/intervals.hpp"
#include "traceap/base/offsets.hpp"
#include "traceap/simulation/replay.hpp"
#include "traceap/simulation/replay_order.hpp"
#include "traceap/simulation/topological_order.hpp"

namespace traceap {
namespace {

void check_length(std::size_t length, std::size_t wanted, const char* what) {
  if (length == wanted) return;
  throw SchemaError(std::string(what) + ": " + std::to_string(wanted) + " were expected, not " +
                    std::to_string(length));
}

void check_below(std::uint64_t value, std::uint64_t end, const char* what) {
  if (value < end) return;
  throw SchemaError(std::string(what) + ": there is no " + std::to_string(value) + ", there are " +
                    std::to_string(end));
}

void check_time(std::int64_t ns, const char* what) {
  if (ns >= -kMaxTimeNs && ns <= kMaxTimeNs) return;
  throw SchemaError(std::string(what) + ": at most " + std::to_string(kMaxTimeNs) +
                    " ns either way were expected, not " + std::to_string(ns));
}

void check_lengths(const GraphParts& parts) {
  const std::size_t lanes = parts.lane_rank.size(), points = parts.time_ns.size();
  check_length(parts.lane_index.size(), lanes, "lane_index");
  check_length(parts.lane_kind.size(), lanes, "lane_kind");
  check_length(parts.lane.size(), points, "lane");
  check_length(parts.row.size(), points, "row");
  check_length(parts.is_end.size(), points, "is_end");
  check_length(parts.held.size(), points, "held");
  check_length(parts.name.size(), points, "name");
  if (points >= kNoPoint) throw SchemaError("a graph has at most 4294967294 points");
  const std::size_t edges = parts.source.size();
  check_length(parts.destination.size(), edges, "destination");
  check_length(parts.kind.size(), edges, "kind");
  check_length(parts.evidence.size(), edges, "evidence");
  check_length(parts.owner.size(), edges, "owner");
  check_length(parts.lag_ns.size(), edges, "lag_ns");
  check_length(parts.residual_ns.size(), edges, "residual_ns");
  if (edges >= kNoEdge) throw SchemaError("a graph has at most 4294967294 edges");
}

void add_lanes(const GraphParts& parts, DependencyGraph& points) {
  for (std::size_t i = 0; i < parts.lane_rank.size(); ++i) {
    check_below(parts.lane_rank[i], parts.rows.size(), "lane_rank");
    check_below(parts.lane_kind[i], std::size_t{Lane::kCollectives} + 1, "lane_kind");
    points.lanes.push_back({parts.lane_rank[i], static_cast<Lane::Kind>(parts.lane_kind[i]),
                            parts.lane_index[i], 0, 0});
  }
}

/// The only point of its lane: one within a row, which has its sides elsewhere.
bool is_alone(const GraphParts& parts, Point p) {
  const auto& lane = parts.lane;
  return (p == 0 || lane[p - 1] != lane[p]) && (p + 1 == lane.size() || lane[p + 1] != lane[p]);
}

void add_points(const GraphParts& parts, ExecutionGraph& graph) {
  DependencyGraph& points = graph.points;
  for (const std::uint32_t rows : parts.rows) {
    graph.begin_of.emplace_back(rows, kNoPoint);
    graph.end_of.emplace_back(rows, kNoPoint);
  }
  std::uint32_t lane = 0;
  for (Point p = 0; p < parts.time_ns.size(); ++p) {
    poll_interrupt();
    check_time(parts.time_ns[p], "time_ns");
    check_below(parts.lane[p], points.lanes.size(), "lane");
    if (parts.lane[p] < lane) throw SchemaError("lane: the points of a lane stand together");
    for (; lane < parts.lane[p]; ++lane) points.lanes[lane].end = points.lanes[lane + 1].begin = p;
    if (parts.row[p] == kNoRow) continue;
    const std::uint32_t rank = points.lanes[lane].rank;
    check_below(parts.row[p], parts.rows[rank], "row");
    Point& side = (parts.is_end[p] ? graph.end_of : graph.begin_of)[rank][parts.row[p]];
    if (side == kNoPoint) {
      side = p;
    } else if (!is_alone(parts, p)) {
      throw SchemaError("row: two points for one side of a row");
    }
  }
  const auto size = static_cast<Point>(parts.time_ns.size());
  for (; lane < points.lanes.size(); ++lane) {
    points.lanes[lane].end = size;
    if (lane + 1 < points.lanes.size()) points.lanes[lane + 1].begin = size;
  }
  points.time_ns.assign(parts.time_ns.begin(), parts.time_ns.end());
  points.lane.assign(parts.lane.begin(), parts.lane.end());
  points.row.assign(parts.row.begin(), parts.row.end());
  graph.name.assign(parts.name.begin(), parts.name.end());
  for (const std::uint8_t is_end : parts.is_end) points.is_end.push_back(is_end != 0 ? 1 : 0);
  for (const std::uint8_t held : parts.held) graph.held.push_back(held != 0 ? 1 : 0);
}

void add_edges(const GraphParts& parts, ExecutionGraph& graph) {
  DependencyGraph& points = graph.points;
  CountingSort by_destination(points.size());
  for (std::size_t e = 0; e < parts.source.size(); ++e) {
    poll_interrupt();
    check_below(parts.source[e], points.size(), "source");
    check_below(parts.destination[e], points.size(), "destination");
    check_below(parts.kind[e], kDependencyKindCount, "kind");
    check_below(parts.evidence[e], kEvidenceCount, "evidence");
    check_time(parts.lag_ns[e], "lag_ns");
    check_time(parts.residual_ns[e], "residual_ns");
    by_destination.count(parts.destination[e]);
  }
  const std::size_t total = by_destination.start_placing();
  points.source.resize(total);
  points.owner.resize(total);
  points.kind.resize(total);
  points.evidence.resize(total);
  graph.lag_ns.resize(total);
  graph.residual_ns.resize(total);
  for (std::size_t e = 0; e < parts.source.size(); ++e) {
    const std::uint32_t at = by_destination.place(parts.destination[e]);
    points.source[at] = parts.source[e];
    points.owner[at] = parts.owner[e];
    points.kind[at] = static_cast<DependencyKind>(parts.kind[e]);
    points.evidence[at] = static_cast<Evidence>(parts.evidence[e]);
    graph.lag_ns[at] = parts.lag_ns[e];
    graph.residual_ns[at] = parts.residual_ns[e];
  }
  points.in_offsets = by_destination.take_offsets();
}

}  // namespace

ExecutionGraph build_graph(const GraphParts& parts) {
  check_lengths(parts);
  ExecutionGraph graph;
  add_lanes(parts, graph.points);
  add_points(parts, graph);
  add_edges(parts, graph);
  auto order = topological_order(graph.points.in_offsets, graph.points.source, {}, {});
  if (!order) throw SchemaError("the edges close a cycle");
  use_order(graph, *order);
  graph.points.time_ns = replay(graph);
  if (!order_by_time(graph)) use_order(graph, std::move(*order));
  return graph;
}

}  // namespace traceap
