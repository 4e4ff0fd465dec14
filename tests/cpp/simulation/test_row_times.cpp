#include <random>
#include <string>

#include "catch.hpp"
#include "trace_text.hpp"
#include "traceap/simulation/replay.hpp"
#include "traceap/simulation/row_times.hpp"
#include "traceap/tree/event_tree.hpp"
#include "traceap/tree/flows.hpp"

using namespace traceap;

namespace {

using Random = std::mt19937_64;

double at(Random& random, std::uint64_t end) { return static_cast<double>(random() % end); }

/// Launches, arrows, host ranges in any order, and some at the ends of all times.
EventTable any_table(Random& random) {
  TraceText text;
  for (int i = 0; i < 40; ++i) {
    const std::string number = std::to_string(random() % 5);
    switch (random() % 8) {
      case 0:
        text.raw(R"({"ph":"f","id":)" + number + R"(,"cat":"ac2g","pid":0,"tid":7,"ts":)" +
                 std::to_string(random() % 400) + "}");
        break;
      case 1:
        text.host("cpu_op", "far", random() % 2 ? 2.29e15 : -2.29e15, 5);
        break;
      case 2:
      case 3:
      case 4:
        text.launch("kernel" + number, at(random, 300), at(random, 9), at(random, 400),
                    at(random, 50), 7 + static_cast<int>(random() % 2),
                    static_cast<int>(random() % 30));
        break;
      default:
        text.host("cpu_op", "op" + number, at(random, 300), at(random, 80));
    }
  }
  return text.table();
}

GraphDelta any_edit(Random& random, const ExecutionGraph& graph) {
  constexpr std::int64_t kLong = 2'000'000'000'000'000'000;
  GraphDelta delta;
  for (EdgeId edge = 0; edge < graph.lag_ns.size(); ++edge) {
    const std::uint64_t chance = random() % 6;
    if (chance < 2) delta.set_lag(edge, chance ? kLong : 100);
    if (chance == 2) delta.drop(edge);
  }
  return delta;
}

}  // namespace

TEST_CASE("events keep their times in a replay without an edit, and stay within all times with one",
          "[simulation]") {
  Random random(7);
  for (int turn = 0; turn < 100; ++turn) {
    const EventTable table = any_table(random);
    const EventTree tree = build_tree(table);
    const std::vector<GraphRank> ranks{{&table, &tree}};
    const ExecutionGraph graph = build_execution_graph(ranks);
    const RowTimes same = row_times(graph, 0, table, replay(graph));
    CHECK(same.ts_ns == table.ts_ns);
    CHECK(same.dur_ns == table.dur_ns);
    const RowTimes moved =
        row_times(graph, 0, table, replay(graph, any_edit(random, graph)), 5'000);
    for (Row row = 0; row < table.size(); ++row) {
      CHECK(std::abs(moved.ts_ns[row]) <= kMaxTimeNs);
      CHECK(moved.dur_ns[row] >= 0);
    }
  }
}

TEST_CASE("arrows go with what they start or end at", "[simulation]") {
  const auto arrow = [](const std::string& phase, int pid, int tid, int ts) {
    return R"({"ph":")" + phase + R"(","id":1,"cat":"ac2g","pid":)" + std::to_string(pid) +
           R"(,"tid":)" + std::to_string(tid) + R"(,"ts":)" + std::to_string(ts) + "}";
  };
  const EventTable table = TraceText()
                               .launch("kernel", 10, 5, 30, 9, 7, 1)
                               .raw(arrow("s", 1, 1, 10))
                               .raw(arrow("f", 0, 7, 30))
                               .table();
  std::vector<std::uint8_t> kept(table.size(), 1);
  drop_loose_flows(table, kept);
  CHECK(kept == std::vector<std::uint8_t>(table.size(), 1));
  for (Row row = 0; row < table.size(); ++row) {
    if (table.name_of(row) == "kernel") kept[row] = 0;
  }
  drop_loose_flows(table, kept);
  for (Row row = 0; row < table.size(); ++row) {
    CHECK((kept[row] != 0) == (table.name_of(row) == "cudaLaunchKernel"));
  }
}
