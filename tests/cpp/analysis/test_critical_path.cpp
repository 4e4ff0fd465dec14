#include <numeric>

#include "analysed.hpp"
#include "catch.hpp"
#include "traceap/analysis/compat/hta_graph.hpp"
#include "traceap/analysis/compat/longest_path.hpp"
#include "traceap/analysis/dependencies/critical_path.hpp"

using namespace traceap;

namespace {

constexpr std::int64_t kUs = 1000;
using Lines = std::vector<std::string>;

/// Of the path, with its causes alone held against it.
CriticalPath path_of(const Analysed& a, Interval range) {
  const std::vector<GraphRank> ranks{{&a.table, &a.tree, 0}};
  const DependencyGraph graph = build_dependency_graph(ranks);
  CriticalPath path = find_critical_path(graph, ranks, range);
  PathCauses expected;
  for (const PathSegment& s : path.segments) {
    if (!expected.cause.empty() && expected.cause.back() == s.cause)
      expected.end_ns.pop_back();
    else
      expected.cause.push_back(s.cause);
    expected.end_ns.push_back(s.end_ns);
  }
  const PathCauses causes = find_path_causes(graph, ranks, range);
  REQUIRE(causes.cause == expected.cause);
  REQUIRE(causes.end_ns == expected.end_ns);
  return path;
}

/// "cause start-end name" in us.
Lines describe(const Analysed& a, const CriticalPath& path) {
  Lines lines;
  for (const PathSegment& s : path.segments) {
    lines.push_back(std::string(path_cause_name(s.cause)) + " " + std::to_string(s.start_ns / kUs) +
                    "-" + std::to_string(s.end_ns / kUs) + " " + a.name(s.row));
  }
  return lines;
}

void require_tiling(const CriticalPath& path) {
  std::int64_t at = path.range.start_ns;
  for (const PathSegment& s : path.segments) {
    REQUIRE(s.start_ns == at);
    REQUIRE(s.end_ns > s.start_ns);
    at = s.end_ns;
  }
  REQUIRE(at == path.range.end_ns);
  REQUIRE(std::accumulate(path.total_ns.begin(), path.total_ns.end(), std::int64_t{0}) ==
          path.range.length_ns());
}

}  // namespace

TEST_CASE("a host that is ahead leaves the path to the GPU") {
  TraceText text;
  text.host("cpu_op", "aten::mm", 0, 20).launch("first", 5, 5, 12, 100, 7, 1);
  text.host("cpu_op", "aten::add", 25, 20).launch("second", 30, 5, 113, 50, 7, 2);
  text.host("cuda_runtime", "cudaDeviceSynchronize", 50, 120, "\"correlation\":3");
  const Analysed a(text);
  CHECK(describe(a, path_of(a, {0, 170 * kUs})) ==
        Lines{"host_other 0-5 aten::mm", "host_other 5-10 cudaLaunchKernel",
              "launch_latency 10-12 first", "gpu_compute 12-112 first", "gpu_gap 112-113 second",
              "gpu_compute 113-163 second", "synchronization 163-170 cudaDeviceSynchronize"});
}

TEST_CASE("a host that is behind keeps the path") {
  TraceText text;
  text.host("cpu_op", "aten::mm", 0, 50).launch("first", 5, 5, 12, 8, 7, 1);
  text.host("cpu_op", "aten::add", 60, 48).launch("second", 100, 5, 107, 3, 7, 2);
  const Analysed a(text);
  CHECK(describe(a, path_of(a, {0, 110 * kUs})) ==
        Lines{"host_other 0-5 aten::mm", "host_other 5-10 cudaLaunchKernel",
              "host_other 10-50 aten::mm", "host_gap 50-60 ", "host_other 60-100 aten::add",
              "host_other 100-105 cudaLaunchKernel", "launch_latency 105-107 second",
              "gpu_compute 107-110 second"});
}

TEST_CASE("a narrower range is a part of the same path") {
  TraceText text;
  text.launch("first", 0, 5, 12, 100, 7, 1);
  text.host("cuda_runtime", "cudaDeviceSynchronize", 50, 70, "\"correlation\":3");
  const Analysed a(text);
  CHECK(describe(a, path_of(a, {40 * kUs, 60 * kUs})) == Lines{"gpu_compute 40-60 first"});
}

TEST_CASE("what no event reaches is unknown") {
  TraceText text;
  text.host("cpu_op", "aten::mm", 10, 10);
  const Analysed a(text);
  const CriticalPath path = path_of(a, {0, 50 * kUs});
  CHECK(describe(a, path) == Lines{"unknown 0-10 ", "host_other 10-20 aten::mm", "unknown 20-50 "});
  CHECK(path.assumed_ns == 40 * kUs);
  require_tiling(path);
}

