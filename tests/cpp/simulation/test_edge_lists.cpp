#include <algorithm>
#include <random>
#include <vector>

#include "catch.hpp"
#include "simulation/random_graph.hpp"
#include "traceap/base/error.hpp"
#include "traceap/simulation/edge_lists.hpp"

using namespace traceap;

namespace {

using Numbers = std::vector<std::int64_t>;

constexpr std::uint32_t kAll = ~0U;

ExecutionGraph random_graph(unsigned seed) {
  const RandomGraph random(seed);
  return build_plain_graph(random.durations, random.edges);
}

}  // namespace

TEST_CASE("Edges lead to their destinations and start at their sources") {
  const ExecutionGraph graph = random_graph(1);
  const DependencyGraph& points = graph.points;
  const std::vector<Point> destination = destinations(points);
  const EdgesBySource grouped = edges_by_source(points);
  REQUIRE(destination.size() == points.edges());
  REQUIRE(grouped.edges.size() == points.edges());
  REQUIRE(grouped.offsets.size() == std::size_t{points.size()} + 1);
  for (Point p = 0; p < points.size(); ++p) {
    for (std::uint32_t e = points.in_offsets[p]; e < points.in_offsets[p + 1]; ++e) {
      REQUIRE(destination[e] == p);
    }
    for (std::int64_t i = grouped.offsets[p]; i < grouped.offsets[p + 1]; ++i) {
      const std::int64_t edge = grouped.edges[static_cast<std::size_t>(i)];
      REQUIRE(points.source[static_cast<std::size_t>(edge)] == p);
    }
  }
}

TEST_CASE("Edges of the kinds asked for, of each point once, in order") {
  const ExecutionGraph graph = random_graph(2);
  const DependencyGraph& points = graph.points;
  const std::vector<Point> destination = destinations(points);
  for (const std::uint32_t kinds : {kAll, 1U, 2U, 0U}) {
    Numbers expected;
    for (std::uint32_t e = 0; e < points.edges(); ++e) {
      const bool is_chosen = (kinds >> static_cast<unsigned>(points.kind[e])) & 1U;
      if (destination[e] % 3 == 0 && is_chosen) expected.push_back(e);
    }
    Numbers every_third;
    for (Point p = 0; p < points.size(); p += 3) every_third.push_back(p);
    CHECK(edges_into(points, every_third, kinds) == expected);
    every_third.push_back(0);
    std::shuffle(every_third.begin(), every_third.end(), std::mt19937(7));
    CHECK(edges_into(points, every_third, kinds) == expected);
  }
}

TEST_CASE("Points outside of a graph are refused, and none have no edges") {
  const ExecutionGraph graph = random_graph(3);
  CHECK(edges_into(graph.points, Numbers{}, kAll).empty());
  for (const std::int64_t point : {std::int64_t{-1}, std::int64_t{graph.size()}}) {
    CHECK_THROWS_AS(edges_into(graph.points, Numbers{0, point}, kAll), SchemaError);
    CHECK_THROWS_AS(edges_into(graph.points, Numbers{point}, kAll), SchemaError);
  }
}
