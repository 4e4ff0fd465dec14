#include "catch.hpp"
#include "trace_interrupts.hpp"
#include "traceap/simulation/replay.hpp"

using namespace traceap;

TEST_CASE("graphs and replays look more often the more events there are", "[simulation]") {
  const auto looks = [](int steps) {
    const EventTable table = many_steps(steps).table();
    const EventTree tree = build_tree(table);
    const std::vector<GraphRank> ranks{{&table, &tree}};
    ExecutionGraph graph;
    const std::size_t building = looks_of([&] { graph = build_execution_graph(ranks); });
    const std::size_t replaying = looks_of([&] { replay(graph); });
    return std::pair(building, replaying);
  };
  const auto [few_building, few_replaying] = looks(100);
  const auto [many_building, many_replaying] = looks(400);
  CHECK(few_building > 0);
  CHECK(few_replaying > 0);
  CHECK(many_building > 2 * few_building);
  CHECK(many_replaying > 2 * few_replaying);
}

TEST_CASE("a replay that was stopped leaves the graph as it was", "[simulation]") {
  const EventTable table = many_steps(60).table();
  const EventTree tree = build_tree(table);
  const std::vector<GraphRank> ranks{{&table, &tree}};
  const ExecutionGraph graph = build_execution_graph(ranks);
  const std::vector<std::int64_t> times = replay(graph);
  std::size_t stops = 0;
  while (stops_at(stops, [&] { replay(graph); })) ++stops;
  CHECK(stops > 0);
  CHECK(replay(graph) == times);
}
