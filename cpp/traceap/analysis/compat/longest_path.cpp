#include "traceap/analysis/compat/longest_path.hpp"

#include <algorithm>
#include <limits>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/offsets.hpp"

namespace traceap {
namespace {

constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

/// Edges grouped by one of their ends, in order.
struct Adjacency {
  std::vector<std::uint32_t> offsets, edges;

  template <typename End>
  Adjacency(std::uint32_t nodes, std::span<const WeightedEdge> all, End end) : edges(all.size()) {
    CountingSort by_end(nodes);
    for (const WeightedEdge& e : all) by_end.count(end(e));
    by_end.start_placing();
    for (std::uint32_t i = 0; i < all.size(); ++i) edges[by_end.place(end(all[i]))] = i;
    offsets = by_end.take_offsets();
  }
  std::span<const std::uint32_t> of(std::uint32_t node) const {
    return {edges.data() + offsets[node], edges.data() + offsets[node + 1]};
  }
};

std::vector<std::uint32_t> order_of_mention(std::uint32_t nodes,
                                            std::span<const WeightedEdge> edges) {
  std::vector<bool> seen(nodes, false);
  std::vector<std::uint32_t> order;
  const auto mention = [&](std::uint32_t node) {
    if (!seen[node]) order.push_back(node);
    seen[node] = true;
  };
  for (const WeightedEdge& e : edges) {
    poll_interrupt();
    mention(e.source);
    mention(e.destination);
  }
  return order;
}

/// Nodes that edges name, each behind all its predecessors; fewer if there is a cycle.
std::vector<std::uint32_t> order_topologically(std::span<const std::uint32_t> mentioned,
                                               std::span<const WeightedEdge> edges,
                                               const Adjacency& out, const Adjacency& in) {
  std::vector<std::uint32_t> order;
  std::vector<std::uint32_t> waiting(in.offsets.size() - 1);
  for (const std::uint32_t node : mentioned) {
    poll_interrupt();
    waiting[node] = static_cast<std::uint32_t>(in.of(node).size());
    if (waiting[node] == 0) order.push_back(node);
  }
  for (std::size_t i = 0; i < order.size(); ++i) {
    poll_interrupt();
    for (const std::uint32_t edge : out.of(order[i])) {
      const std::uint32_t next = edges[edge].destination;
      if (--waiting[next] == 0) order.push_back(next);
    }
  }
  return order;
}

}  // namespace

LongestPath find_longest_path(std::uint32_t nodes, std::span<const WeightedEdge> edges) {
  const Adjacency out(nodes, edges, [](const WeightedEdge& e) { return e.source; });
  const Adjacency in(nodes, edges, [](const WeightedEdge& e) { return e.destination; });
  const std::vector<std::uint32_t> mentioned = order_of_mention(nodes, edges);
  const std::vector<std::uint32_t> order = order_topologically(mentioned, edges, out, in);
  LongestPath path;
  path.is_acyclic = order.size() == mentioned.size();
  if (!path.is_acyclic || order.empty()) return path;

  std::vector<std::int64_t> distance(nodes, 0);
  std::vector<std::uint32_t> previous(nodes, kNone);
  std::uint32_t last = order.front();
  for (const std::uint32_t node : order) {
    poll_interrupt();
    std::int64_t best = std::numeric_limits<std::int64_t>::min();
    for (const std::uint32_t e : in.of(node)) {
      const std::int64_t reached = distance[edges[e].source] + edges[e].weight;
      if (reached <= best) continue;
      best = reached;
      previous[node] = edges[e].source;
    }
    if (best < 0) previous[node] = kNone;
    distance[node] = std::max<std::int64_t>(0, best);
    if (distance[node] > distance[last]) last = node;
  }
  path.length = distance[last];
  for (std::uint32_t node = last; node != kNone; node = previous[node]) path.nodes.push_back(node);
  std::reverse(path.nodes.begin(), path.nodes.end());
  return path;
}

}  // namespace traceap
