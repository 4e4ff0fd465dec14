#include <numeric>
#include <random>
#include <set>
#include <string>

#include "analysis/analysed.hpp"
#include "catch.hpp"
#include "traceap/analysis/costs/gpu_costs.hpp"
#include "traceap/analysis/idle/host_self.hpp"

using namespace traceap;

namespace {

constexpr const char* kNccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL";

struct Costed : Analysed {
  explicit Costed(const TraceText& text) : Analysed(text), costs(build_gpu_costs(table, tree)) {}

  /// The first row with a name.
  Row row(const std::string& wanted) const {
    for (Row r = 0; r < table.size(); ++r) {
      if (table.name_of(r) == wanted) return r;
    }
    FAIL("no row " + wanted);
    return kNoRow;
  }
  GpuCosts costs;
};

std::int64_t sum(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

/// An operator with a launch call inside it, and the kernel of that call.
void add_op(TraceText& text, const std::string& op, double start_us, int correlation,
            double kernel_us, double kernel_dur_us, const std::string& args = "") {
  text.host("cpu_op", op, start_us, 10, args);
  text.launch("k" + std::to_string(correlation), start_us + 1, 2, kernel_us, kernel_dur_us, 7,
              correlation);
}

}  // namespace

TEST_CASE("compute hides collectives, which hide copies; the first of a class has the time") {
  const Costed a(TraceText()
                     .gpu("kernel", "gemm", 0, 10, 7, 1)
                     .gpu("kernel", "add", 5, 10, 8, 2)
                     .gpu("kernel", kNccl, 12, 8, 9, 3)
                     .gpu("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 0, 30, 10, 4));
  CHECK(a.costs.exclusive_ns[a.row("gemm")] == 10'000);
  CHECK(a.costs.exclusive_ns[a.row("add")] == 5'000);
  CHECK(a.costs.exclusive_ns[a.row(kNccl)] == 5'000);
  CHECK(a.costs.exclusive_ns[a.row("Memcpy HtoD (Pinned -> Device)")] == 10'000);
}

TEST_CASE("an op owns what it launches itself, ancestors have it in their subtree") {
  TraceText text;
  text.host("cpu_op", "outer", 0, 100);
  add_op(text, "inner", 10, 1, 50, 10);
  add_op(text, "inner", 30, 2, 55, 10);
  text.launch("direct", 60, 2, 80, 5, 7, 3);
  const Costed a(text);
  const Row outer = a.row("outer"), inner = a.row("inner");
  CHECK(a.costs.own_gpu_ns[outer] == 5'000);
  CHECK(a.costs.own_gpu_events[outer] == 1);
  CHECK(a.costs.subtree_gpu_ns[outer] == 20'000);  // 50-65 and 80-85
  CHECK(a.costs.subtree_gpu_events[outer] == 3);
  CHECK(a.costs.own_gpu_ns[inner] == 10'000);
  CHECK(a.costs.own_launches[inner] == 1);
  CHECK(a.costs.owned_exclusive_ns[inner] == 10'000);
  CHECK(a.costs.owner[a.row("k1")] == inner);
}

TEST_CASE("a graph launch is one launch of many events; without an op it owns them itself") {
  TraceText text;
  text.host("cuda_runtime", "cudaGraphLaunch", 0, 10, R"("correlation":9)");
  for (int i = 0; i < 3; ++i) text.gpu("kernel", "g", 20 + 10 * i, 5, 7, 9);
  const Costed a(text);
  const Row launch = a.row("cudaGraphLaunch");
  CHECK(a.costs.own_gpu_events[launch] == 3);
  CHECK(a.costs.own_launches[launch] == 1);
  CHECK(a.costs.own_gpu_ns[launch] == 15'000);
}

TEST_CASE("an External id names the owner where there is no launch; orphans have none") {
  const Costed a(TraceText()
                     .host("cpu_op", "outer", 0, 20)
                     .host("cpu_op", "named", 1, 5, R"("External id":77)")
                     .gpu("kernel", "by_id", 30, 4, 7, 1001, R"("External id":77)")
                     .gpu("kernel", "orphan", 40, 4, 7, 1002));
  CHECK(a.costs.owner[a.row("by_id")] == a.row("named"));
  CHECK(a.costs.subtree_gpu_ns[a.row("outer")] == 4'000);
  CHECK(a.costs.own_launches[a.row("named")] == 0);
  CHECK(a.costs.owner[a.row("orphan")] == kNoRow);
}

TEST_CASE("a row is repeated if one of its kind and name encloses it") {
  const Costed a(TraceText()
                     .host("cpu_op", "forward", 0, 100)
                     .host("user_annotation", "forward", 5, 80)
                     .host("cpu_op", "forward", 10, 20)
                     .host("cpu_op", "forward", 110, 20));
  std::vector<int> repeated;
  for (const Row row : a.tree.host_rows) repeated.push_back(a.costs.is_repeated[row]);
  CHECK(repeated == std::vector<int>{0, 0, 1, 0});
}

TEST_CASE("backward time goes to its forward op once, and to all that enclose that") {
  TraceText text;
  text.host("cpu_op", "linear", 0, 30);
  text.host("cpu_op", "addmm", 5, 20, R"("Sequence number":5,"Fwd thread id":0)");
  const std::string back = R"("Sequence number":5,"Fwd thread id":1)";
  const auto on_engine = [&](const std::string& name, double ts, double dur,
                             const std::string& args) {
    text.complete("cpu_op", name, ts, dur, 1, "2", args);
  };
  on_engine("autograd::engine::evaluate_function: AddmmBackward0", 100, 50, back);
  on_engine("AddmmBackward0", 105, 40, back);
  on_engine("mm", 110, 10, "");
  text.complete("cuda_runtime", "cudaLaunchKernel", 111, 2, 1, "2", R"("correlation":4)");
  text.gpu("kernel", "gemm", 120, 30, 7, 4);
  const Costed a(text);
  CHECK(a.costs.backward_gpu_ns[a.row("addmm")] == 30'000);
  CHECK(a.costs.backward_gpu_ns[a.row("linear")] == 0);
  CHECK(a.costs.subtree_backward_gpu_ns[a.row("linear")] == 30'000);
}

TEST_CASE("self time: children are taken out, what overlaps counts to the later row") {
  const Costed a(TraceText()
                     .host("cpu_op", "parent", 0, 100)
                     .host("cpu_op", "first", 10, 20)
                     .host("cpu_op", "second", 25, 20)  // overlaps: begins in first, ends behind it
                     .host("cpu_op", "empty", 50, 0));
  CHECK(a.costs.self_host_ns[a.row("parent")] == 65'000);
  CHECK(a.costs.self_host_ns[a.row("first")] == 15'000);
  CHECK(a.costs.self_host_ns[a.row("second")] == 20'000);
  CHECK(a.costs.self_host_ns[a.row("empty")] == 0);
}

TEST_CASE("a child that sticks out by the tolerance keeps its time, the thread its union") {
  const Costed a(TraceText().host("cpu_op", "parent", 0, 10).host("cpu_op", "child", 5, 5.5));
  CHECK(a.costs.self_host_ns[a.row("parent")] == 5'000);
  CHECK(a.costs.self_host_ns[a.row("child")] == 5'500);
}

TEST_CASE("group unions follow gpu_rows and leave out what is in no group") {
  const Costed a(TraceText()
                     .gpu("kernel", "a", 0, 10, 7, 1)
                     .gpu("kernel", "b", 5, 10, 8, 2)
                     .gpu("kernel", "c", 30, 10, 7, 3)
                     .gpu("kernel", "d", 50, 10, 7, 4));
  const std::vector<std::int32_t> groups{1, 1, -1, 7};
  CHECK(group_gpu_union(a.table, a.tree, groups, 2) == std::vector<std::int64_t>{0, 15'000});
}

TEST_CASE("times are conserved on random traces") {
  for (unsigned seed = 0; seed < 150; ++seed) {
    const Costed a(RandomTrace(seed, 120, 4000).text());
    const Timeline timeline = compute_timeline(a.gpu);
    REQUIRE(sum(a.costs.exclusive_ns) == timeline.busy_ns);
    std::int64_t unowned = 0;
    std::vector<std::int64_t> by_class(4, 0);
    for (const Row row : a.tree.gpu_rows) {
      REQUIRE(a.costs.exclusive_ns[row] >= 0);
      by_class[static_cast<std::size_t>(a.tree.gpu_class[row])] += a.costs.exclusive_ns[row];
      if (a.costs.owner[row] == kNoRow) unowned += a.costs.exclusive_ns[row];
    }
    REQUIRE(by_class[1] == timeline.compute_ns);
    REQUIRE(by_class[2] == timeline.exposed_communication_ns);
    REQUIRE(by_class[3] == timeline.exposed_memcpy_ns);
    REQUIRE(sum(a.costs.owned_exclusive_ns) + unowned == timeline.busy_ns);
    for (const Row row : a.tree.host_rows) {
      REQUIRE(a.costs.own_gpu_ns[row] <= a.costs.subtree_gpu_ns[row]);
      REQUIRE(a.costs.own_launches[row] <= a.costs.own_gpu_events[row]);
    }
  }
}

TEST_CASE("self time of a thread is the union of its rows on random traces") {
  for (unsigned seed = 0; seed < 150; ++seed) {
    const EventTable table = RandomTrace(seed, 120, 4000).text().table();
    const EventTree tree = build_tree(table, {.overlap_tolerance_ns = 0});
    for (const TrackId track : tree.host_tracks) {
      std::vector<Interval> rows;
      for (std::uint32_t i = tree.host_offsets[track]; i < tree.host_offsets[track + 1]; ++i) {
        rows.push_back({table.ts_ns[tree.host_rows[i]], table.end_ns(tree.host_rows[i])});
      }
      std::vector<Interval> pieces;
      visit_self_time(table, tree, track, [&](Row row, Interval piece) {
        REQUIRE(piece.length_ns() > 0);
        REQUIRE((pieces.empty() || pieces.back().end_ns <= piece.start_ns));
        REQUIRE(table.ts_ns[row] <= piece.start_ns);
        REQUIRE(piece.end_ns <= table.end_ns(row));
        pieces.push_back(piece);
      });
      REQUIRE(make_union(pieces) == make_union(rows));
    }
  }
}

TEST_CASE("host time while the GPU idles adds up for every thread and cause") {
  for (unsigned seed = 0; seed < 150; ++seed) {
    const Costed a(RandomTrace(seed, 120, 4000).text());
    const Interval bounds = a.tree.profiled;
    const IdleBreakdown idle = a.idle(bounds);
    std::vector<std::int32_t> group_of(a.table.size());
    for (Row row = 0; row < a.table.size(); ++row) {
      group_of[row] = static_cast<std::int32_t>(row % 4) - 1;  // a quarter takes its parent's
    }
    const HostIdle host = build_host_idle(a.table, a.tree, idle, bounds, group_of, 3);
    NsByCause threads{}, groups{};
    std::int64_t busy_ns = 0;
    for (const HostThread& thread : host.threads) {
      busy_ns += thread.busy_ns;
      for (std::size_t cause = 0; cause < threads.size(); ++cause) {
        threads[cause] += thread.busy_idle_ns[cause];
        REQUIRE(thread.silent_idle_ns[cause] >= 0);
        REQUIRE(thread.busy_idle_ns[cause] + thread.silent_idle_ns[cause] == idle.total_ns[cause]);
      }
    }
    for (const NsByCause& group : host.idle_self_ns) {
      for (std::size_t cause = 0; cause < groups.size(); ++cause) groups[cause] += group[cause];
    }
    REQUIRE(groups == threads);
    REQUIRE(sum(host.self_ns) == busy_ns);
  }
}

TEST_CASE("host time while the GPU idles: causes, groups of the row around, blocking calls") {
  const Costed a(TraceText()
                     .launch("first", 0, 1, 2, 8, 7, 1)
                     .host("python_function", "train.py(3): step", 0, 100)
                     .host("cpu_op", "aten::item", 20, 40)
                     .host("cuda_runtime", "cudaStreamSynchronize", 30, 20)
                     .launch("second", 80, 1, 90, 5, 7, 2));
  const IdleBreakdown idle = a.idle({0, 100'000});
  std::vector<std::int32_t> group_of(a.table.size(), -1);
  group_of[a.row("train.py(3): step")] = 0;
  group_of[a.row("aten::item")] = 1;
  const HostIdle host = build_host_idle(a.table, a.tree, idle, {0, 100'000}, group_of, 2);
  REQUIRE(host.threads.size() == 1);
  // Idle: 0-2, 10-90 and 95-100.
  const auto total = [](const NsByCause& by_cause) {
    return std::accumulate(by_cause.begin(), by_cause.end(), std::int64_t{0});
  };
  CHECK(total(host.idle_self_ns[1]) == 40'000);
  CHECK(total(host.threads[0].busy_idle_ns) == 87'000);
  CHECK(total(host.threads[0].silent_idle_ns) == 0);
  CHECK(host.threads[0].blocked_idle_ns == 20'000);
  CHECK(host.self_ns[1] == 40'000);
}

namespace {

/// Calls nested at random, to `depth`, whose launches start kernels on streams that overlap.
TraceText random_calls(std::mt19937& random, int launches, int depth) {
  TraceText text;
  const auto draw = [&](int most) {
    return static_cast<int>(random() % static_cast<unsigned>(most));
  };
  for (int i = 0; i < launches; ++i) {
    const int start = 1000 * i, ends = start + 999 - draw(3);
    for (int level = draw(depth + 1); level > 0; --level) {
      text.host("cpu_op", "op" + std::to_string(level), start + depth - level,
                ends - start - 2 * depth);
    }
    // Some kernels run at once, some long after their launch, some for no time at all.
    text.launch("k", start + depth + 1, 2, start + 10 + draw(3000), draw(4) == 0 ? 0 : draw(4000),
                7 + draw(3), i + 1);
    if (i % 7 == 3) text.host("cpu_op", "over_several", start - 2500, 3499);
  }
  return text;
}

/// The definition: for each row the union of all kernels launched in its subtree.
std::int64_t union_below(const Costed& a, Row row) {
  std::vector<Interval> below;
  for (const Row gpu : a.tree.gpu_rows) {
    const Row launch = a.tree.launch[gpu];
    if (launch != kNoRow && is_inside(a.tree, launch, row)) {
      below.push_back({a.table.ts_ns[gpu], a.table.end_ns(gpu)});
    }
  }
  return total_length_ns(make_union(std::move(below)));
}

}  // namespace

TEST_CASE("the GPU time below a row is the union of all that its subtree launched") {
  std::mt19937 random(7);
  for (int round = 0; round < 40; ++round) {
    const Costed a(random_calls(random, 30, 1 + round % 12));
    for (const Row row : a.tree.host_rows) {
      REQUIRE(a.costs.subtree_gpu_ns[row] == union_below(a, row));
    }
  }
}

TEST_CASE("rows are asked for the innermost marked row above them") {
  TraceText text;
  text.host("cpu_op", "outer", 0, 100)
      .host("cpu_op", "middle", 10, 50)
      .host("cpu_op", "inner", 20, 10);
  text.host("cpu_op", "alone", 200, 10);
  const Costed a(text);
  std::vector<std::uint8_t> marked(a.table.size(), 0);
  marked[a.row("outer")] = marked[a.row("middle")] = 1;
  const std::vector<Row> found = innermost_marked(a.tree, marked);
  CHECK(found[a.row("inner")] == a.row("middle"));
  CHECK(found[a.row("middle")] == a.row("middle"));
  CHECK(found[a.row("outer")] == a.row("outer"));
  CHECK(found[a.row("alone")] == kNoRow);
}
