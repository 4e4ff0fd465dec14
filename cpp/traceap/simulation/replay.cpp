#include "traceap/simulation/replay.hpp"

#include <algorithm>
#include <string>

#include "traceap/base/error.hpp"
#include "traceap/base/interrupt.hpp"
#include "traceap/base/intervals.hpp"
#include "traceap/base/sums.hpp"
#include "traceap/simulation/topological_order.hpp"

namespace traceap {
namespace {

constexpr std::int64_t kDropped = kNever;

/// When a dependency is met: long chains of long lags stop at the ends of 64 bits. Never kNever.
std::int64_t reached_ns(std::int64_t source_ns, std::int64_t lag_ns) {
  return std::max(add_saturated(source_ns, lag_ns), kNever + 1);
}

std::int64_t checked_lag_ns(std::int64_t lag_ns) {
  if (lag_ns >= -kMaxTimeNs && lag_ns <= kMaxTimeNs) return lag_ns;
  throw SchemaError("edit: a lag of at most " + std::to_string(kMaxTimeNs) +
                    " ns was expected, either way, not of " + std::to_string(lag_ns) + " ns");
}

/// Lag of every edge with the edit's changes; kDropped for edges that are gone.
std::vector<std::int64_t> edited_lags(const ExecutionGraph& graph, const GraphDelta& delta,
                                      const ReplayOptions& options) {
  std::vector<std::int64_t> lags(graph.lag_ns);
  if (options.with_residuals) {
    for (std::size_t e = 0; e < lags.size(); ++e) add_to(lags[e], graph.residual_ns[e]);
  }
  const auto check = [&](EdgeId edge) {
    if (edge >= lags.size()) throw SchemaError("edit: there is no edge " + std::to_string(edge));
  };
  for (const auto& [edge, lag_ns] : delta.lags) {
    check(edge);
    lags[edge] = lag_ns;
  }
  for (const EdgeId edge : delta.dropped) {
    check(edge);
    lags[edge] = kDropped;
  }
  return lags;
}

/// Added edges by destination, each list in the order in which they were added.
class AddedEdges {
 public:
  AddedEdges() = default;
  AddedEdges(const ExecutionGraph& graph, std::span<const PlainEdge> added)
      : edges_(added.begin(), added.end()) {
    for (const PlainEdge& edge : edges_) {
      if (edge.source >= graph.size() || edge.destination >= graph.size()) {
        throw SchemaError("edit: an added edge names a point outside the graph");
      }
      in_order_ = in_order_ && graph.position[edge.source] < graph.position[edge.destination];
    }
    std::stable_sort(edges_.begin(), edges_.end(), [](const PlainEdge& a, const PlainEdge& b) {
      return a.destination < b.destination;
    });
  }
  bool empty() const { return edges_.empty(); }
  bool fit_the_order() const { return in_order_; }
  std::span<const PlainEdge> edges() const { return edges_; }

  template <typename Visit>
  void to(Point destination, Visit visit) const {
    auto it = std::lower_bound(
        edges_.begin(), edges_.end(), destination,
        [](const PlainEdge& edge, Point point) { return edge.destination < point; });
    for (; it != edges_.end() && it->destination == destination; ++it) visit(*it);
  }

 private:
  std::vector<PlainEdge> edges_;
  bool in_order_ = true;
};

/// A graph with an edit, ready to be replayed.
class Replayer {
 public:
  Replayer(const ExecutionGraph& graph, const GraphDelta& delta, const ReplayOptions& options)
      : graph_(graph), lags_(edited_lags(graph, delta, options)), added_(graph, delta.added) {
    if (!added_.fit_the_order()) reorder();
  }

  /// `time_ns` holds when points happen that nothing leads to.
  void run(std::span<std::int64_t> time_ns) const {
    for (const Point point : order()) {
      poll_interrupt();
      const std::int64_t latest = latest_source(point, time_ns);
      if (latest != kDropped) time_ns[point] = latest;
    }
  }

  /// One more copy behind the one at `before`.
  void run_behind(std::span<const std::int64_t> before, const AddedEdges& carries,
                  std::span<std::int64_t> time_ns) const {
    for (const Point point : order()) {
      poll_interrupt();
      std::int64_t latest = kNever;
      const auto reach = [&](std::int64_t source_ns, std::int64_t lag_ns) {
        if (source_ns != kNever) latest = std::max(latest, reached_ns(source_ns, lag_ns));
      };
      const DependencyGraph& points = graph_.points;
      for (EdgeId e = points.in_offsets[point]; e < points.in_offsets[point + 1]; ++e) {
        if (lags_[e] != kDropped) reach(time_ns[points.source[e]], lags_[e]);
      }
      added_.to(point, [&](const PlainEdge& e) { reach(time_ns[e.source], e.lag_ns); });
      carries.to(point, [&](const PlainEdge& e) { reach(before[e.source], e.lag_ns); });
      time_ns[point] = latest;
    }
  }

