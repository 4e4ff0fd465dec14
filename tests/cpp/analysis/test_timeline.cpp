#include <algorithm>
#include <vector>

#include "analysis/analysed.hpp"
#include "catch.hpp"

using namespace traceap;

namespace {

constexpr const char* kNccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL";

/// The definitions, counted nanosecond by nanosecond.
Timeline count_each_ns(const Analysed& a, Interval bounds) {
  std::vector<std::uint8_t> mask(
      static_cast<std::size_t>(std::max<std::int64_t>(0, bounds.length_ns())));
  for (const Row r : a.tree.gpu_rows) {
    const int bit = static_cast<int>(a.tree.gpu_class[r]);
    const std::int64_t from = std::max(a.table.ts_ns[r], bounds.start_ns);
    const std::int64_t to = std::min(a.table.end_ns(r), bounds.end_ns);
    for (std::int64_t t = from; t < to; ++t) {
      mask[static_cast<std::size_t>(t - bounds.start_ns)] |= static_cast<std::uint8_t>(1 << bit);
    }
  }
  const auto has = [](std::uint8_t m, GpuClass c) { return (m >> static_cast<int>(c) & 1) != 0; };
  Timeline t;
  t.span_ns = static_cast<std::int64_t>(mask.size());
  for (const std::uint8_t m : mask) {
    const bool compute = has(m, GpuClass::kCompute), copy = has(m, GpuClass::kMemcpy);
    const bool communication = has(m, GpuClass::kCommunication);
    t.busy_ns += m != 0;
    t.idle_ns += m == 0;
    t.compute_ns += compute;
    t.communication_ns += communication;
    t.memcpy_ns += copy;
    t.exposed_communication_ns += communication && !compute;
    t.exposed_memcpy_ns += copy && !compute && !communication;
  }
  return t;
}

void check_identity(const Timeline& t) {
  CHECK(t.compute_ns + t.exposed_communication_ns + t.exposed_memcpy_ns + t.idle_ns == t.span_ns);
}

}  // namespace

