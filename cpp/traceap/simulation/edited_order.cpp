// Note [Edges that close a cycle]: measured dependencies lead forward in time, so that a cycle
// needs an added edge which asks for something to happen later than it was measured to. Where the
// added edges can't all hold, those are left out that contradict the measured run most: edges are
// put in one by one, forward ones first, then the others by how far back they lead, and an edge
// that closes a cycle with those before it is left out.

#include "traceap/simulation/edited_order.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/offsets.hpp"
#include "traceap/simulation/topological_order.hpp"

namespace traceap {
namespace {

/// An order that edges are added to one by one.
class GrowingOrder {
 public:
  GrowingOrder(const ExecutionGraph& graph, std::span<const std::uint8_t> dropped)
      : order_(graph.size()),
        position_(graph.size()),
        last_added_(graph.size(), kNone),
        reached_(graph.size(), 0) {
    std::iota(order_.begin(), order_.end(), 0U);
    position_ = order_;
    const ReplayLayout& layout = graph.layout;
    CountingSort by_source(graph.size());
    const auto for_each_edge = [&](auto visit) {
      for (Point p = 0; p < graph.size(); ++p) {
        poll_interrupt();
        for (std::uint32_t slot = layout.in_offsets[p]; slot < layout.in_offsets[p + 1]; ++slot) {
          if (!dropped[slot]) visit(layout.source[slot], p);
        }
      }
    };
    for_each_edge([&](Point source, Point) { by_source.count(source); });
    destination_.resize(by_source.start_placing());
    for_each_edge([&](Point source, Point p) { destination_[by_source.place(source)] = p; });
    offsets_ = by_source.take_offsets();
  }

  /// False, and nothing changes, where the edge closes a cycle.
  bool add(Point source, Point destination) {
    if (position_[source] <= position_[destination]) {
      if (source == destination) return false;
    } else if (!move_behind(source, destination)) {
      return false;
    }
    added_.push_back({destination, std::exchange(last_added_[source], next_added())});
    return true;
  }
  std::vector<Point> take() { return std::move(order_); }

 private:
  static constexpr std::uint32_t kNone = kNoEdge;
  struct Added {
    Point destination;
    std::uint32_t before;  // the one added before from the same source
  };
  std::uint32_t next_added() const { return static_cast<std::uint32_t>(added_.size()); }

  /// Puts `point` and what it leads to behind `source`, in the order which they have.
  bool move_behind(Point source, Point point) {
    const std::uint32_t first = position_[point], last = position_[source];
    reach(point);
    for (std::size_t done = 0; done < moved_.size() && !reached_[source]; ++done) {
      poll_interrupt();
      reach_from(moved_[done], last);
    }
    const bool closes = reached_[source];
    if (!closes) reorder(first, last);
    for (const Point p : moved_) reached_[p] = 0;
    moved_.clear();
    return !closes;
  }
  void reach(Point point) {
    reached_[point] = 1;
    moved_.push_back(point);
  }
  void reach_from(Point point, std::uint32_t last) {
    const auto visit = [&](Point next) {
      if (!reached_[next] && position_[next] <= last) reach(next);
    };
    for (std::uint32_t e = offsets_[point]; e < offsets_[point + 1]; ++e) visit(destination_[e]);
    for (std::uint32_t a = last_added_[point]; a != kNone; a = added_[a].before) {
      visit(added_[a].destination);
    }
  }
  void reorder(std::uint32_t first, std::uint32_t last) {
    const auto begin = order_.begin() + first, end = order_.begin() + last + 1;
    std::stable_partition(begin, end, [&](Point p) { return !reached_[p]; });
    for (std::uint32_t i = first; i <= last; ++i) position_[order_[i]] = i;
  }

  std::vector<Point> order_;
  std::vector<std::uint32_t> position_;
  std::vector<std::uint32_t> offsets_;  // of destination_, by source
  std::vector<Point> destination_;
  std::vector<Added> added_;
  std::vector<std::uint32_t> last_added_;  // by source
  std::vector<std::uint8_t> reached_;
  std::vector<Point> moved_;
};

/// The added edges, the most certain first.
std::vector<std::uint32_t> by_certainty(const ExecutionGraph& graph,
                                        std::span<const PlainEdge> added) {
  const auto back_ns = [&](std::uint32_t i) {
    const PlainEdge& edge = added[i];
    const auto time_ns = [&](Point at) { return graph.points.time_ns[graph.order[at]]; };
    return std::max<std::int64_t>(0, time_ns(edge.source) - time_ns(edge.destination));
  };
  std::vector<std::uint32_t> ranked(added.size());
  std::iota(ranked.begin(), ranked.end(), 0U);
  std::stable_sort(ranked.begin(), ranked.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return back_ns(a) < back_ns(b); });
  return ranked;
}

bool same_edges(std::span<const PlainEdge> a, std::span<const PlainEdge> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const PlainEdge& one, const PlainEdge& other) {
                      return one.source == other.source && one.destination == other.destination;
                    });
}

// Of a batch: two edits in three forms each.
constexpr std::size_t kMostKnown = 6;

}  // namespace

bool lead_forward(std::span<const PlainEdge> added) {
  return std::all_of(added.begin(), added.end(),
                     [](const PlainEdge& edge) { return edge.source < edge.destination; });
}

EditedOrder order_with(const ExecutionGraph& graph, std::span<const PlainEdge> added,
                       std::span<const std::uint8_t> dropped) {
  if (lead_forward(added)) return {};
  EditedOrder edited;
  auto order = topological_order(graph.layout.in_offsets, graph.layout.source, added, dropped);
  if (order) {
    edited.order = std::move(*order);
    return edited;
  }
  GrowingOrder growing(graph, dropped);
  for (const std::uint32_t i : by_certainty(graph, added)) {
    if (!growing.add(added[i].source, added[i].destination)) edited.left_out.push_back(i);
  }
  std::sort(edited.left_out.begin(), edited.left_out.end());
  edited.order = growing.take();
  return edited;
}

KnownOrders::Shared KnownOrders::of(const GraphDelta& delta,
                                    const std::function<EditedOrder()>& make) {
  {
    const std::lock_guard lock(in_use_);
    if (Shared known = find(delta)) return known;
  }
  Shared made = std::make_shared<const EditedOrder>(make());  // other threads may go on
  const std::lock_guard lock(in_use_);
  if (known_.size() == kMostKnown) known_.erase(known_.begin());
  known_.push_back({delta.added, delta.dropped, made});
  return made;
}

KnownOrders::Shared KnownOrders::find(const GraphDelta& delta) const {
  for (const Known& known : known_) {
    if (known.dropped == delta.dropped && same_edges(known.added, delta.added)) return known.order;
  }
  return nullptr;
}

}  // namespace traceap
