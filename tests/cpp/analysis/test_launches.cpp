#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "analysis/analysed.hpp"
#include "catch.hpp"
#include "traceap/analysis/costs/launches.hpp"

using namespace traceap;

namespace {

/// "time length name" per change, times in us.
std::vector<std::string> describe(const Analysed& a, const LaunchQueue& queue) {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < queue.length.size(); ++i) {
    lines.push_back(std::to_string(queue.time_ns[i] / 1000) + " " +
                    std::to_string(queue.length[i]) + " " + a.name(queue.row[i]));
  }
  return lines;
}

}  // namespace

TEST_CASE("a launch waits in its stream's queue until its event begins", "[launches]") {
  const Analysed a(TraceText()
                       .launch("one", 0, 5, 20, 10, 7, 1)
                       .launch("two", 10, 5, 30, 10, 7, 2)
                       .launch("other", 12, 5, 40, 1, 9, 3)
                       .launch("three", 20, 5, 60, 0, 7, 4)
                       .gpu("kernel", "orphan", 70, 5, 7, 99));
  const LaunchQueue queue = build_launch_queue(a.table, a.tree);
  REQUIRE(queue.offsets == std::vector<std::uint32_t>{0, 6, 8});
  CHECK(describe(a, queue) ==
        std::vector<std::string>{"0 1 cudaLaunchKernel", "10 2 cudaLaunchKernel",
                                 "20 3 cudaLaunchKernel", "20 2 one", "30 1 two", "60 0 three",
                                 "12 1 cudaLaunchKernel", "40 0 other"});
  CHECK(queue.found == std::vector<std::int32_t>{0, 1, 0, 2, -1});
}

TEST_CASE("a graph counts once for each of its streams", "[launches]") {
  TraceText text;
  text.host("cuda_runtime", "cudaGraphLaunch", 0, 5, R"("correlation":1)");
  for (int i = 0; i < 4; ++i) text.gpu("kernel", "k", 10 + 10 * i, 5, i % 2, 1);
  const Analysed a(text);
  const LaunchQueue queue = build_launch_queue(a.table, a.tree);
  CHECK(describe(a, queue) ==
        std::vector<std::string>{"0 1 cudaGraphLaunch", "10 0 k", "0 1 cudaGraphLaunch", "20 0 k"});
}

TEST_CASE("an event before its call leaves as the call enters", "[launches]") {
  const Analysed a(TraceText().launch("early", 50, 5, 20, 10, 7, 1));
  const LaunchQueue queue = build_launch_queue(a.table, a.tree);
  CHECK(queue.time_ns == std::vector<std::int64_t>{50'000, 50'000});
  CHECK(queue.length == std::vector<std::int32_t>{1, 0});
}

TEST_CASE("nothing on the GPU, nothing queued", "[launches]") {
  const Analysed a(TraceText().host("cpu_op", "aten::add", 0, 5));
  const LaunchQueue queue = build_launch_queue(a.table, a.tree);
  CHECK(queue.offsets == std::vector<std::uint32_t>{0});
  CHECK(queue.length.empty());
}

TEST_CASE("queues of random traces start and end empty and agree with counting", "[launches]") {
  for (unsigned seed = 0; seed < 30; ++seed) {
    const Analysed a(RandomTrace(seed, 200, 400'000).text().table());
    const LaunchQueue queue = build_launch_queue(a.table, a.tree);
    REQUIRE(queue.offsets.size() == a.tree.streams.size() + 1);
    REQUIRE(queue.offsets.back() == queue.length.size());
    for (std::size_t s = 0; s + 1 < queue.offsets.size(); ++s) {
      std::int32_t before = 0;
      std::set<Row> calls;
      for (std::size_t i = queue.offsets[s]; i < queue.offsets[s + 1]; ++i) {
        CHECK(std::abs(queue.length[i] - before) == 1);
        CHECK(queue.length[i] >= 0);
        if (i > queue.offsets[s]) CHECK(queue.time_ns[i] >= queue.time_ns[i - 1]);
        if (queue.length[i] > before) CHECK(calls.insert(queue.row[i]).second);
        before = queue.length[i];
      }
      CHECK(before == 0);
    }
    // What each launch found: earlier calls of the stream whose first event is still to begin.
    for (std::size_t i = 0; i < a.tree.gpu_rows.size(); ++i) {
      if (a.tree.launch[a.tree.gpu_rows[i]] == kNoRow)
        CHECK(queue.found[i] == -1);
      else
        CHECK(queue.found[i] >= 0);
    }
  }
}
