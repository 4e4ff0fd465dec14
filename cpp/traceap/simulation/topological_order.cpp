#include "traceap/simulation/topological_order.hpp"

#include "traceap/base/interrupt.hpp"
#include "traceap/base/offsets.hpp"

namespace traceap {
namespace {

/// Destinations by source: the edges turned round.
struct OutEdges {
  std::vector<std::uint32_t> offsets;
  std::vector<Point> destination;
};

template <typename Visit>
void for_each_edge(std::span<const std::uint32_t> in_offsets, std::span<const Point> source,
                   std::span<const PlainEdge> added, std::span<const std::uint8_t> dropped,
                   Visit visit) {
  for (Point p = 0; p + 1 < in_offsets.size(); ++p) {
    poll_interrupt();
    for (std::uint32_t e = in_offsets[p]; e < in_offsets[p + 1]; ++e) {
      if (dropped.empty() || !dropped[e]) visit(source[e], p);
    }
  }
  for (const PlainEdge& edge : added) visit(edge.source, edge.destination);
}

/// Points in an order as far as it goes: those on and behind a cycle are missing.
std::vector<Point> partial_order(std::span<const std::uint32_t> in_offsets,
                                 std::span<const Point> source, std::span<const PlainEdge> added,
                                 std::span<const std::uint8_t> dropped) {
  const std::size_t size = in_offsets.size() - 1;
  std::vector<std::uint32_t> waiting(size, 0);
  CountingSort by_source(size);
  for_each_edge(in_offsets, source, added, dropped, [&](Point from, Point to) {
    ++waiting[to];
    by_source.count(from);
  });
  OutEdges out;
  out.destination.resize(by_source.start_placing());
  for_each_edge(in_offsets, source, added, dropped,
                [&](Point from, Point to) { out.destination[by_source.place(from)] = to; });
  out.offsets = by_source.take_offsets();

  std::vector<Point> roots;
  for (Point p = 0; p < size; ++p) {
    poll_interrupt();
    if (waiting[p] == 0) roots.push_back(p);
  }
  // Root by root: what hangs together stays together in memory when it is replayed.
  std::vector<Point> order;
  order.reserve(size);
  std::size_t done = 0;
  for (const Point root : roots) {
    order.push_back(root);
    for (; done < order.size(); ++done) {
      const Point point = order[done];
      for (std::uint32_t e = out.offsets[point]; e < out.offsets[point + 1]; ++e) {
        if (--waiting[out.destination[e]] == 0) order.push_back(out.destination[e]);
      }
    }
  }
  return order;
}

/// Drops the edges of one grade of evidence that lead to points which are in no order.
bool drop_between(const DependencyGraph& graph, const std::vector<Point>& order, Evidence grade,
                  std::vector<std::uint8_t>& dropped) {
  std::vector<std::uint8_t> ordered(graph.size(), 0);
  for (const Point p : order) ordered[p] = 1;
  bool any = false;
  for (Point p = 0; p < graph.size(); ++p) {
    poll_interrupt();
    if (ordered[p]) continue;
    for (std::uint32_t e = graph.in_offsets[p]; e < graph.in_offsets[p + 1]; ++e) {
      const bool closes = !dropped[e] && !ordered[graph.source[e]] && graph.evidence[e] == grade &&
                          graph.kind[e] != DependencyKind::kProgramOrder &&
                          graph.kind[e] != DependencyKind::kExecution;
      if (closes) dropped[e] = any = true;
    }
  }
  return any;
}

}  // namespace

std::optional<std::vector<Point>> topological_order(std::span<const std::uint32_t> in_offsets,
                                                    std::span<const Point> source,
                                                    std::span<const PlainEdge> added,
                                                    std::span<const std::uint8_t> dropped) {
  std::vector<Point> order = partial_order(in_offsets, source, added, dropped);
  if (order.size() + 1 != in_offsets.size()) return std::nullopt;
  return order;
}

std::vector<Point> break_cycles(const DependencyGraph& graph, std::vector<std::uint8_t>& dropped) {
  dropped.assign(graph.edges(), 0);
  std::vector<Point> order = partial_order(graph.in_offsets, graph.source, {}, dropped);
  // Program order and execution alone lead forward in time and along a lane: they close no cycle.
  for (const Evidence grade : {Evidence::kAssumed, Evidence::kInferred, Evidence::kExplicit}) {
    if (order.size() == graph.size()) break;
    if (drop_between(graph, order, grade, dropped)) {
      order = partial_order(graph.in_offsets, graph.source, {}, dropped);
    }
  }
  return order;
}

}  // namespace traceap
