#include <algorithm>

#include "catch.hpp"
#include "simulation/random_graph.hpp"
#include "simulation/simulated.hpp"
#include "traceap/base/error.hpp"
#include "traceap/simulation/replay.hpp"

using namespace traceap;

namespace {

/// A launch, a kernel of 100 us, a synchronisation that waits for it, and a call after that.
TraceText waiting() {
  TraceText text;
  text.launch("gemm", 10, 4, 20, 100, 7, 1);
  text.host("cuda_runtime", "cudaDeviceSynchronize", 15, 107, "\"correlation\":2");
  text.host("cpu_op", "aten::empty", 125, 5);
  return text;
}

}  // namespace

TEST_CASE("A replay with residuals gives back what was measured") {
  for (unsigned seed = 0; seed < 30; ++seed) {
    const Simulated s(RandomTrace(seed, 300, 1'000'000).text());
    REQUIRE(replay(s.graph) == s.graph.points.time_ns);
  }
}

TEST_CASE("An edge never costs more than it had, unless it explains its point alone") {
  for (unsigned seed = 0; seed < 30; ++seed) {
    const Simulated s(RandomTrace(seed, 300, 1'000'000).text());
    const DependencyGraph& points = s.graph.points;
    for (Point p = 0; p < s.graph.size(); ++p) {
      std::int64_t latest = std::numeric_limits<std::int64_t>::min();
      for (EdgeId e = points.in_offsets[p]; e < points.in_offsets[p + 1]; ++e) {
        latest = std::max(latest, points.time_ns[points.source[e]]);
      }
      for (EdgeId e = points.in_offsets[p]; e < points.in_offsets[p + 1]; ++e) {
        REQUIRE(s.graph.lag_ns[e] >= 0);
        REQUIRE(s.graph.lag_ns[e] + s.graph.residual_ns[e] <= points.lag_ns(e, p));
        if (points.time_ns[points.source[e]] < latest) {
          REQUIRE(s.graph.lag_ns[e] <= points.lag_ns(e, p));
        }
      }
    }
  }
}

