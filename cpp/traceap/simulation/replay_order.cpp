// Note [Order of time]: measured dependencies lead forward in time, so that the order of measured
// times is one in which sources stand before destinations, but for points of one time, which are
// put in order among themselves. It is the best one to replay in: what a point needs happened
// shortly before, and lies close by in memory; and edges that an edit adds fit it as long as they
// lead forward too.

#include "traceap/simulation/replay_order.hpp"

#include <algorithm>
#include <utility>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/offsets.hpp"

namespace traceap {
namespace {

// Fewer points than this are sorted by insertion.
constexpr std::ptrdiff_t kFew = 16;

void set_positions(ExecutionGraph& graph) {
  graph.position.resize(graph.order.size());
  for (std::uint32_t i = 0; i < graph.order.size(); ++i) graph.position[graph.order[i]] = i;
}

/// A stable sort: into equal parts of the time, then within each.
class TimeSort {
 public:
  explicit TimeSort(const std::vector<std::int64_t>& time_ns) : time_ns_(time_ns) {}

  std::vector<Point> sorted() const {
    const std::size_t size = time_ns_.size();
    if (size == 0) return {};
    const auto [low, high] = std::minmax_element(time_ns_.begin(), time_ns_.end());
    const auto first = static_cast<double>(*low);
    const double parts_per_ns =
        static_cast<double>(size - 1) / std::max(1.0, static_cast<double>(*high) - first);
    std::vector<std::uint32_t> part(size);
    CountingSort sort(size);
    for (std::size_t p = 0; p < size; ++p) {
      poll_interrupt();
      const double at = (static_cast<double>(time_ns_[p]) - first) * parts_per_ns;
      part[p] = static_cast<std::uint32_t>(std::min(at, static_cast<double>(size - 1)));
      sort.count(part[p]);
    }
    std::vector<Point> points(sort.start_placing());
    for (Point p = 0; p < size; ++p) points[sort.place(part[p])] = p;
    const std::vector<std::uint32_t> offsets = sort.take_offsets();
    for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
      poll_interrupt();
      sort_part(points.data() + offsets[i], points.data() + offsets[i + 1]);
    }
    return points;
  }

 private:
  void sort_part(Point* first, Point* last) const {
    const auto earlier = [this](Point a, Point b) { return time_ns_[a] < time_ns_[b]; };
    if (last - first > kFew) return std::stable_sort(first, last, earlier);
    for (Point* p = first; p < last; ++p)
      std::rotate(std::upper_bound(first, p, *p, earlier), p, p + 1);
  }

  const std::vector<std::int64_t>& time_ns_;
};

/// Puts points of one time in order among themselves.
class TieOrder {
 public:
  explicit TieOrder(ExecutionGraph& graph) : graph_(graph), points_(graph.points) {}

  /// Puts the points that happen when `point` does behind their sources; false: there is a cycle.
  bool settle(Point point) {
    const std::int64_t time_ns = points_.time_ns[point];
    const auto& order = graph_.order;
    std::uint32_t first = graph_.position[point], last = first + 1;
    while (first > 0 && points_.time_ns[order[first - 1]] == time_ns) --first;
    while (last < order.size() && points_.time_ns[order[last]] == time_ns) ++last;
    state_.resize(points_.size(), kNew);
    settled_.clear();
    for (std::uint32_t i = first; i < last; ++i) {
      if (state_[order[i]] == kNew && !visit(order[i])) return false;
    }
    std::copy(settled_.begin(), settled_.end(), graph_.order.begin() + first);
    for (std::uint32_t i = first; i < last; ++i) graph_.position[graph_.order[i]] = i;
    return true;
  }
  bool is_settled(Point point) const { return !state_.empty() && state_[point] != kNew; }

 private:
  enum State : std::uint8_t { kNew, kOpen, kSettled };
  struct Frame {
    Point point;
    EdgeId next;
  };

  /// Settles a point behind all that it needs, depth first.
  bool visit(Point root) {
    open(root);
    while (!stack_.empty()) {
      poll_interrupt();
      Frame& frame = stack_.back();
      if (frame.next == points_.in_offsets[frame.point + 1]) {
        state_[frame.point] = kSettled;
        settled_.push_back(frame.point);
        stack_.pop_back();
        continue;
      }
      const Point source = points_.source[frame.next++];
      if (points_.time_ns[source] != points_.time_ns[root]) continue;
      if (state_[source] == kOpen) return false;
      if (state_[source] == kNew) open(source);
    }
    return true;
  }
  void open(Point point) {
    state_[point] = kOpen;
    stack_.push_back({point, points_.in_offsets[point]});
  }

  ExecutionGraph& graph_;
  const DependencyGraph& points_;
  std::vector<std::uint8_t> state_;  // by point
  std::vector<Frame> stack_;
  std::vector<Point> settled_;
};

bool settle_ties(ExecutionGraph& graph) {
  const DependencyGraph& points = graph.points;
  TieOrder ties(graph);
  for (Point p = 0; p < graph.size(); ++p) {
    poll_interrupt();
    for (EdgeId e = points.in_offsets[p]; e < points.in_offsets[p + 1]; ++e) {
      const Point source = points.source[e];
      if (graph.position[source] < graph.position[p]) continue;
      if (points.time_ns[source] > points.time_ns[p]) return false;
      if (ties.is_settled(p) || !ties.settle(p)) return false;
    }
  }
  return true;
}

void lay_out(ExecutionGraph& graph) {
  const DependencyGraph& points = graph.points;
  ReplayLayout& layout = graph.layout;
  layout.in_offsets.assign(1, 0);
  layout.in_offsets.reserve(graph.size() + std::size_t{1});
  layout.source.clear();
  layout.source.reserve(points.edges());
  layout.slot.resize(points.edges());
  for (const Point p : graph.order) {
    poll_interrupt();
    for (EdgeId e = points.in_offsets[p]; e < points.in_offsets[p + 1]; ++e) {
      layout.slot[e] = static_cast<std::uint32_t>(layout.source.size());
      layout.source.push_back(graph.position[points.source[e]]);
    }
    layout.in_offsets.push_back(static_cast<std::uint32_t>(layout.source.size()));
  }
}

}  // namespace

bool order_by_time(ExecutionGraph& graph) {
  graph.order = TimeSort(graph.points.time_ns).sorted();
  set_positions(graph);
  if (!settle_ties(graph)) return false;
  lay_out(graph);
  return true;
}

void use_order(ExecutionGraph& graph, std::vector<Point> order) {
  graph.order = std::move(order);
  set_positions(graph);
  lay_out(graph);
}

}  // namespace traceap
