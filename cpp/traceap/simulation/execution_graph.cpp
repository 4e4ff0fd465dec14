// What an edge costs.
//
// Note [Lags]: measured times say when things happened, not what they would have cost alone. An
// edge of work (a stretch of host code, a GPU event) costs what was measured, unless its end is the
// end of a wait: then the call costs what calls of its name cost when they need not wait, and the
// edge from what it waited for has the rest. An edge of order (launch, stream, wait) costs the
// typical latency of its kind on that rank: the median over those edges that alone explain when
// their point happened. What a point took beyond the latest of its edges stays on that edge as its
// residual, so that a replay with residuals gives back the measured times exactly.

#include "traceap/simulation/execution_graph.hpp"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "traceap/base/error.hpp"
#include "traceap/simulation/topological_order.hpp"

namespace traceap {
namespace {

using Kind = DependencyKind;

// A wait that began this long before the awaited work ended has really waited.
constexpr std::int64_t kWaitedNs = 1'000;
// Cost of a call that waits, where no call of its name returned at once.
constexpr std::int64_t kCallCostNs = 5'000;

bool is_order(Kind kind) {
  return kind == Kind::kLaunch || kind == Kind::kStreamOrder || kind == Kind::kStreamWait ||
         kind == Kind::kHostWait || kind == Kind::kDeviceOrder;
}
/// Edges whose destination may have been waiting for them while something else was "running".
bool ends_a_wait(Kind kind) {
  return kind == Kind::kHostWait || kind == Kind::kThreadJoin || kind == Kind::kRendezvous;
}

std::int64_t median(std::vector<std::int64_t>& values, std::int64_t otherwise) {
  if (values.empty()) return otherwise;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class LagMeasurer {
 public:
  LagMeasurer(ExecutionGraph& graph, std::span<const GraphRank> ranks)
      : graph_(graph), points_(graph.points), ranks_(ranks), gap_ns_(points_.edges()) {
    for (Point p = 0; p < points_.size(); ++p) {
      for (EdgeId e = points_.in_offsets[p]; e < points_.in_offsets[p + 1]; ++e) {
        gap_ns_[e] = points_.lag_ns(e, p);
      }
    }
  }

  void measure() {
    measure_call_costs();
    measure_latencies();
    graph_.lag_ns.resize(points_.edges());
    graph_.residual_ns.assign(points_.edges(), 0);
    for (Point p = 0; p < points_.size(); ++p) set_lags(p);
  }

 private:
  std::uint32_t rank_of(Point p) const { return points_.lanes[points_.lane[p]].rank; }
  StringId name_of(Point p) const { return ranks_[rank_of(p)].table->name[points_.row[p]]; }

  /// The edge of work that a wait may hide in: along the thread, or the GPU event itself.
  static bool is_work(Kind kind) { return kind == Kind::kProgramOrder || kind == Kind::kExecution; }

  /// Did a point wait, in that an awaited source happened after the point's own work had begun?
  bool has_waited(Point p) const {
    std::int64_t began = kNoId, awaited = kNoId;
    for (EdgeId e = points_.in_offsets[p]; e < points_.in_offsets[p + 1]; ++e) {
      const std::int64_t source_ns = points_.time_ns[points_.source[e]];
      if (is_work(points_.kind[e])) began = std::max(began, source_ns);
      if (ends_a_wait(points_.kind[e])) awaited = std::max(awaited, source_ns);
    }
    return began != kNoId && awaited != kNoId && awaited > began + kWaitedNs;
  }

  static std::uint64_t key(std::uint32_t rank, StringId name) {
    return (std::uint64_t{rank} << 32) | name;
  }

  /// Median length of a stretch that ends a call of a name without waiting. See Note [Lags].
  void measure_call_costs() {
    std::unordered_map<std::uint64_t, std::vector<std::int64_t>> lengths;
    for (Point p = 0; p < points_.size(); ++p) {
      if (!points_.is_end[p] || points_.row[p] == kNoRow || !is_call(p) || has_waited(p)) continue;
      for (EdgeId e = points_.in_offsets[p]; e < points_.in_offsets[p + 1]; ++e) {
        if (points_.kind[e] == Kind::kProgramOrder) {
          lengths[key(rank_of(p), name_of(p))].push_back(gap_ns_[e]);
        }
      }
    }
    for (auto& [name, values] : lengths) call_cost_ns_[name] = median(values, kCallCostNs);
  }
  bool is_call(Point p) const {
    return is_api_call(ranks_[rank_of(p)].table->kind[points_.row[p]]);
  }

  /// Per rank and kind, over edges that alone explain their point: no other source is as late.
  void measure_latencies() {
    std::vector<std::array<std::vector<std::int64_t>, kDependencyKindCount>> found(ranks_.size());
    for (Point p = 0; p < points_.size(); ++p) {
      const EdgeId latest = latest_source(p);
      if (latest == kNoEdge || !is_order(points_.kind[latest])) continue;
      found[rank_of(p)][static_cast<std::size_t>(points_.kind[latest])].push_back(gap_ns_[latest]);
    }
    latency_ns_.resize(ranks_.size());
    for (std::size_t r = 0; r < found.size(); ++r) {
      for (std::size_t k = 0; k < found[r].size(); ++k) latency_ns_[r][k] = median(found[r][k], 0);
    }
  }
  EdgeId latest_source(Point p) const {
    EdgeId latest = kNoEdge;
    for (EdgeId e = points_.in_offsets[p]; e < points_.in_offsets[p + 1]; ++e) {
      if (latest == kNoEdge || gap_ns_[e] < gap_ns_[latest]) latest = e;
    }
    return latest;
  }

  void set_lags(Point p) {
    const bool waited = has_waited(p);
    EdgeId binding = kNoEdge;
    std::int64_t reached = kNoId;
    for (EdgeId e = points_.in_offsets[p]; e < points_.in_offsets[p + 1]; ++e) {
      graph_.lag_ns[e] = std::min(gap_ns_[e], typical(e, p, waited));
      const std::int64_t at = points_.time_ns[points_.source[e]] + graph_.lag_ns[e];
      if (binding != kNoEdge && at <= reached) continue;
      binding = e;
      reached = at;
    }
    if (binding != kNoEdge) graph_.residual_ns[binding] = points_.time_ns[p] - reached;
  }

  std::int64_t typical(EdgeId e, Point p, bool waited) const {
    const Kind kind = points_.kind[e];
    if (is_work(kind)) return waited ? cost_without_wait(e, p) : gap_ns_[e];
    if (kind == Kind::kRendezvous) {
      return points_.row[p] == kNoRow ? 0 : gap_ns_[e];  // to the meeting point: at once
    }
    if (!is_order(kind)) return gap_ns_[e];
    return latency_ns_[rank_of(p)][static_cast<std::size_t>(kind)];
  }

  /// A collective that meets others has no work before the meeting; a call has that of its name.
  std::int64_t cost_without_wait(EdgeId e, Point p) const {
    if (points_.kind[e] == Kind::kExecution || points_.row[p] == kNoRow) return 0;
    const auto found = call_cost_ns_.find(key(rank_of(p), name_of(p)));
    return found == call_cost_ns_.end() ? kCallCostNs : found->second;
  }

  ExecutionGraph& graph_;
  const DependencyGraph& points_;
  std::span<const GraphRank> ranks_;
  std::vector<std::int64_t> gap_ns_;  // by edge: measured time between its points
  std::unordered_map<std::uint64_t, std::int64_t> call_cost_ns_;
  std::vector<std::array<std::int64_t, kDependencyKindCount>> latency_ns_;  // by rank
};

/// Leaves out the edges that `keep` refuses.
template <typename Keep>
void filter_edges(DependencyGraph& graph, Keep keep) {
  std::uint32_t kept = 0, edge = 0;
  for (Point p = 0; p < graph.size(); ++p) {
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

void index_rows(ExecutionGraph& graph, std::span<const GraphRank> ranks) {
  for (const GraphRank& rank : ranks) {
    graph.begin_of.emplace_back(rank.table->size(), kNoPoint);
    graph.end_of.emplace_back(rank.table->size(), kNoPoint);
  }
  for (Point p = 0; p < graph.size(); ++p) {
    const Row row = graph.points.row[p];
    if (row == kNoRow) continue;
    auto& of = graph.points.is_end[p] ? graph.end_of : graph.begin_of;
    of[graph.points.lanes[graph.points.lane[p]].rank][row] = p;
  }
}

void set_order(ExecutionGraph& graph, std::vector<Point> order) {
  graph.order = std::move(order);
  graph.position.resize(graph.size());
  for (std::uint32_t i = 0; i < graph.order.size(); ++i) graph.position[graph.order[i]] = i;
}

}  // namespace

ExecutionGraph build_execution_graph(std::span<const GraphRank> ranks,
                                     std::span<const CollectiveMembers> collectives,
                                     const ExecutionOptions& options) {
  ExecutionGraph graph;
  graph.points = build_dependency_graph(ranks, collectives);
  if (options.explicit_only) {
    filter_edges(graph.points,
                 [&](std::uint32_t e) { return graph.points.evidence[e] != Evidence::kAssumed; });
  }
  std::vector<std::uint8_t> dropped;
  std::vector<Point> order = break_cycles(graph.points, dropped);
  graph.dropped_edges =
      static_cast<std::uint32_t>(std::count(dropped.begin(), dropped.end(), std::uint8_t{1}));
  if (graph.dropped_edges > 0) {
    filter_edges(graph.points, [&](std::uint32_t e) { return !dropped[e]; });
  }
  set_order(graph, std::move(order));
  index_rows(graph, ranks);
  LagMeasurer(graph, ranks).measure();
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
  std::vector<std::uint32_t> count(2 * std::size_t{nodes} + 1, 0);
  for (Point i = 0; i < nodes; ++i) {
    if (duration_ns[i] < 0) throw SchemaError("node " + std::to_string(i) + ": negative duration");
    const std::int64_t start = start_ns.empty() ? 0 : start_ns[i];
    points.time_ns.insert(points.time_ns.end(), {start, start + duration_ns[i]});
    points.row.insert(points.row.end(), {i, i});
    points.is_end.insert(points.is_end.end(), {0, 1});
    ++count[2 * i + 1 + 1];
  }
  for (const PlainEdge& edge : edges) {
    if (edge.source >= 2 * nodes || edge.destination >= 2 * nodes) {
      throw SchemaError("an edge names a point outside the graph");
    }
    ++count[edge.destination + 1];
  }
  for (std::size_t i = 1; i < count.size(); ++i) count[i] += count[i - 1];
  points.in_offsets = count;
  const std::size_t total = nodes + edges.size();
  points.source.resize(total);
  points.owner.resize(total, kNoRow);
  points.kind.resize(total, Kind::kProgramOrder);
  points.evidence.resize(total, Evidence::kExplicit);
  graph.lag_ns.resize(total);
  graph.residual_ns.assign(total, 0);
  const auto place = [&](Point source, Point destination, std::int64_t lag, Kind kind) {
    const std::uint32_t at = count[destination]++;
    points.source[at] = source;
    points.kind[at] = kind;
    graph.lag_ns[at] = lag;
  };
  for (Point i = 0; i < nodes; ++i) place(2 * i, 2 * i + 1, duration_ns[i], Kind::kExecution);
  for (const PlainEdge& edge : edges) {
    place(edge.source, edge.destination, edge.lag_ns, Kind::kProgramOrder);
  }
  auto order = topological_order(points.in_offsets, points.source, {}, {});
  if (!order) throw SchemaError("the edges close a cycle");
  set_order(graph, std::move(*order));
  return graph;
}

}  // namespace traceap
