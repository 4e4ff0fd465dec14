#include "traceap/simulation/edge_lists.hpp"

#include <algorithm>
#include <functional>
#include <string>

#include "traceap/base/error.hpp"
#include "traceap/base/interrupt.hpp"
#include "traceap/base/offsets.hpp"

namespace traceap {
namespace {

static_assert(kDependencyKindCount <= 32);

bool ascends(std::span<const std::int64_t> points) {
  return std::adjacent_find(points.begin(), points.end(), std::greater_equal<>()) == points.end();
}

std::vector<std::int64_t> in_order(std::span<const std::int64_t> points) {
  std::vector<std::int64_t> sorted(points.begin(), points.end());
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  return sorted;
}

void check_point(const DependencyGraph& graph, std::int64_t point) {
  if (point >= 0 && point < std::int64_t{graph.size()}) return;
  throw SchemaError("points: there is none with the number " + std::to_string(point));
}

}  // namespace

std::vector<std::int64_t> edges_into(const DependencyGraph& graph,
                                     std::span<const std::int64_t> points, std::uint32_t kinds) {
  std::vector<std::int64_t> found;
  if (points.empty()) return found;
  std::vector<std::int64_t> sorted;
  if (!ascends(points)) {
    sorted = in_order(points);
    points = sorted;
  }
  check_point(graph, points.front());
  check_point(graph, points.back());
  found.reserve(points.size());
  for (const std::int64_t point : points) {
    const auto p = static_cast<std::size_t>(point);
    for (std::uint32_t e = graph.in_offsets[p]; e < graph.in_offsets[p + 1]; ++e) {
      if (kinds >> static_cast<unsigned>(graph.kind[e]) & 1U) found.push_back(e);
    }
  }
  return found;
}

std::vector<Point> destinations(const DependencyGraph& graph) {
  std::vector<Point> found(graph.edges());
  for (Point p = 0; p < graph.size(); ++p) {
    poll_interrupt();
    std::fill(found.begin() + graph.in_offsets[p], found.begin() + graph.in_offsets[p + 1], p);
  }
  return found;
}

EdgesBySource edges_by_source(const DependencyGraph& graph) {
  EdgesBySource found;
  CountingSort<std::int64_t> sort(graph.size());
  for (const Point source : graph.source) sort.count(source);
  found.edges.resize(static_cast<std::size_t>(sort.start_placing()));
  for (std::size_t e = 0; e < graph.source.size(); ++e) {
    poll_interrupt();
    found.edges[static_cast<std::size_t>(sort.place(graph.source[e]))] =
        static_cast<std::int64_t>(e);
  }
  found.offsets = sort.take_offsets();
  return found;
}

}  // namespace traceap
