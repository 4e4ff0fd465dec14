// Note [Bounded times]: sums of times stop at the ends of 64 bits, as a trace may claim any time,
// and to look after each sum takes as long as all else. So replays whose lags sum up to less than
// kMostSpanNs do not look. No time is then farther from 0 than kMaxTimeNs and what kMostCopies
// copies add, and what does not happen keeps clear of that: kFar, with any lag on top, stays below
// kLeastTimeNs, and so does any time with kDropped on top; both together still fit 64 bits.

#include "traceap/simulation/replayer.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <utility>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/intervals.hpp"

namespace traceap {
namespace {

// In place of the lag of an edge that is gone; no lag is as long.
constexpr std::int64_t kDropped = -5'400'000'000'000'000'000;

// See Note [Bounded times].
constexpr std::uint64_t kMostSpanNs = std::uint64_t{1} << 52;
constexpr std::uint32_t kMostCopies = 64;
constexpr std::int64_t kFar = -3'500'000'000'000'000'000;
constexpr std::int64_t kLeastTimeNs = -2'700'000'000'000'000'000;
constexpr std::int64_t kSpanNs = std::int64_t{kMostSpanNs};
static_assert(-kMaxTimeNs - kMostCopies * kSpanNs > kLeastTimeNs);
static_assert(kFar + kSpanNs < kLeastTimeNs);
static_assert(kMaxTimeNs + kMostCopies * kSpanNs + kDropped < kLeastTimeNs);
static_assert(kFar - kSpanNs > std::numeric_limits<std::int64_t>::min() - kDropped);

std::uint64_t length_of(std::int64_t ns) {
  return ns < 0 ? -static_cast<std::uint64_t>(ns) : static_cast<std::uint64_t>(ns);
}

/// Adds a lag to a sum that ends with the least that is too long.
void add_length(std::uint64_t& span_ns, std::int64_t lag_ns) {
  span_ns = std::min(kMostSpanNs, span_ns + std::min(kMostSpanNs, length_of(lag_ns)));
}

/// When a dependency is met: long chains of long lags stop at the ends of 64 bits. Never kNever.
std::int64_t reached_ns(std::int64_t source_ns, std::int64_t lag_ns) {
  return std::max(add_saturated(source_ns, lag_ns), kNever + 1);
}

}  // namespace

// ---------------------------------------------------------------------------------- edges

void EdgesByDestination::assign(std::vector<PlainEdge> edges) {
  for (const PlainEdge& edge : edges_) leads_to_[edge.destination] = 0;
  edges_ = std::move(edges);
  span_ns_ = 0;
  for (const PlainEdge& edge : edges_) {
    leads_to_[edge.destination] = 1;
    add_length(span_ns_, edge.lag_ns);
  }
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

const EditedOrder Replayer::kAsItIs;

Replayer::Replayer(const ExecutionGraph& graph, const ReplayOptions& options, KnownOrders* orders)
    : graph_(graph),
      options_(options),
      orders_(orders),
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
  for (const std::int64_t lag : lag_ns_) add_length(own_span_ns_, lag);
  for (Point p = 0; p < graph.size(); ++p) {
    if (graph.held[p]) held_[graph.position[p]] = 1;
    if (length_of(points.time_ns[p]) > std::uint64_t{kMaxTimeNs}) own_span_ns_ = kMostSpanNs;
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
  edit_span_ns_ = 0;
  order_.reset();
}

void Replayer::patch(const GraphDelta& delta) {
  edit_ = &delta;
  const auto& slot = graph_.layout.slot;
  for (std::size_t i = 0; i < delta.edges.size(); ++i) {
    lag_ns_[slot[delta.edges[i]]] = delta.lags_ns[i];
    add_length(edit_span_ns_, delta.lags_ns[i]);
  }
  for (const EdgeId edge : delta.dropped) lag_ns_[slot[edge]] = kDropped;
  if (!delta.carried.empty()) carried_.assign_points(delta.carried);
  if (!delta.added.empty()) add(delta);
}

void Replayer::add(const GraphDelta& delta) {
  std::vector<PlainEdge> added = edges_by_position(graph_, delta.added);
  if (!lead_forward(added)) {
    const auto make = [&] { return order_with(graph_, added, slots_of(graph_, delta.dropped)); };
    order_ = orders_ ? orders_->of(delta, make) : std::make_shared<const EditedOrder>(make());
  }
  const std::vector<std::uint32_t>& closing = left_out();
  for (auto i = closing.rbegin(); i != closing.rend(); ++i) added.erase(added.begin() + *i);
  added_.assign(std::move(added));
}

// ---------------------------------------------------------------------------------- time

/// As many replays of one graph, in one order. See Note [Bounded times] for those that are bounded.
template <std::size_t kPasses, bool kBounded>
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
    const std::vector<std::uint32_t>& reordered = replayer_.order().order;
    if (kBounded && !reordered.empty()) forget();
    for (std::size_t first = 0; first < size; first += kPerLook) {
      poll_interrupt_now();
      const std::size_t last = std::min(size, first + kPerLook);
      if (reordered.empty()) {
        for (std::size_t at = first; at < last; ++at) meet(static_cast<Point>(at));
      } else {
        for (std::size_t i = first; i < last; ++i) meet(reordered[i]);
      }
    }
    if (kBounded && is_behind_) mark_what_never_happens();
  }

