// Threads that read the same table, tree, costs and graph without a lock. The thread sanitizer says
// whether any of it writes (preset tsan); without it the tests check that all get the same result.

#include <optional>
#include <thread>

#include "analysis/analysed.hpp"
#include "catch.hpp"
#include "traceap/analysis/costs/gpu_costs.hpp"
#include "traceap/simulation/replay.hpp"
#include "traceap/trace/write.hpp"

using namespace traceap;

namespace {

constexpr unsigned kThreads = 4;

/// Does `compute` give each of several threads the same at the same time?
template <typename Compute>
bool same_on_threads(Compute compute) {
  using Result = decltype(compute());
  std::vector<Result> results(kThreads);
  {
    std::vector<std::jthread> threads;
    for (Result& result : results) threads.emplace_back([&] { result = compute(); });
  }
  const Result expected = compute();
  for (const Result& result : results) {
    if (result != expected) return false;
  }
  return true;
}

TraceText random_text() { return RandomTrace(7, 400, 1'000'000).text(); }

}  // namespace

TEST_CASE("threads read one table", "[simulation]") {
  const EventTable table = random_text().table();
  CHECK(same_on_threads([&] { return trace_json(table); }));
  CHECK(same_on_threads([&] { return build_tree(table).parent; }));
  CHECK(same_on_threads([&] {
    const ArgReader reader(table, "stream");  // has a cache: one for each thread
    std::vector<std::optional<std::int64_t>> values;
    for (Row r = 0; r < table.size(); ++r) values.push_back(reader.integer(r));
    return values;
  }));
}

TEST_CASE("threads read one tree", "[simulation]") {
  const Analysed a(random_text());
  CHECK(same_on_threads([&] { return build_gpu_costs(a.table, a.tree).owned_exclusive_ns; }));
  CHECK(same_on_threads([&] { return a.idle().total_ns; }));
  CHECK(same_on_threads([&] {
    const GraphRank rank{&a.table, &a.tree};
    return build_execution_graph({&rank, 1}).lag_ns;
  }));
}

TEST_CASE("threads replay one graph, each with its own edit", "[simulation]") {
  const Analysed a(random_text());
  const GpuCosts costs = build_gpu_costs(a.table, a.tree);
  const GraphRank rank{&a.table, &a.tree};
  const ExecutionGraph graph = build_execution_graph({&rank, 1});
  CHECK(same_on_threads([&] {
    GraphDelta delta;
    for (EdgeId edge = 0; edge < graph.points.edges(); edge += 3) delta.set_lag(edge, 0);
    std::vector<std::int64_t> times = replay(graph, delta);
    const std::vector<EdgeId> binding = binding_edges(graph, times);
    times.insert(times.end(), binding.begin(), binding.end());
    times.insert(times.end(), costs.exclusive_ns.begin(), costs.exclusive_ns.end());
    return times;
  }));
}
