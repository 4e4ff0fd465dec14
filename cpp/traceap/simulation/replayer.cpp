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

std::vector<PlainEdge>::const_iterator EdgesByDestination::first_to(Point destination) const {
  return std::lower_bound(
      edges_.begin(), edges_.end(), destination,
      [](const PlainEdge& edge, Point point) { return edge.destination < point; });
}

// ---------------------------------------------------------------------------------- edits

Replayer::Replayer(const ExecutionGraph& graph, const ReplayOptions& options)
    : graph_(graph), options_(options), lag_ns_(graph.lag_ns), added_(graph.size()) {
  if (!options.with_residuals) return;
  for (EdgeId e = 0; e < lag_ns_.size(); ++e) lag_ns_[e] = own_lag_ns(e);
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
  for (const auto& [edge, lag_ns] : edit_->lags) lag_ns_[edge] = own_lag_ns(edge);
  for (const EdgeId edge : edit_->dropped) lag_ns_[edge] = own_lag_ns(edge);
  if (!added_.empty()) added_.assign({});
  edit_ = nullptr;
  reordered_.clear();
  left_out_.clear();
}

void Replayer::patch(const GraphDelta& delta) {
  edit_ = &delta;
  for (const auto& [edge, lag_ns] : delta.lags) lag_ns_[edge] = lag_ns;
  for (const EdgeId edge : delta.dropped) lag_ns_[edge] = kDropped;
  if (delta.added.empty()) return;
  std::vector<std::uint8_t> dropped(lag_ns_.size(), 0);
  for (const EdgeId edge : delta.dropped) dropped[edge] = 1;
  EditedOrder edited = order_with(graph_, delta.added, dropped);
  std::vector<PlainEdge> added;
  auto next_left_out = edited.left_out.begin();
  for (std::uint32_t i = 0; i < delta.added.size(); ++i) {
    if (next_left_out != edited.left_out.end() && *next_left_out == i) {
      ++next_left_out;
    } else {
      added.push_back(delta.added[i]);
    }
  }
  added_.assign(std::move(added));
  reordered_ = std::move(edited.order);
  left_out_ = std::move(edited.left_out);
}

// ---------------------------------------------------------------------------------- time

void Replayer::run(std::span<std::int64_t> time_ns) const {
  const DependencyGraph& points = graph_.points;
  for (const Point point : order()) {
    poll_interrupt();
    std::int64_t latest = kNever;
    for (EdgeId e = points.in_offsets[point]; e < points.in_offsets[point + 1]; ++e) {
      if (lag_ns_[e] != kDropped) {
        latest = std::max(latest, reached_ns(time_ns[points.source[e]], lag_ns_[e]));
      }
    }
    added_.to(point, [&](const PlainEdge& edge) {
      latest = std::max(latest, reached_ns(time_ns[edge.source], edge.lag_ns));
    });
    const bool measured =
        latest == kNever || (graph_.held[point] && latest < points.time_ns[point]);
    time_ns[point] = measured ? points.time_ns[point] : latest;
  }
}

void Replayer::run_behind(std::span<const std::int64_t> before, const EdgesByDestination& carries,
                          std::span<std::int64_t> time_ns) const {
  const DependencyGraph& points = graph_.points;
  for (const Point point : order()) {
    poll_interrupt();
    std::int64_t latest = kNever;
    const auto reach = [&](std::int64_t source_ns, std::int64_t lag_ns) {
      if (source_ns != kNever) latest = std::max(latest, reached_ns(source_ns, lag_ns));
    };
    for (EdgeId e = points.in_offsets[point]; e < points.in_offsets[point + 1]; ++e) {
      if (lag_ns_[e] != kDropped) reach(time_ns[points.source[e]], lag_ns_[e]);
    }
    added_.to(point, [&](const PlainEdge& e) { reach(time_ns[e.source], e.lag_ns); });
    carries.to(point, [&](const PlainEdge& e) { reach(before[e.source], e.lag_ns); });
    time_ns[point] = latest;
  }
}

}  // namespace traceap