TEST_CASE("Latencies are those of edges like them") {
  TraceText text;
  for (int i = 0; i < 8; ++i) {  // each kernel finds an idle stream: 5 us behind its call
    text.launch("a", 1000.0 * i, 4, 1000.0 * i + 9, 100, 7, 2 * i + 1);
    text.launch("b", 1000.0 * i + 500, 4, 1000.0 * i + 513 + (i == 3 ? 60 : 0), 100, 7, 2 * i + 2);
  }
  const Simulated s(text);
  const auto lag_of = [&](const std::string& name, int skip) {
    for (Row r = 0; r < s.trace.table.size(); ++r) {
      if (s.trace.table.name_of(r) == name && skip-- == 0) {
        return s.graph.lag_ns[s.edge_into(s.graph.begin_of[0][r], DependencyKind::kLaunch)];
      }
    }
    return std::int64_t{-1};
  };
  REQUIRE(lag_of("a", 3) == 5'000);
  REQUIRE(lag_of("b", 3) == 9'000);  // the late one is not latency
  REQUIRE(lag_of("b", 4) == 9'000);
}

TEST_CASE("Time in an open call before its work starts is the host's") {
  TraceText text;
  text.host("cuda_runtime", "cudaMemcpyAsync", 10, 900, "\"correlation\":1");
  text.gpu("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 890, 10, 7, 1, "\"bytes\":8");
  for (int i = 0; i < 6; ++i) {
    text.host("cuda_runtime", "cudaMemcpyAsync", 1000 + 100 * i, 30,
              "\"correlation\":" + std::to_string(i + 2));
    text.gpu("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 1008 + 100 * i, 10, 7, i + 2,
             "\"bytes\":8");
  }
  const Simulated s(text);
  const auto time_ns = replay(s.graph, {}, {.with_residuals = false});
  REQUIRE(time_ns[s.begin("Memcpy DtoH (Device -> Pageable)")] ==
          s.graph.points.time_ns[s.begin("Memcpy DtoH (Device -> Pageable)")]);
}

TEST_CASE("Staging of pageable copies costs by their bytes") {
  TraceText text;
  const std::vector<int> mebibytes{1, 2, 3, 4, 6, 8};
  double at = 0;
  for (int i = 0; i < 6; ++i) {  // 100 us a MiB behind the copy, and 10 us anyway
    const double staged = 100.0 * mebibytes[static_cast<std::size_t>(i)];
    text.host("cuda_runtime", "cudaMemcpyAsync", at, 120 + staged,
              "\"correlation\":" + std::to_string(i + 1));
    text.gpu("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", at + 10, 100, 7, i + 1,
             "\"bytes\":" + std::to_string(mebibytes[static_cast<std::size_t>(i)] << 20));
    at += 200 + staged;
  }
  for (int i = 0; i < 6; ++i) {
    text.launch("k", at, 5, at + 10, 50, 7, 100 + i);
    text.host("cuda_runtime", "cudaStreamSynchronize", at + 10, 60);
    at += 200;
  }
  const Simulated s(text);
  for (Point p = 0; p < s.graph.size(); ++p) {
    const EdgeId e = s.edge_into(p, DependencyKind::kHostWait);
    if (e == kNoEdge) continue;
    REQUIRE(std::abs(s.graph.residual_ns[e]) < 20'000);
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

TEST_CASE("Replays that look after each sum and those that need not give the same times") {
  // A node that nothing else needs, so long that sums of times may leave 64 bits.
  for (const std::int64_t start_ns : {std::int64_t{0}, kMaxTimeNs, -kMaxTimeNs}) {
    for (unsigned seed = 0; seed < 10; ++seed) {
      RandomGraph random(seed, 60);
      std::vector<std::int64_t> starts(60, start_ns);
      const ExecutionGraph bounded = build_plain_graph(random.durations, random.edges, starts);
      random.durations.push_back(kMaxTimeNs);
      starts.push_back(0);
      const ExecutionGraph unbounded = build_plain_graph(random.durations, random.edges, starts);
      GraphDelta delta;
      for (EdgeId e = seed; e < bounded.points.edges(); e += 7) delta.set_lag(e, 900 - 100 * e);
      for (EdgeId e = seed; e < bounded.points.edges(); e += 5) delta.drop(e);
      delta.add(100, 3, 10);
      delta.add(4, 90, 500);
      delta.carry(80, 6, 40);
      const std::vector<PlainEdge> carries{{2 * 59 + 1, 0, 5}, {3, 40, 70}};
      constexpr std::uint32_t kCopies = 70;
      const auto times = replay_chain(bounded, carries, kCopies, delta);
      const auto wanted = replay_chain(unbounded, carries, kCopies, delta);
      for (std::size_t copy = 0; copy < kCopies; ++copy) {
        for (Point p = 0; p < bounded.size(); ++p) {
          REQUIRE(times[copy * bounded.size() + p] == wanted[copy * unbounded.size() + p]);
        }
      }
      CHECK(std::count(times.begin(), times.end(), kNever) > 0);
    }
  }
}

TEST_CASE("Times stop at the ends of 64 bits, and lags beyond all times are refused") {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const std::vector<std::int64_t> durations(8, kMaxTimeNs);
  std::vector<PlainEdge> edges;
  for (Point i = 0; i + 1 < durations.size(); ++i) edges.push_back({2 * i + 1, 2 * i + 2, 0});
  const ExecutionGraph graph = build_plain_graph(durations, edges);
  CHECK(replay(graph).back() == kMost);
  CHECK(replay_chain(graph, {}, 2).back() == kNever);
  GraphDelta delta;
  for (EdgeId e = 0; e < graph.points.edges(); ++e) delta.set_lag(e, -kMaxTimeNs);
  CHECK(replay(graph, delta).back() == kNever + 1);  // a time, and not the word for none
  for (const std::int64_t lag : {kMost, kNever, kMaxTimeNs + 1, -kMaxTimeNs - 1}) {
    CHECK_THROWS_AS(delta.set_lag(0, lag), SchemaError);
    CHECK_THROWS_AS(delta.add(0, 1, lag), SchemaError);
    const PlainEdge edge[] = {{1, 2, lag}};
    CHECK_THROWS_AS(build_plain_graph(std::vector<std::int64_t>{1, 1}, edge), SchemaError);
    CHECK_THROWS_AS(build_plain_graph(std::vector<std::int64_t>{lag}, {}), SchemaError);
    const std::int64_t start[] = {lag};
    CHECK_THROWS_AS(build_plain_graph(std::vector<std::int64_t>{1}, {}, start), SchemaError);
  }
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
  GraphDelta outside, missing;
  outside.add(0, 9, 0);
  missing.drop(99);
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

// ---- limits of the machine

namespace {

/// Launches of 2 us, kernels of 100 us: the host runs ahead until `depth` wait, then keeps step.
TraceText full_queue(int launches, int depth, const std::string& call = "cudaLaunchKernel") {
  TraceText text;
  double host = 0, device = 0;
  std::vector<double> begins;
  for (int i = 0; i < launches; ++i) {
    double end = host + 2;
    if (i >= depth) end = std::max(end, begins[static_cast<std::size_t>(i - depth)] + 4);
    text.host("cuda_runtime", call, host, end - host, "\"correlation\":" + std::to_string(i + 1));
    device = std::max(device, host + 8);
    text.gpu("kernel", "k", device, 100, 7, i + 1);
    begins.push_back(device);
    device += 100;
    host = end + 1;
  }
  return text;
}

std::size_t count(const ExecutionGraph& graph, DependencyKind kind) {
  return static_cast<std::size_t>(
      std::count(graph.points.kind.begin(), graph.points.kind.end(), kind));
}

}  // namespace

TEST_CASE("A launch waits for room in its stream's queue") {
  for (const int depth : {1021, 1024}) {
    const Simulated s(full_queue(1300, depth));
    REQUIRE(count(s.graph, DependencyKind::kQueueLimit) == static_cast<std::size_t>(1300 - depth));
    GraphDelta faster;  // kernels in no time: the host never waits
    for (EdgeId e = 0; e < s.graph.points.edges(); ++e) {
      if (s.graph.points.kind[e] == DependencyKind::kExecution) faster.set_lag(e, 0);
    }
    const auto time_ns = replay(s.graph, faster, {.with_residuals = false});
    REQUIRE(*std::max_element(time_ns.begin(), time_ns.end()) < 1300 * 4'000 + 30'000);
  }
}

TEST_CASE("A queue that was deeper than the limit has none, nor has HIP's") {
  REQUIRE(count(Simulated(full_queue(1300, 1100)).graph, DependencyKind::kQueueLimit) == 0);
  REQUIRE(count(Simulated(full_queue(1300, 1021, "hipLaunchKernel")).graph,
                DependencyKind::kQueueLimit) == 0);
  ExecutionOptions none;
  none.queue_depth = 0;
  REQUIRE(count(Simulated(full_queue(1300, 1021), none).graph, DependencyKind::kQueueLimit) == 0);
}

namespace {
TraceText two_copies(double second_us) {
  TraceText text;
  for (const int stream : {7, 8}) {
    const int id = stream;
    text.host("cuda_runtime", "cudaMemcpyAsync", 10.0 * (stream - 7), 3,
              "\"correlation\":" + std::to_string(id));
    text.gpu("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", stream == 7 ? 20 : second_us, 100,
             stream, id, "\"bytes\":1000000");
  }
  return text;
}
}  // namespace

TEST_CASE("Copies of one direction that never overlap share an engine") {
  REQUIRE(count(Simulated(two_copies(121)).graph, DependencyKind::kCopyEngine) == 1);
  REQUIRE(count(Simulated(two_copies(90)).graph, DependencyKind::kCopyEngine) == 0);
}

TEST_CASE("Streams inside a captured graph keep their measured order") {
  TraceText text;
  text.host("cuda_runtime", "cudaGraphLaunch", 0, 10, "\"correlation\":1");
  text.gpu("kernel", "a", 20, 50, 7, 1);
  text.gpu("kernel", "b", 72, 30, 8, 1);
  text.gpu("kernel", "c", 110, 30, 7, 1);
  const Simulated s(text);
  const EdgeId b = s.edge_into(s.begin("b"), DependencyKind::kGraphOrder);
  const EdgeId c = s.edge_into(s.begin("c"), DependencyKind::kGraphOrder);
  REQUIRE(s.graph.points.source[b] == s.end("a"));
  REQUIRE(s.graph.lag_ns[b] == 2'000);
  REQUIRE(s.graph.points.source[c] == s.end("b"));
}

TEST_CASE("Known dependencies become edges unless times contradict them") {
  TraceText text;
  text.launch("a", 0, 4, 10, 100, 7, 1);
  text.launch("b", 5, 4, 15, 100, 8, 2);
  text.launch("c", 10, 4, 130, 10, 9, 3);
  const Simulated plain(text);
  const Row a = plain.row("a"), b = plain.row("b"), c = plain.row("c");
  const std::vector<GpuDependency> known{{0, a, c}, {0, a, b}};
  ExecutionOptions options;
  options.dependencies = known;
  const Simulated s(text, options);
  REQUIRE(count(s.graph, DependencyKind::kTensor) == 1);
  REQUIRE(s.graph.contradicted == 1);
  const EdgeId e = s.edge_into(s.begin("c"), DependencyKind::kTensor);
  REQUIRE(s.graph.points.source[e] == s.end("a"));
  REQUIRE(s.graph.points.evidence[e] == Evidence::kExplicit);
  const std::vector<GpuDependency> outside{{0, a, 99'999}};
  options.dependencies = outside;
  REQUIRE_THROWS_AS(Simulated(text, options), SchemaError);
}

// ---- chains

TEST_CASE("Copies in a chain follow each other") {
  const std::vector<std::int64_t> durations{10, 20, 30};
  const std::vector<PlainEdge> edges{{1, 2, 0}};  // 0 before 1; 2 stands alone
  const ExecutionGraph graph = build_plain_graph(durations, edges);
  const std::vector<PlainEdge> carries{{3, 0, 5}};
  const auto time_ns = replay_chain(graph, carries, 3);
  REQUIRE(std::vector<std::int64_t>(time_ns.begin(), time_ns.begin() + 6) == replay(graph));
  REQUIRE(std::vector<std::int64_t>(time_ns.begin() + 6, time_ns.begin() + 12) ==
          std::vector<std::int64_t>{35, 45, 45, 65, kNever, kNever});
  REQUIRE(time_ns[12] == 70);
  REQUIRE(replay_chain(graph, carries, 0).empty());
  const std::vector<PlainEdge> outside{{3, 77, 5}};
  REQUIRE_THROWS_AS(replay_chain(graph, outside, 2), SchemaError);
}

TEST_CASE("A carry may lead to any point, and edits hold in every copy") {
  for (unsigned seed = 0; seed < 10; ++seed) {
    const RandomGraph random(seed, 50);
    const ExecutionGraph graph = build_plain_graph(random.durations, random.edges);
    const std::vector<PlainEdge> carries{{99, 0, 0}, {49, 30, 7}};
    GraphDelta delta;
    delta.set_lag(3, 100);
    delta.add(1, 98, 5'000);
    // The same by hand: two copies in one graph.
    std::vector<std::int64_t> durations(random.durations);
    durations.insert(durations.end(), random.durations.begin(), random.durations.end());
    std::vector<PlainEdge> edges(random.edges);
    for (const PlainEdge& e : random.edges) {
      edges.push_back({e.source + 100, e.destination + 100, e.lag_ns});
    }
    edges.push_back({99, 100, 0});
    edges.push_back({49, 130, 7});
    const ExecutionGraph both = build_plain_graph(durations, edges);
    const auto chained = replay_chain(graph, carries, 2), once = replay(both);
    REQUIRE(chained == once);
    const auto edited = replay_chain(graph, carries, 2, delta);
    REQUIRE(std::vector<std::int64_t>(edited.begin(), edited.begin() + 100) ==
            replay(graph, delta));
    REQUIRE(edited[198] >= edited[101] + 5'000);
  }
}

TEST_CASE("Identical ranks take one rank's time") {
  const auto text = [](int rank) {
    TraceText t;
    t.launch("gemm", 10, 4, 20, 100, 7, 1);
    t.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 15, 4, 125, 40, 7, 2);
    t.host("cuda_runtime", "cudaDeviceSynchronize", 20, 150);
    t.host("cpu_op", "aten::empty", 172, 5 + 0 * rank);
    return t;
  };
  std::vector<Analysed> traces;
  for (int r = 0; r < 4; ++r) traces.emplace_back(text(r));
  std::vector<GraphRank> ranks;
  std::vector<CollectiveMember> members;
  for (std::uint32_t r = 0; r < 4; ++r) {
    ranks.push_back({&traces[r].table, &traces[r].tree});
    for (Row row = 0; row < traces[r].table.size(); ++row) {
      if (traces[r].name(row).starts_with("nccl")) members.push_back({r, row});
    }
  }
  REQUIRE(members.size() == 4);
  Meetings meetings;
  meetings.add(members);
  const ExecutionGraph all = build_execution_graph(ranks, meetings);
  const ExecutionGraph one = build_execution_graph(std::span(ranks).first(1));
  const auto last = [](const std::vector<std::int64_t>& t) {
    return *std::max_element(t.begin(), t.end());
  };
  for (const bool with : {true, false}) {
    REQUIRE(last(replay(all, {}, {.with_residuals = with})) ==
            last(replay(one, {}, {.with_residuals = with})));
  }
}

TEST_CASE("Points of one time are replayed behind what they need") {
  // A launch that ends as its kernel starts, a wait that returns as the kernel ends, whole
  // microseconds, and events without length.
  for (unsigned seed = 0; seed < 40; ++seed) {
    const Simulated s(RandomTrace(seed, 400, 50'000).text());  // many of one time
    const DependencyGraph& points = s.graph.points;
    for (Point p = 0; p < s.graph.size(); ++p) {
      REQUIRE(s.graph.order[s.graph.position[p]] == p);
      for (EdgeId e = points.in_offsets[p]; e < points.in_offsets[p + 1]; ++e) {
        REQUIRE(s.graph.position[points.source[e]] < s.graph.position[p]);
        REQUIRE(s.graph.layout.source[s.graph.layout.slot[e]] ==
                s.graph.position[points.source[e]]);
      }
    }
    for (std::size_t i = 1; i < s.graph.order.size(); ++i) {
      REQUIRE(points.time_ns[s.graph.order[i - 1]] <= points.time_ns[s.graph.order[i]]);
    }
  }
}

TEST_CASE("Nodes of one time in the wrong order, and in a circle") {
  const std::vector<std::int64_t> nothing{0, 0, 0, 0};
  const std::vector<PlainEdge> backwards{{7, 4, 0}, {5, 2, 0}, {3, 0, 9}};
  const ExecutionGraph graph = build_plain_graph(nothing, backwards);
  CHECK(replay(graph) == std::vector<std::int64_t>{9, 9, 0, 0, 0, 0, 0, 0});
  const std::vector<PlainEdge> circle{{7, 4, 0}, {5, 2, 0}, {3, 6, 0}};
  CHECK_THROWS_AS(build_plain_graph(nothing, circle), SchemaError);
}
