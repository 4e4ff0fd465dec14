#include "traceap/simulation/edge_lags.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "traceap/base/error.hpp"
#include "traceap/simulation/execution_graph.hpp"

namespace traceap {
namespace {

/// Changes of more than one edge in so many are put together by a place for every edge.
constexpr std::size_t kFew = 8;

[[noreturn]] void refuse(std::int64_t edge) {
  throw SchemaError("edges: there is none with the number " + std::to_string(edge));
}

bool ascends(std::span<const std::int64_t> edges) {
  return std::adjacent_find(edges.begin(), edges.end(), std::greater_equal<>()) == edges.end();
}

EdgeLags one_behind_the_other(std::span<const LagView> changes) {
  EdgeLags all;
  std::size_t count = 0;
  for (const LagView& change : changes) count += change.edges.size();
  all.edges.reserve(count);
  all.lags_ns.reserve(count);
  for (const LagView& change : changes) {
    all.edges.insert(all.edges.end(), change.edges.begin(), change.edges.end());
    all.lags_ns.insert(all.lags_ns.end(), change.lags_ns.begin(), change.lags_ns.end());
  }
  return all;
}

EdgeLags by_place(const EdgeLags& all, std::size_t places) {
  std::vector<std::uint8_t> is_set(places, 0);
  std::vector<std::int64_t> lag_ns(places);
  for (std::size_t i = 0; i < all.edges.size(); ++i) {
    const auto edge = static_cast<std::size_t>(all.edges[i]);
    is_set[edge] = 1;
    lag_ns[edge] = all.lags_ns[i];
  }
  EdgeLags found;
  for (std::size_t edge = 0; edge < places; ++edge) {
    if (!is_set[edge]) continue;
    found.edges.push_back(static_cast<std::int64_t>(edge));
    found.lags_ns.push_back(lag_ns[edge]);
  }
  return found;
}

EdgeLags by_order(const EdgeLags& all) {
  std::vector<std::size_t> order(all.edges.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return all.edges[a] < all.edges[b]; });
  EdgeLags found;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::int64_t edge = all.edges[order[i]];
    if (i + 1 < order.size() && all.edges[order[i + 1]] == edge) continue;  // a later one follows
    found.edges.push_back(edge);
    found.lags_ns.push_back(all.lags_ns[order[i]]);
  }
  return found;
}

/// Both lags of an edge: each costs `before_ns` times its ratio. Rounds half to even; stops at the
/// largest time that a double holds.
std::int64_t product_ns(std::int64_t before_ns, std::int64_t one_ns, std::int64_t other_ns) {
  if (before_ns <= 0) return std::max(one_ns, other_ns);
  constexpr double kLargest = 9223372036854774784.0;
  const double ratio = static_cast<double>(other_ns) / static_cast<double>(before_ns);
  const double product = std::nearbyint(static_cast<double>(one_ns) * ratio);
  return static_cast<std::int64_t>(std::clamp(product, -kLargest, kLargest));
}

}  // namespace

void check_edge_numbers(std::span<const std::int64_t> edges) {
  // All at once, since hardly ever one is wrong: below 0 or from kNoEdge on, it or the number
  // behind it has a bit that no edge has.
  std::uint64_t bits = 0;
  for (const std::int64_t edge : edges) {
    const auto number = static_cast<std::uint64_t>(edge);
    bits |= number | (number + 1);
  }
  if (bits <= kNoEdge) return;
  for (const std::int64_t edge : edges) {
    if (edge < 0 || edge >= std::int64_t{kNoEdge}) refuse(edge);
  }
}

EdgeLags later_lags(std::span<const LagView> changes) {
  EdgeLags all = one_behind_the_other(changes);
  if (ascends(all.edges)) return all;
  check_edge_numbers(all.edges);
  const auto last = *std::max_element(all.edges.begin(), all.edges.end());
  const auto places = static_cast<std::size_t>(last) + 1;
  return all.edges.size() * kFew >= places ? by_place(all, places) : by_order(all);
}

EdgeLags both_lags(std::span<const std::int64_t> cost_ns, const LagView& one,
                   const LagView& other) {
  EdgeLags both;
  both.edges.reserve(one.edges.size() + other.edges.size());
  both.lags_ns.reserve(one.edges.size() + other.edges.size());
  const auto take = [&](std::int64_t edge, std::int64_t lag_ns) {
    both.edges.push_back(edge);
    both.lags_ns.push_back(lag_ns);
  };
  std::size_t i = 0, k = 0;
  while (i < one.edges.size() && k < other.edges.size()) {
    const std::int64_t edge = one.edges[i];
    if (edge < other.edges[k]) {
      take(edge, one.lags_ns[i++]);
    } else if (edge > other.edges[k]) {
      take(other.edges[k], other.lags_ns[k]);
      ++k;
    } else {
      if (edge < 0 || static_cast<std::size_t>(edge) >= cost_ns.size()) refuse(edge);
      const std::int64_t before_ns = cost_ns[static_cast<std::size_t>(edge)];
      take(edge, product_ns(before_ns, one.lags_ns[i++], other.lags_ns[k++]));
    }
  }
  for (; i < one.edges.size(); ++i) take(one.edges[i], one.lags_ns[i]);
  for (; k < other.edges.size(); ++k) take(other.edges[k], other.lags_ns[k]);
  return both;
}

}  // namespace traceap