TEST_CASE("staging a pageable copy is the copy's time") {
  TraceText text;
  text.host("cuda_runtime", "cudaMemcpyAsync", 0, 900, "\"correlation\":1")
      .gpu("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 300, 700, 7, 1);
  const Analysed a(text);
  CHECK(describe(a, path_of(a, {0, 1000 * kUs})) ==
        Lines{"copy 0-300 cudaMemcpyAsync", "copy 300-1000 Memcpy HtoD (Pageable -> Device)"});
}

TEST_CASE("the margin tells how far the next best predecessor is") {
  TraceText text;
  text.launch("first", 0, 5, 10, 20, 7, 1).launch("second", 6, 4, 31, 5, 7, 2);
  const Analysed a(text);
  const CriticalPath path = path_of(a, {0, 36 * kUs});
  const auto gap = std::find_if(path.segments.begin(), path.segments.end(),
                                [](const auto& s) { return s.cause == PathCause::kGpuGap; });
  REQUIRE(gap != path.segments.end());
  CHECK(gap->margin_ns == 20 * kUs);  // first ended at 30, the launch call at 10
}

TEST_CASE("where ranks wait the path goes on with the last one") {
  TraceText early, late;
  early.launch("ncclDevKernel_AllReduce", 0, 2, 10, 110, 7, 1);
  early.host("cuda_runtime", "cudaDeviceSynchronize", 5, 120, "\"correlation\":3");
  late.host("cpu_op", "slow", 0, 80).launch("ncclDevKernel_AllReduce", 85, 2, 90, 30, 7, 1);
  const Analysed a(early), b(late);
  const std::vector<GraphRank> ranks{{&a.table, &a.tree, 0}, {&b.table, &b.tree, 0}};
  const Meetings met{{0, 2}, {{0, a.tree.gpu_rows[0]}, {1, b.tree.gpu_rows[0]}}};
  const CriticalPath path =
      find_critical_path(build_dependency_graph(ranks, met), ranks, {0, 125 * kUs});
  require_tiling(path);
  std::vector<std::uint32_t> visited;
  for (const PathSegment& s : path.segments) {
    if (visited.empty() || visited.back() != s.rank) visited.push_back(s.rank);
  }
  CHECK(visited == std::vector<std::uint32_t>{1, 0});
  CHECK(path.segments.front().cause == PathCause::kHostOther);
  CHECK(path.total_ns[static_cast<std::size_t>(PathCause::kCommunication)] == 30 * kUs);
}

TEST_CASE("the path tiles any range of any trace") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    const std::int64_t span = seed % 2 ? 4000 : 4'000'000;
    const Analysed a(RandomTrace(seed, 80, span).text());
    for (const Interval range : {Interval{0, span}, Interval{span / 3, span / 2},
                                 Interval{-span, 3 * span}, a.tree.profiled}) {
      require_tiling(path_of(a, range));
    }
  }
}

TEST_CASE("events in another order give the same path") {
  const RandomTrace random(7, 200, 1'000'000);
  const Analysed a(random.text()), b(random.text(0, 3));
  CHECK(path_of(a, a.tree.profiled).total_ns == path_of(b, b.tree.profiled).total_ns);
}

TEST_CASE("an empty trace and an empty range have no segments") {
  const Analysed empty{EventTable()};
  CHECK(path_of(empty, {0, 0}).segments.empty());
  CHECK(path_of(empty, {0, 5}).total_ns[static_cast<std::size_t>(PathCause::kUnknown)] == 5);
}

TEST_CASE("of equal paths the earliest edge wins") {
  const std::vector<WeightedEdge> edges{{0, 1, 2}, {0, 2, 2}, {1, 3, 1}, {2, 3, 1}, {4, 3, 3}};
  const LongestPath path = find_longest_path(5, edges);
  CHECK(path.nodes == std::vector<std::uint32_t>{0, 1, 3});
  CHECK(path.length == 3);
}

TEST_CASE("a circle has no longest path") {
  const std::vector<WeightedEdge> edges{{0, 1, 1}, {1, 2, 1}, {2, 1, 1}};
  CHECK_FALSE(find_longest_path(3, edges).is_acyclic);
  CHECK(find_longest_path(0, {}).nodes.empty());
}

TEST_CASE("HTA's path of a launch into an idle stream") {
  TraceText text;
  text.host("cpu_op", "aten::mm", 0, 20).launch("kernel", 5, 5, 12, 100, 7, 1);
  HtaOptions options;
  const HtaPath path = find_hta_path(text.table(), options);
  REQUIRE(path.found);
  CHECK(path.nodes == 6);
  // op to call, call, call to op's end, launch, kernel
  CHECK(path.edges == 5);
  CHECK(path.duration_us == 112);
  CHECK(path.path_events == 3);
  CHECK(path.edges_of_kind[static_cast<std::size_t>(HtaEdgeKind::kLaunchDelay)] == 1);
}

TEST_CASE("HTA rounds times inwards and loses short calls") {
  TraceText text;
  text.host("cpu_op", "aten::mm", 0, 20).host("cpu_op", "aten::short", 5.3, 0.5);
  HtaOptions options;
  CHECK(find_hta_path(text.table(), options).nodes == 2);
}

TEST_CASE("HTA knows no path without the annotation") {
  TraceText text;
  text.host("cpu_op", "aten::mm", 0, 20);
  HtaOptions options;
  options.annotation = "nothing";
  CHECK_FALSE(find_hta_path(text.table(), options).found);
  CHECK_FALSE(find_hta_path(EventTable(), HtaOptions{}).found);
}