 private:
  using Times = std::array<std::int64_t, kPasses>;

  static bool happens(std::int64_t time_ns) {
    return kBounded ? time_ns > kLeastTimeNs : time_ns != kNever;
  }

  static void reach(std::int64_t& latest, std::int64_t source_ns, std::int64_t lag_ns) {
    if (source_ns != kNever) latest = std::max(latest, reached_ns(source_ns, lag_ns));
  }

  /// When the point at a position happens. What few points need is done elsewhere, on a copy: so
  /// `latest` stays in registers.
  [[gnu::always_inline]] void meet(Point at) {
    const ReplayLayout& layout = replayer_.graph_.layout;
    const std::uint32_t* sources = layout.source.data();
    Times latest;
    latest.fill(kBounded ? kFar : kNever);
    const std::uint32_t end = layout.in_offsets[at + 1];
    for (std::uint32_t s = layout.in_offsets[at]; s < end; ++s) {
      const std::uint32_t source = sources[s];
      for (std::size_t k = 0; k < kPasses; ++k) {
        const std::int64_t lag_ns = lag_ns_[k][s];
        if constexpr (kBounded) {
          latest[k] = std::max(latest[k], time_ns_[k][source] + lag_ns);
        } else if (lag_ns != kDropped) {
          reach(latest[k], time_ns_[k][source], lag_ns);
        }
      }
    }
    if (needs_more(at)) latest = meet_more(at, latest);
    if (!is_behind_) {
      const bool held = replayer_.held_[at] != 0;
      for (std::size_t k = 0; k < kPasses; ++k) {
        if (held || !happens(latest[k])) latest[k] = std::max(latest[k], measured_ns(at));
      }
    }
    for (std::size_t k = 0; k < kPasses; ++k) time_ns_[k][at] = latest[k];
  }

  /// In an edit's own order a dropped edge may start at a point that is not known yet: whatever
  /// time stands there from before, with kDropped on top, might be any.
  void forget() {
    const ReplayLayout& layout = replayer_.graph_.layout;
    for (std::size_t k = 0; k < kPasses; ++k) {
      for (const EdgeId edge : passes_[k].replayer->edit_->dropped) {
        time_ns_[k][layout.source[layout.slot[edge]]] = kFar;
      }
    }
  }

  bool needs_more(Point at) const {
    bool more = is_behind_ && carries_.leads_to(at);
    for (std::size_t k = 0; has_more_ && k < kPasses; ++k) {
      const Replayer& replayer = *passes_[k].replayer;
      more = more || replayer.added_.leads_to(at) || replayer.carried_.leads_to(at);
    }
    return more;
  }

  /// What only the edits bring, and what the copy before does.
  [[gnu::noinline]] Times meet_more(Point at, Times latest) const {
    for (std::size_t k = 0; k < kPasses; ++k) {
      const Replayer& replayer = *passes_[k].replayer;
      replayer.added_.to(at, [&](const PlainEdge& edge) {
        reach(latest[k], time_ns_[k][edge.source], edge.lag_ns);
      });
      if (!is_behind_) continue;
      const auto carry = [&](const PlainEdge& edge) {
        reach(latest[k], passes_[k].before[edge.source], edge.lag_ns);
      };
      replayer.carried_.to(at, carry);
      carries_.to(at, carry);
    }
    return latest;
  }

  std::int64_t measured_ns(Point at) const {
    const ExecutionGraph& graph = replayer_.graph_;
    return graph.points.time_ns[graph.order[at]];
  }

  void mark_what_never_happens() {
    for (const Pass& pass : passes_) {
      for (std::int64_t& time_ns : pass.time_ns) time_ns = happens(time_ns) ? time_ns : kNever;
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

bool is_bounded(const Pass& pass, const EdgesByDestination& carries) {
  return pass.copy < kMostCopies && pass.replayer->span_ns() + carries.span_ns() < kMostSpanNs;
}

template <bool kBounded, std::size_t kPasses = kMostPasses>
void run_in_one_order(std::span<const Pass> passes, const EdgesByDestination& carries) {
  if constexpr (kPasses > 0) {
    while (passes.size() >= kPasses) {
      Passes<kPasses, kBounded>(passes.first<kPasses>(), carries).run();
      passes = passes.subspan(kPasses);
    }
    run_in_one_order<kBounded, kPasses - 1>(passes, carries);
  }
}

void run_alike(std::span<const Pass> passes, const EdgesByDestination& carries) {
  const bool bounded = std::all_of(passes.begin(), passes.end(),
                                   [&](const Pass& pass) { return is_bounded(pass, carries); });
  if (bounded) {
    run_in_one_order<true>(passes, carries);
  } else {
    run_in_one_order<false>(passes, carries);
  }
}

}  // namespace

void run_passes(std::span<const Pass> passes, const EdgesByDestination& carries) {
  std::vector<Pass> alike;
  for (const Pass& pass : passes) {
    if (pass.replayer->is_reordered()) {
      run_alike({&pass, 1}, carries);
    } else {
      alike.push_back(pass);
    }
  }
  run_alike(alike, carries);
}

}  // namespace traceap