TEST_CASE("a timeline splits GPU time by INTERFACE's definitions", "[analysis]") {
  const Analysed a(TraceText()
                       .gpu("kernel", "gemm", 10, 20, 7, 1)
                       .gpu("kernel", kNccl, 20, 30, 20, 2)
                       .gpu("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 45, 20, 21, 3)
                       .gpu("gpu_memset", "Memset (Device)", 80, 10, 7, 4));
  const Timeline t = compute_timeline(a.gpu);
  CHECK(t.span_ns == 80'000);
  CHECK(t.busy_ns == 65'000);
  CHECK(t.idle_ns == 15'000);
  CHECK(t.compute_ns == 30'000);  // the memset counts
  CHECK(t.communication_ns == 30'000);
  CHECK(t.memcpy_ns == 20'000);
  CHECK(t.exposed_communication_ns == 20'000);
  CHECK(t.exposed_memcpy_ns == 15'000);
  check_identity(t);
}

TEST_CASE("a timeline clips to bounds, and the span is theirs", "[analysis]") {
  const Analysed a(
      TraceText().gpu("kernel", "gemm", 10, 20, 7, 1).gpu("kernel", kNccl, 20, 30, 20, 2));
  const Timeline t = compute_timeline(a.gpu, {0, 25'000});
  CHECK(t.span_ns == 25'000);
  CHECK(t.busy_ns == 15'000);
  CHECK(t.communication_ns == 5'000);
  CHECK(t.exposed_communication_ns == 0);
  check_identity(t);
  CHECK(compute_timeline(a.gpu, {25'000, 25'000}) == Timeline{});
  CHECK(compute_timeline(a.gpu, {25'000, 0}) == Timeline{});
  CHECK(compute_timeline(a.gpu, {0, 10'000}).idle_ns == 10'000);
}

TEST_CASE("a timeline without GPU events is all zeros", "[analysis]") {
  const Analysed a(TraceText().host("cpu_op", "aten::add", 0, 10));
  CHECK(compute_timeline(a.gpu) == Timeline{});
}

TEST_CASE("events of no length reach the span but are never busy", "[analysis]") {
  const Analysed a(TraceText()
                       .gpu("kernel", "first", 5, 0, 7, 1)
                       .gpu("kernel", "gemm", 10, 10, 7, 2)
                       .gpu("kernel", "last", 30, 0, 7, 3));
  const Timeline t = compute_timeline(a.gpu);
  CHECK(t.span_ns == 25'000);
  CHECK(t.busy_ns == 10'000);
  check_identity(t);
  const Analysed only(TraceText().gpu("kernel", "only", 5, 0, 7, 1));
  CHECK(compute_timeline(only.gpu) == Timeline{});
}

TEST_CASE("orphans and other devices can be left out", "[analysis]") {
  const Analysed a(TraceText()
                       .launch("gemm", 0, 5, 10, 10, 7, 1)
                       .gpu("kernel", "orphan", 30, 10, 7, 99)
                       .complete("kernel", "elsewhere", 50, 10, 1, "7",
                                 "\"device\":1,\"stream\":7,\"correlation\":98"));
  CHECK(compute_timeline(a.gpu).busy_ns == 30'000);
  const auto linked = build_gpu_intervals(a.table, a.tree, {.linked_only = true});
  CHECK(compute_timeline(linked).busy_ns == 10'000);
  CHECK(compute_timeline(linked).span_ns == 10'000);
  const auto other = build_gpu_intervals(a.table, a.tree, {.device = 1});
  CHECK(compute_timeline(other).busy_ns == 10'000);
  CHECK(compute_timeline(build_gpu_intervals(a.table, a.tree, {.device = 5})) == Timeline{});
}

TEST_CASE("timelines add up field by field", "[analysis]") {
  const Timeline a{10, 7, 3, 4, 2, 1, 2, 1}, b{1, 1, 0, 1, 0, 0, 0, 0};
  CHECK(a + b == Timeline{11, 8, 3, 5, 2, 1, 2, 1});
}

TEST_CASE("timelines agree with a count of every nanosecond", "[analysis]") {
  for (unsigned seed = 0; seed < 40; ++seed) {
    const Analysed a(RandomTrace(seed, 5 + static_cast<int>(seed) * 3, 2'000).text());
    INFO("seed " << seed);
    CHECK(compute_timeline(a.gpu) == count_each_ns(a, a.span()));
    for (const Interval bounds : {Interval{0, 700}, Interval{333, 1'500}, Interval{1'999, 5'000}}) {
      const Timeline t = compute_timeline(a.gpu, bounds);
      CHECK(t == count_each_ns(a, bounds));
      check_identity(t);
    }
  }
}

TEST_CASE("every device has a timeline of its own span", "[analysis]") {
  TraceText text;
  text.launch("a", 0, 1, 10, 5, 7, 1).launch("b", 2, 1, 20, 10, 7, 2);
  text.raw(
      R"({"ph":"X","cat":"kernel","name":"c","pid":1,"tid":7,"ts":12,"dur":4,"args":{"device":1,"stream":7,"correlation":99}})");
  text.raw(
      R"({"ph":"X","cat":"kernel","name":"d","pid":1,"tid":7,"ts":30,"dur":4,"args":{"stream":7,"correlation":2}})");
  const EventTable table = text.table();
  const EventTree tree = build_tree(table);
  const std::vector<DeviceTimeline> all = compute_device_timelines(table, tree);
  REQUIRE(all.size() == 3);
  CHECK(all[0].device == -1);
  CHECK(all[0].timeline.span_ns == 4000);
  for (const DeviceTimeline& d : all) {
    if (d.device < 0) continue;
    CAPTURE(d.device);
    CHECK(d.timeline == compute_timeline(build_gpu_intervals(table, tree, {.device = d.device})));
  }
  CHECK(compute_device_timelines(table, tree, true).size() == 2);  // device 1 has an orphan only
}
