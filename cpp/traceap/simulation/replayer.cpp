#include "traceap/simulation/replayer.hpp"

#include <algorithm>
#include <utility>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/intervals.hpp"

namespace traceap {
namespace {

constexpr std::int64_t kDropped = kNever;

/// When a dependency is met: long chains of long lags stop at the ends of 64 bits. Never kNever.
std::int64_t reached_ns(std::int64_t source_ns, std::int64_t lag_ns) {
  return std::max(add_saturated(source_ns, lag_ns), kNever + 1);
}

}  // namespace

// ---------------------------------------------------------------------------------- edges

void EdgesByDestination::assign(std::vector<PlainEdge> edges) {
  for (const PlainEdge& edge : edges_) leads_to_[edge.destination] = 0;
  edges_ = std::move(edges);
  for (const PlainEdge& edge : edges_) leads_to_[edge.destination] = 1;
  std::stable_sort(edges_.begin(), edges_.end(), [](const PlainEdge& a, const PlainEdge& b) {
    return a.destination < b.destination;
  });
}

void EdgesByDestination::assign_points(std::span<const PlainEdge> edges) {
  assign(edges_by_position(graph_, edges));
}

std::vector<PlainEdge>::const_iterator EdgesByDestination::first_to(Point destination) const {
  return std::lower_bound(
      edges_.begin(), edges_.end(), destination,
      [](const PlainEdge& edge, Point point) { return edge.destination < point; });
}

std::vector<PlainEdge> edges_by_position(const ExecutionGraph& graph,
                                         std::span<const PlainEdge> edges) {
  std::vector<PlainEdge> moved(edges.begin(), edges.end());
  for (PlainEdge& edge : moved) {
    edge.source = graph.position[edge.source];
    edge.destination = graph.position[edge.destination];
  }
  return moved;
}

std::vector<std::uint8_t> slots_of(const ExecutionGraph& graph, std::span<const EdgeId> edges) {
  std::vector<std::uint8_t> chosen(graph.points.edges(), 0);
  for (const EdgeId edge : edges) chosen[graph.layout.slot[edge]] = 1;
  return chosen;
}

// ---------------------------------------------------------------------------------- edits

Replayer::Replayer(const ExecutionGraph& graph, const ReplayOptions& options)
    : graph_(graph),
      options_(options),
      lag_ns_(graph.points.edges()),
      held_(graph.size(), 0),
      added_(graph) {
  const DependencyGraph& points = graph.points;
  std::int64_t* lag_ns = lag_ns_.data();
  for (const Point p : graph.order) {
    const EdgeId first = points.in_offsets[p], last = points.in_offsets[p + 1];
    if (options.with_residuals) {
      for (EdgeId e = first; e < last; ++e) {
        *lag_ns++ = add_saturated(graph.lag_ns[e], graph.residual_ns[e]);
      }
    } else {
      for (EdgeId e = first; e < last; ++e) *lag_ns++ = graph.lag_ns[e];
    }
  }
  for (Point p = 0; p < graph.size(); ++p) {
    if (graph.held[p]) held_[graph.position[p]] = 1;
  }
}

std::int64_t Replayer::own_lag_ns(EdgeId edge) const {
  const std::int64_t lag_ns = graph_.lag_ns[edge];
  return options_.with_residuals ? add_saturated(lag_ns, graph_.residual_ns[edge]) : lag_ns;
}

void Replayer::edit(const GraphDelta* delta) {
  restore();
  if (delta == nullptr) return;
  check_delta(graph_, *delta);
  patch(*delta);
}

void Replayer::restore() {
  if (edit_ == nullptr) return;
  const auto& slot = graph_.layout.slot;
  for (const auto& [edge, lag_ns] : edit_->lags) lag_ns_[slot[edge]] = own_lag_ns(edge);
  for (const EdgeId edge : edit_->dropped) lag_ns_[slot[edge]] = own_lag_ns(edge);
  if (!added_.empty()) added_.assign({});
  edit_ = nullptr;
  reordered_.clear();
  left_out_.clear();
}

void Replayer::patch(const GraphDelta& delta) {
  edit_ = &delta;
  const auto& slot = graph_.layout.slot;
  for (const auto& [edge, lag_ns] : delta.lags) lag_ns_[slot[edge]] = lag_ns;
  for (const EdgeId edge : delta.dropped) lag_ns_[slot[edge]] = kDropped;
  if (delta.added.empty()) return;
  std::vector<PlainEdge> added = edges_by_position(graph_, delta.added);
  EditedOrder edited = order_with(graph_, added, slots_of(graph_, delta.dropped));
  for (auto i = edited.left_out.rbegin(); i != edited.left_out.rend(); ++i) {
    added.erase(added.begin() + *i);
  }
  added_.assign(std::move(added));
  reordered_ = std::move(edited.order);
  left_out_ = std::move(edited.left_out);
}

// ---------------------------------------------------------------------------------- time

template <typename Visit>
void Replayer::for_each_position(Visit visit) const {
  constexpr std::size_t kPerLook = 4096;
  const std::size_t size = graph_.size();
  for (std::size_t first = 0; first < size; first += kPerLook) {
    poll_interrupt_now();
    const std::size_t last = std::min(size, first + kPerLook);
    if (reordered_.empty()) {
      for (std::size_t at = first; at < last; ++at) visit(at);
    } else {
      for (std::size_t i = first; i < last; ++i) visit(reordered_[i]);
    }
  }
}

void Replayer::run(std::span<std::int64_t> time_ns) const {
  const ReplayLayout& layout = graph_.layout;
  for_each_position([&](std::size_t at) {
    std::int64_t latest = kNever;
    for (std::uint32_t s = layout.in_offsets[at]; s < layout.in_offsets[at + 1]; ++s) {
      if (lag_ns_[s] == kDropped) continue;
      latest = std::max(latest, reached_ns(time_ns[layout.source[s]], lag_ns_[s]));
    }
    added_.to(static_cast<Point>(at), [&](const PlainEdge& edge) {
      latest = std::max(latest, reached_ns(time_ns[edge.source], edge.lag_ns));
    });
    if (latest == kNever || held_[at]) {
      latest = std::max(latest, graph_.points.time_ns[graph_.order[at]]);
    }
    time_ns[at] = latest;
  });
}

void Replayer::run_behind(std::span<const std::int64_t> before, const EdgesByDestination& carries,
                          std::span<std::int64_t> time_ns) const {
  const ReplayLayout& layout = graph_.layout;
  for_each_position([&](std::size_t at) {
    std::int64_t latest = kNever;
    const auto reach = [&](std::int64_t source_ns, std::int64_t lag_ns) {
      if (source_ns != kNever) latest = std::max(latest, reached_ns(source_ns, lag_ns));
    };
    for (std::uint32_t s = layout.in_offsets[at]; s < layout.in_offsets[at + 1]; ++s) {
      if (lag_ns_[s] != kDropped) reach(time_ns[layout.source[s]], lag_ns_[s]);
    }
    added_.to(static_cast<Point>(at),
              [&](const PlainEdge& e) { reach(time_ns[e.source], e.lag_ns); });
    carries.to(static_cast<Point>(at),
               [&](const PlainEdge& e) { reach(before[e.source], e.lag_ns); });
    time_ns[at] = latest;
  });
}

}  // namespace traceap
