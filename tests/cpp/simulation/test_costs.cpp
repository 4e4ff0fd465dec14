#include <algorithm>

#include "catch.hpp"
#include "simulation/simulated.hpp"

using namespace traceap;

namespace {

/// Launches every 1,000 us that find the stream idle; the kernels start so much later.
TraceText launches(const std::vector<double>& latencies_us) {
  TraceText text;
  double at = 100'000;
  int id = 1;
  text.launch("first", at, 4, at + 9, 1, 7, id++);
  for (const double latency : latencies_us) {
    at += 1'000;
    text.launch("k", at, 4, at + 4 + latency, 50, 7, id++);
    at += latency;
  }
  return text;
}

std::vector<std::int64_t> lags(const Simulated& s, DependencyKind kind) {
  std::vector<std::int64_t> found;
  for (EdgeId e = 0; e < s.graph.points.edges(); ++e) {
    if (s.graph.points.kind[e] == kind) found.push_back(s.graph.lag_ns[e]);
  }
  return found;
}

}  // namespace

TEST_CASE("The latency of a launch is the least one, the rest is what the run took beyond it") {
  // Most launches that find the stream idle wait for something that no trace shows.
  std::vector<double> latencies;
  for (int i = 0; i < 20; ++i) latencies.push_back(i % 5 == 0 ? 6 : 3'000 + i);
  const Simulated s(launches(latencies));
  const auto of_launches = lags(s, DependencyKind::kLaunch);
  for (std::size_t i = 1; i < of_launches.size(); ++i) CHECK(of_launches[i] == 6'000);
  CHECK(replay(s.graph) == s.graph.points.time_ns);
}

TEST_CASE("No launch takes longer than 100 us by itself") {
  std::vector<double> latencies;
  for (int i = 0; i < 7; ++i) latencies.push_back(3'000 + i);
  const Simulated s(launches(latencies));
  const auto of_launches = lags(s, DependencyKind::kLaunch);
  for (std::size_t i = 1; i < of_launches.size(); ++i) CHECK(of_launches[i] == 100'000);
  CHECK(replay(s.graph) == s.graph.points.time_ns);
}

// ---- work from before the recording

namespace {

/// Recording begins while the GPU has 30 ms of work in its queue.
TraceText backlog() {
  TraceText text;
  double at = 130'000;
  for (int i = 0; i < 40; ++i) {
    text.launch("k", 100'000 + 100 * i, 5, at, 900, 7, i + 1);
    at += 901;
  }
  text.host("cuda_runtime", "cudaDeviceSynchronize", 104'100, at - 104'100 + 5);
  for (int i = 0; i < 10; ++i) {  // the latency of launches that find the stream idle
    text.launch("k", at + 1'000 * i + 100, 5, at + 1'000 * i + 110, 50, 7, 100 + i);
  }
  return text;
}

}  // namespace

TEST_CASE("The first work of a stream waits for what was launched before the recording") {
  const Simulated s(backlog());
  const auto times = replay(s.graph, {}, {.with_residuals = false});
  const Point first = s.graph.begin_of[0][s.trace.tree.gpu_rows.front()];
  CHECK(times[first] == s.graph.points.time_ns[first]);
  const Point synced = s.end("cudaDeviceSynchronize");
  CHECK(std::abs(times[synced] - s.graph.points.time_ns[synced]) < 100'000);
  CHECK(replay(s.graph) == s.graph.points.time_ns);
}

TEST_CASE("In a later copy of a chain there is no work from before the recording") {
  const Simulated s(backlog());
  const Point first = s.graph.begin_of[0][s.trace.tree.gpu_rows.front()];
  const Point begin = s.graph.begin_of[0][s.trace.tree.launch[s.trace.tree.gpu_rows.front()]];
  const std::vector<PlainEdge> carries{{begin, begin, 200'000'000}};
  const auto times = replay_chain(s.graph, carries, 2);
  CHECK(times[first] - times[begin] == 30'000'000);
  CHECK(times[s.graph.size() + first] - times[s.graph.size() + begin] < 100'000);
}

TEST_CASE("Work without a launch keeps its distance from the work that it follows") {
  TraceText text = launches({5, 5, 5, 5, 5});
  text.gpu("kernel", "late", 120'000, 10, 8, 900);
  text.gpu("kernel", "later", 127'000, 10, 8, 901);
  const Simulated s(text);
  const auto times = replay(s.graph, {}, {.with_residuals = false});
  CHECK(times[s.begin("later")] - times[s.end("late")] == 6'990'000);
}

// ---- workers

namespace {

constexpr const char* kFetch = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__";

/// Steps of 10 ms on the host behind fetches of these lengths.
TraceText fetching(const std::vector<double>& fetches_us, const char* frame = nullptr) {
  TraceText text;
  double at = 0;
  int id = 1;
  for (const double fetch : fetches_us) {
    text.host("user_annotation", kFetch, at, fetch);
    if (frame != nullptr) text.host("python_function", frame, at + 20, fetch - 40);
    at += fetch;
    text.host("cpu_op", "aten::mm", at, 10'000);
    text.launch("gemm", at + 9'000, 5, at + 9'010, 100, 7, id++);
    at += 10'001;
  }
  return text;
}

struct Pace {
  Simulated run;
  std::vector<EdgeId> edges;

  explicit Pace(const TraceText& text) : run(text) {
    for (EdgeId e = 0; e < run.graph.points.edges(); ++e) {
      if (run.graph.points.kind[e] == DependencyKind::kWorkerPace) edges.push_back(e);
    }
  }
  /// The last point, where each operator takes only so long.
  std::int64_t end_ns(std::int64_t operator_ns) const {
    const DependencyGraph& points = run.graph.points;
    GraphDelta delta;
    for (Point p = 0; p < run.graph.size(); ++p) {
      for (EdgeId e = points.in_offsets[p]; e < points.in_offsets[p + 1]; ++e) {
        const Row owner = points.owner[e];
        if (points.kind[e] == DependencyKind::kProgramOrder && owner != kNoRow &&
            run.trace.name(owner) == "aten::mm") {
          delta.set_lag(e, operator_ns / 3);
        }
      }
    }
    const auto times = replay(run.graph, delta);
    return *std::max_element(times.begin(), times.end());
  }
};

}  // namespace

TEST_CASE("A run that waits for its workers gets no faster by less work of the host") {
  const Pace pace(fetching(std::vector<double>(10, 40'000)));
  REQUIRE(pace.edges.size() == 9);
  for (const EdgeId e : pace.edges) {
    CHECK(pace.run.graph.lag_ns[e] == 50'001'000);
    CHECK(pace.run.graph.points.evidence[e] == Evidence::kInferred);
  }
  const std::int64_t measured_ns = pace.end_ns(10'000'000), faster_ns = pace.end_ns(1'000'000);
  CHECK(measured_ns - faster_ns < 12'000'000);  // the last step alone
  CHECK(replay(pace.run.graph) == pace.run.graph.points.time_ns);
}

TEST_CASE("Batches that were there cost what it takes to take them, late ones no more") {
  const Pace pace(fetching({150, 90'000, 160, 170, 90'000, 150, 140, 90'000, 150, 160}));
  REQUIRE(pace.edges.size() == 2);  // from one late batch to the next
  const ExecutionGraph& graph = pace.run.graph;
  CHECK(graph.lag_ns[pace.edges[0]] == 90'000'000 + 160'000 + 170'000 + 3 * 10'001'000);
  for (EdgeId e = 0; e < graph.points.edges(); ++e) {
    const Row owner = graph.points.owner[e];
    if (owner == kNoRow || graph.points.kind[e] != DependencyKind::kProgramOrder) continue;
    if (pace.run.trace.name(owner) != kFetch) continue;
    CHECK((graph.lag_ns[e] <= 170'000 || graph.lag_ns[e] == 90'000'000));  // the first
  }
}

TEST_CASE("A fetch did not wait if it is prompt, nearly so, or works") {
  CHECK(Pace(fetching(std::vector<double>(10, 150))).edges.empty());
  CHECK(Pace(fetching({150, 700, 150, 700, 150, 700, 150, 700})).edges.empty());
  const std::vector<double> slow(8, 30'000);
  CHECK(Pace(fetching(slow, "queue.py(171): get")).edges.size() == 7);
  CHECK(Pace(fetching(slow, "collate.py(8): unpack")).edges.empty());
  CHECK(Pace(fetching({30'000})).edges.empty());
}

TEST_CASE("A thread that is blocked is at nobody's service") {
  TraceText text;
  for (int i = 0; i < 5; ++i) text.host("cpu_op", "aten::mm", 1'000 * i, 900);
  for (const char* thread : {"1", "2"}) {  // the main thread, and one beside it
    text.complete("python_function", "writer.py(1): run", 10'000, 5'000, 1, thread);
    text.complete("python_function", "queue.py(171): get", 10'500, 4'000, 1, thread);
    text.complete("python_function", "writer.py(7): write", 14'500, 500, 1, thread);
  }
  const Simulated s(text);
  std::vector<std::int64_t> blocked;
  for (EdgeId e = 0; e < s.graph.points.edges(); ++e) {
    const Row owner = s.graph.points.owner[e];
    if (owner != kNoRow && s.trace.name(owner) == "queue.py(171): get") {
      blocked.push_back(s.graph.lag_ns[e]);
    }
  }
  CHECK(blocked == std::vector<std::int64_t>{4'000'000, 0});
  CHECK(replay(s.graph) == s.graph.points.time_ns);
}
