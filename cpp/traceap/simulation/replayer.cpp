#include "traceap/simulation/replayer.hpp"

#include <algorithm>
#include <array>
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
      added_(graph),
      carried_(graph) {
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
  for (const EdgeId edge : edit_->edges) lag_ns_[slot[edge]] = own_lag_ns(edge);
  for (const EdgeId edge : edit_->dropped) lag_ns_[slot[edge]] = own_lag_ns(edge);
  if (!added_.empty()) added_.assign({});
  if (!carried_.empty()) carried_.assign({});
  edit_ = nullptr;
  reordered_.clear();
  left_out_.clear();
}

void Replayer::patch(const GraphDelta& delta) {
  edit_ = &delta;
  const auto& slot = graph_.layout.slot;
  for (std::size_t i = 0; i < delta.edges.size(); ++i) {
    lag_ns_[slot[delta.edges[i]]] = delta.lags_ns[i];
  }
  for (const EdgeId edge : delta.dropped) lag_ns_[slot[edge]] = kDropped;
  if (!delta.carried.empty()) carried_.assign_points(delta.carried);
  if (!delta.added.empty()) add(delta);
}

void Replayer::add(const GraphDelta& delta) {
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

/// As many replays of one graph, in one order.
template <std::size_t kPasses>
class Passes {
 public:
  Passes(std::span<const Pass, kPasses> passes, const EdgesByDestination& carries)
      : passes_(passes),
        carries_(carries),
        replayer_(*passes.front().replayer),
        is_behind_(!passes.front().before.empty()) {
    for (std::size_t k = 0; k < kPasses; ++k) {
      const Replayer& replayer = *passes[k].replayer;
      lag_ns_[k] = replayer.lag_ns_.data();
      time_ns_[k] = passes[k].time_ns.data();
      has_more_ = has_more_ || !replayer.added_.empty() || !replayer.carried_.empty();
    }
  }

  void run() {
    constexpr std::size_t kPerLook = 4096;
    const std::size_t size = replayer_.graph_.size();
    const auto& reordered = replayer_.reordered_;
    for (std::size_t first = 0; first < size; first += kPerLook) {
      poll_interrupt_now();
      const std::size_t last = std::min(size, first + kPerLook);
      if (reordered.empty()) {
        for (std::size_t at = first; at < last; ++at) meet(static_cast<Point>(at));
      } else {
        for (std::size_t i = first; i < last; ++i) meet(reordered[i]);
      }
    }
  }

 private:
  using Times = std::array<std::int64_t, kPasses>;

  static void reach(std::int64_t& latest, std::int64_t source_ns, std::int64_t lag_ns) {
    if (source_ns != kNever) latest = std::max(latest, reached_ns(source_ns, lag_ns));
  }

  /// When the point at a position happens.
  void meet(Point at) {
    const ReplayLayout& layout = replayer_.graph_.layout;
    Times latest;
    latest.fill(kNever);
    for (std::uint32_t s = layout.in_offsets[at]; s < layout.in_offsets[at + 1]; ++s) {
      const std::uint32_t source = layout.source[s];
      for (std::size_t k = 0; k < kPasses; ++k) {
        const std::int64_t lag_ns = lag_ns_[k][s];
        if (lag_ns != kDropped) reach(latest[k], time_ns_[k][source], lag_ns);
      }
    }
    if (has_more_) meet_more(at, latest);
    if (is_behind_) {
      carries_.to(at, [&](const PlainEdge& edge) { carry(edge, latest); });
    } else {
      meet_measured(at, latest);
    }
    for (std::size_t k = 0; k < kPasses; ++k) time_ns_[k][at] = latest[k];
  }

  /// What only the edits bring.
  void meet_more(Point at, Times& latest) {
    for (std::size_t k = 0; k < kPasses; ++k) {
      const Replayer& replayer = *passes_[k].replayer;
      replayer.added_.to(at, [&](const PlainEdge& edge) {
        reach(latest[k], time_ns_[k][edge.source], edge.lag_ns);
      });
      if (!is_behind_) continue;
      replayer.carried_.to(at, [&](const PlainEdge& edge) {
        reach(latest[k], passes_[k].before[edge.source], edge.lag_ns);
      });
    }
  }

  void carry(const PlainEdge& edge, Times& latest) {
    for (std::size_t k = 0; k < kPasses; ++k) {
      reach(latest[k], passes_[k].before[edge.source], edge.lag_ns);
    }
  }

  void meet_measured(Point at, Times& latest) {
    const ExecutionGraph& graph = replayer_.graph_;
    for (std::size_t k = 0; k < kPasses; ++k) {
      if (latest[k] != kNever && !replayer_.held_[at]) continue;
      latest[k] = std::max(latest[k], graph.points.time_ns[graph.order[at]]);
    }
  }

  std::span<const Pass, kPasses> passes_;
  const EdgesByDestination& carries_;
  const Replayer& replayer_;  // of the first pass: order and layout are those of all
  std::array<const std::int64_t*, kPasses> lag_ns_;
  std::array<std::int64_t*, kPasses> time_ns_;
  bool has_more_ = false;
  const bool is_behind_;
};

namespace {

template <std::size_t kPasses = kMostPasses>
void run_in_one_order(std::span<const Pass> passes, const EdgesByDestination& carries) {
  if constexpr (kPasses > 0) {
    while (passes.size() >= kPasses) {
      Passes<kPasses>(passes.first<kPasses>(), carries).run();
      passes = passes.subspan(kPasses);
    }
    run_in_one_order<kPasses - 1>(passes, carries);
  }
}

}  // namespace

void run_passes(std::span<const Pass> passes, const EdgesByDestination& carries) {
  std::vector<Pass> alike;
  for (const Pass& pass : passes) {
    if (pass.replayer->is_reordered()) {
      run_in_one_order<1>({&pass, 1}, carries);
    } else {
      alike.push_back(pass);
    }
  }
  run_in_one_order(std::span<const Pass>(alike), carries);
}

}  // namespace traceap
