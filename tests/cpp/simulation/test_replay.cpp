#include <algorithm>
#include <random>

#include "analysis/analysed.hpp"
#include "catch.hpp"
#include "traceap/base/error.hpp"
#include "traceap/simulation/replay.hpp"

using namespace traceap;

namespace {

struct Simulated {
  Analysed trace;
  std::vector<GraphRank> ranks;
  ExecutionGraph graph;

  explicit Simulated(const TraceText& text, const ExecutionOptions& options = {})
      : trace(text.table()),
        ranks{{&trace.table, &trace.tree}},
        graph(build_execution_graph(ranks, {}, options)) {}

  Row row(const std::string& name) const {
    for (Row r = 0; r < trace.table.size(); ++r) {
      if (trace.table.name_of(r) == name) return r;
    }
    return kNoRow;
  }
  Point begin(const std::string& name) const { return graph.begin_of[0][row(name)]; }
  Point end(const std::string& name) const { return graph.end_of[0][row(name)]; }
  EdgeId edge_into(Point point, DependencyKind kind) const {
    for (EdgeId e = graph.points.in_offsets[point]; e < graph.points.in_offsets[point + 1]; ++e) {
      if (graph.points.kind[e] == kind) return e;
    }
    return kNoEdge;
  }
};

/// A launch, a kernel of 100 us, a synchronisation that waits for it, and a call after that.
TraceText waiting() {
  TraceText text;
  text.launch("gemm", 10, 4, 20, 100, 7, 1);
  text.host("cuda_runtime", "cudaDeviceSynchronize", 15, 107, "\"correlation\":2");
  text.host("cpu_op", "aten::empty", 125, 5);
  return text;
}

/// Random acyclic nodes and edges.
struct RandomGraph {
  std::vector<std::int64_t> durations;
  std::vector<PlainEdge> edges;

  explicit RandomGraph(unsigned seed, Point nodes = 200) {
    std::mt19937 random(seed);
    const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
    for (Point i = 0; i < nodes; ++i) durations.push_back(below(1000));
    for (Point i = 1; i < nodes; ++i) {
      edges.push_back({2 * (i - 1 - below(std::min<Point>(i, 8))) + 1, 2 * i, below(50)});
      if (below(2)) edges.push_back({2 * below(i), 2 * i, below(20)});
    }
  }
  /// The longest path to each node's end, by its definition.
  std::vector<std::int64_t> longest_paths() const {
    std::vector<std::int64_t> time(2 * durations.size(), 0);
    for (Point i = 0; i < durations.size(); ++i) {
      for (const PlainEdge& e : edges) {
        if (e.destination == 2 * i) time[2 * i] = std::max(time[2 * i], time[e.source] + e.lag_ns);
      }
      time[2 * i + 1] = time[2 * i] + durations[i];
    }
    return time;
  }
};

}  // namespace

TEST_CASE("A replay with residuals gives back what was measured") {
  for (unsigned seed = 0; seed < 30; ++seed) {
    const Simulated s(RandomTrace(seed, 300, 1'000'000).text());
    REQUIRE(replay(s.graph) == s.graph.points.time_ns);
  }
}

TEST_CASE("Without residuals nothing is later than measured") {
  for (unsigned seed = 0; seed < 30; ++seed) {
    const Simulated s(RandomTrace(seed, 300, 1'000'000).text());
    const auto time_ns = replay(s.graph, {}, {.with_residuals = false});
    for (Point p = 0; p < s.graph.size(); ++p) REQUIRE(time_ns[p] <= s.graph.points.time_ns[p]);
  }
}