 private:
  const std::vector<Point>& order() const { return reordered_.empty() ? graph_.order : reordered_; }

  std::int64_t latest_source(Point point, std::span<const std::int64_t> time_ns) const {
    const DependencyGraph& points = graph_.points;
    std::int64_t latest = kDropped;
    for (EdgeId e = points.in_offsets[point]; e < points.in_offsets[point + 1]; ++e) {
      if (lags_[e] != kDropped)
        latest = std::max(latest, reached_ns(time_ns[points.source[e]], lags_[e]));
    }
    if (!added_.empty()) {
      added_.to(point, [&](const PlainEdge& edge) {
        latest = std::max(latest, reached_ns(time_ns[edge.source], edge.lag_ns));
      });
    }
    return latest;
  }

  void reorder() {
    std::vector<std::uint8_t> dropped(lags_.size());
    for (std::size_t e = 0; e < lags_.size(); ++e) dropped[e] = lags_[e] == kDropped;
    auto order =
        topological_order(graph_.points.in_offsets, graph_.points.source, added_.edges(), dropped);
    if (!order) throw SchemaError("edit: the added edges close a cycle");
    reordered_ = std::move(*order);
  }

  const ExecutionGraph& graph_;
  std::vector<std::int64_t> lags_;
  AddedEdges added_;
  std::vector<Point> reordered_;
};

}  // namespace

void GraphDelta::set_lag(EdgeId edge, std::int64_t lag_ns) {
  lags.emplace_back(edge, checked_lag_ns(lag_ns));
}

void GraphDelta::add(Point source, Point destination, std::int64_t lag_ns) {
  added.push_back({source, destination, checked_lag_ns(lag_ns)});
}

void GraphDelta::join(const GraphDelta& other) {
  lags.insert(lags.end(), other.lags.begin(), other.lags.end());
  dropped.insert(dropped.end(), other.dropped.begin(), other.dropped.end());
  added.insert(added.end(), other.added.begin(), other.added.end());
}

std::vector<std::int64_t> replay(const ExecutionGraph& graph, const GraphDelta& delta,
                                 const ReplayOptions& options) {
  std::vector<std::int64_t> time_ns = graph.points.time_ns;
  Replayer(graph, delta, options).run(time_ns);
  return time_ns;
}

std::vector<std::int64_t> replay_chain(const ExecutionGraph& graph,
                                       std::span<const PlainEdge> carries, std::uint32_t copies,
                                       const GraphDelta& delta, const ReplayOptions& options) {
  const Replayer replayer(graph, delta, options);
  const AddedEdges carried(graph, carries);
  std::vector<std::int64_t> time_ns = graph.points.time_ns;
  time_ns.resize(graph.size() * std::size_t{copies});
  const auto copy = [&](std::uint32_t i) {
    return std::span(time_ns).subspan(i * std::size_t{graph.size()}, graph.size());
  };
  if (copies > 0) replayer.run(copy(0));
  for (std::uint32_t i = 1; i < copies; ++i) replayer.run_behind(copy(i - 1), carried, copy(i));
  return time_ns;
}

std::vector<EdgeId> binding_edges(const ExecutionGraph& graph,
                                  std::span<const std::int64_t> time_ns,
                                  const ReplayOptions& options) {
  if (time_ns.size() != graph.size()) throw SchemaError("one time for each point is needed");
  const std::vector<std::int64_t> lags = edited_lags(graph, {}, options);
  const DependencyGraph& points = graph.points;
  std::vector<EdgeId> binding(graph.size(), kNoEdge);
  for (Point point = 0; point < graph.size(); ++point) {
    poll_interrupt();
    std::int64_t latest = kDropped;
    for (EdgeId e = points.in_offsets[point]; e < points.in_offsets[point + 1]; ++e) {
      const std::int64_t reached = reached_ns(time_ns[points.source[e]], lags[e]);
      if (reached <= latest) continue;
      latest = reached;
      binding[point] = e;
    }
  }
  return binding;
}

}  // namespace traceap