TEST_CASE("The order of events in the file is irrelevant") {
  const RandomTrace trace(3, 200, 500'000);
  const Simulated a(trace.text()), b(trace.text(0, 17U));
  REQUIRE(replay(a.graph, {}, {.with_residuals = false}) ==
          replay(b.graph, {}, {.with_residuals = false}));
}

TEST_CASE("A plain graph is replayed as its longest paths") {
  for (unsigned seed = 0; seed < 50; ++seed) {
    const RandomGraph random(seed);
    const ExecutionGraph graph = build_plain_graph(random.durations, random.edges);
    REQUIRE(replay(graph) == random.longest_paths());
  }
}

TEST_CASE("Scaling everything scales the result") {
  const RandomGraph random(5);
  const ExecutionGraph graph = build_plain_graph(random.durations, random.edges);
  const auto once = replay(graph), thrice = replay(graph, {}, {.scale = 3.0});
  for (std::size_t p = 0; p < once.size(); ++p) REQUIRE(thrice[p] == 3 * once[p]);
}

TEST_CASE("Work that is taken away never makes a replay slower") {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const RandomGraph random(seed);
    const ExecutionGraph graph = build_plain_graph(random.durations, random.edges);
    GraphDelta delta;
    for (EdgeId e = 0; e < graph.points.edges(); e += 7) delta.set_lag(e, 0);
    for (EdgeId e = 3; e < graph.points.edges(); e += 11) {
      if (graph.points.kind[e] != DependencyKind::kExecution) delta.drop(e);
    }
    const auto before = replay(graph), after = replay(graph, delta);
    for (std::size_t p = 0; p < before.size(); ++p) REQUIRE(after[p] <= before[p]);
  }
}

TEST_CASE("A host that need not wait goes on at once") {
  const Simulated s(waiting());
  const Point synced = s.end("cudaDeviceSynchronize");
  const EdgeId wait = s.edge_into(synced, DependencyKind::kHostWait);
  REQUIRE(wait != kNoEdge);
  GraphDelta delta;
  delta.drop(wait);
  const auto time_ns = replay(s.graph, delta);
  const std::int64_t saved =
      s.graph.points.time_ns[s.begin("aten::empty")] - time_ns[s.begin("aten::empty")];
  REQUIRE(saved > 90'000);
  REQUIRE(time_ns[s.end("gemm")] == s.graph.points.time_ns[s.end("gemm")]);
}

TEST_CASE("A faster kernel lets the waiting host return earlier") {
  const Simulated s(waiting());
  GraphDelta delta;
  delta.set_lag(s.edge_into(s.end("gemm"), DependencyKind::kExecution), 40'000);
  const auto time_ns = replay(s.graph, delta);
  REQUIRE(time_ns[s.end("aten::empty")] == s.graph.points.time_ns[s.end("aten::empty")] - 60'000);
}

TEST_CASE("An added dependency may lead against the old order") {
  const std::vector<std::int64_t> durations{10, 20, 30};
  const std::vector<PlainEdge> edges{{1, 2, 0}};
  const ExecutionGraph graph = build_plain_graph(durations, edges);
  GraphDelta delta;
  delta.add(5, 0, 5);  // the first node now waits for the last
  REQUIRE(replay(graph, delta) == std::vector<std::int64_t>{35, 45, 45, 65, 0, 30});
}

TEST_CASE("An edit that can't be is refused in words") {
  const std::vector<std::int64_t> durations{10, 20};
  const std::vector<PlainEdge> edges{{1, 2, 0}};
  const ExecutionGraph graph = build_plain_graph(durations, edges);
  GraphDelta cycle, outside, missing;
  cycle.add(3, 0, 0);
  outside.add(0, 9, 0);
  missing.drop(99);
  REQUIRE_THROWS_AS(replay(graph, cycle), SchemaError);
  REQUIRE_THROWS_AS(replay(graph, outside), SchemaError);
  REQUIRE_THROWS_AS(replay(graph, missing), SchemaError);
  const std::vector<PlainEdge> loop{{1, 2, 0}, {3, 0, 0}};
  REQUIRE_THROWS_AS(build_plain_graph(durations, loop), SchemaError);
  const std::vector<std::int64_t> negative{-1};
  REQUIRE_THROWS_AS(build_plain_graph(negative, {}), SchemaError);
}

TEST_CASE("Edits join, the later lag wins") {
  const std::vector<std::int64_t> durations{10};
  const ExecutionGraph graph = build_plain_graph(durations, {});
  GraphDelta first, second;
  first.set_lag(0, 3);
  second.set_lag(0, 4);
  first.join(second);
  REQUIRE(replay(graph, first) == std::vector<std::int64_t>{0, 4});
}

TEST_CASE("The binding edge explains every point") {
  const Simulated s(RandomTrace(11, 300, 1'000'000).text());
  const auto time_ns = replay(s.graph);
  const auto binding = binding_edges(s.graph, time_ns);
  for (Point p = 0; p < s.graph.size(); ++p) {
    if (binding[p] == kNoEdge) continue;
    const EdgeId e = binding[p];
    REQUIRE(time_ns[s.graph.points.source[e]] + s.graph.lag_ns[e] + s.graph.residual_ns[e] ==
            time_ns[p]);
  }
}
