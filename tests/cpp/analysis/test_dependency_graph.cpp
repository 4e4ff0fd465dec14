#include <algorithm>
#include <string>
#include <tuple>

#include "analysed.hpp"
#include "catch.hpp"
#include "traceap/analysis/compat/longest_path.hpp"
#include "traceap/analysis/dependencies/dependency_graph.hpp"

using namespace traceap;

namespace {

struct Linked {
  Analysed trace;
  std::vector<GraphRank> ranks;
  DependencyGraph graph;

  explicit Linked(const TraceText& text) : Linked(text.table()) {}
  explicit Linked(EventTable&& table)
      : trace(std::move(table)),
        ranks{{&trace.table, &trace.tree}},
        graph(build_dependency_graph(ranks)) {}

  std::string point_name(Point point) const {
    return (graph.is_end[point] ? "end of " : "begin of ") + trace.name(graph.row[point]);
  }
  /// "source -> destination (evidence)" of all edges of a kind.
  std::vector<std::string> edges(DependencyKind kind) const {
    std::vector<std::string> lines;
    for (Point p = 0; p < graph.size(); ++p) {
      for (std::uint32_t e = graph.in_offsets[p]; e < graph.in_offsets[p + 1]; ++e) {
        if (graph.kind[e] != kind) continue;
        lines.push_back(point_name(graph.source[e]) + " -> " + point_name(p) + " (" +
                        std::string(evidence_name(graph.evidence[e])) + ")");
      }
    }
    return lines;
  }
};

using Lines = std::vector<std::string>;

std::string correlation(int id) { return "\"correlation\":" + std::to_string(id); }

TraceText& call(TraceText& text, const std::string& name, double ts_us, double dur_us, int id) {
  return text.host("cuda_runtime", name, ts_us, dur_us, correlation(id));
}

void require_forward(const DependencyGraph& graph) {
  REQUIRE(graph.in_offsets.size() == std::size_t{graph.size()} + 1);
  for (Point p = 0; p < graph.size(); ++p) {
    for (std::uint32_t e = graph.in_offsets[p]; e < graph.in_offsets[p + 1]; ++e) {
      REQUIRE(graph.lag_ns(e, p) >= 0);
      REQUIRE(graph.source[e] != p);
    }
  }
}

bool is_acyclic(const DependencyGraph& graph) {
  std::vector<WeightedEdge> edges;
  for (Point p = 0; p < graph.size(); ++p) {
    for (std::uint32_t e = graph.in_offsets[p]; e < graph.in_offsets[p + 1]; ++e) {
      edges.push_back({graph.source[e], p, 1});
    }
  }
  return find_longest_path(graph.size(), edges).is_acyclic;
}

}  // namespace

TEST_CASE("points of a thread follow its rows inside out") {
  TraceText text;
  text.host("cpu_op", "outer", 0, 10).host("cpu_op", "inner", 2, 3).host("cpu_op", "next", 12, 1);
  const Linked g(text);
  CHECK(g.edges(DependencyKind::kProgramOrder) ==
        Lines{"begin of outer -> begin of inner (explicit)",
              "begin of inner -> end of inner (explicit)",
              "end of inner -> end of outer (explicit)", "end of outer -> begin of next (explicit)",
              "begin of next -> end of next (explicit)"});
  CHECK(g.graph.time_ns == std::vector<std::int64_t>{0, 2000, 5000, 10000, 12000, 13000});
}

TEST_CASE("a launch leads from the call's end, or its beginning where work starts meanwhile") {
  TraceText text;
  text.launch("late", 0, 5, 8, 2, 7, 1).launch("early", 20, 10, 24, 2, 7, 2);
  const Linked g(text);
  CHECK(g.edges(DependencyKind::kLaunch) ==
        Lines{"end of cudaLaunchKernel -> begin of late (explicit)",
              "begin of cudaLaunchKernel -> begin of early (explicit)"});
  CHECK(g.edges(DependencyKind::kStreamOrder) == Lines{"end of late -> begin of early (explicit)"});
}

TEST_CASE("work that starts a little before its call follows what the thread did then") {
  TraceText text;
  text.host("cpu_op", "before", 0, 10).launch("kernel", 20, 5, 19, 4, 7, 1);
  const Linked g(text);
  CHECK(g.edges(DependencyKind::kLaunch) == Lines{"end of before -> begin of kernel (explicit)"});
}

TEST_CASE("a device-wide wait follows the last work of each stream launched before it") {
  TraceText text;
  text.launch("a", 0, 5, 10, 5, 7, 1)
      .launch("b", 6, 2, 16, 30, 7, 2)
      .launch("c", 9, 2, 20, 20, 8, 3);
  call(text, "hipDeviceSynchronize", 15, 33, 4).launch("later", 60, 5, 70, 5, 7, 5);
  const Linked g(text);
  CHECK(g.edges(DependencyKind::kHostWait) ==
        Lines{"end of b -> end of hipDeviceSynchronize (explicit)",
              "end of c -> end of hipDeviceSynchronize (explicit)"});
}

TEST_CASE("a recorded stream synchronisation names its stream") {
  TraceText text;
  text.launch("a", 0, 5, 10, 25, 7, 1).launch("b", 6, 2, 20, 20, 8, 2);
  call(text, "cudaStreamSynchronize", 15, 40, 4).gpu("cuda_sync", "Stream Sync", 15, 20, 7, 4);
  const Linked g(text);
  CHECK(g.edges(DependencyKind::kHostWait) ==
        Lines{"end of a -> end of cudaStreamSynchronize (explicit)"});
}

TEST_CASE("without a record the work that ended last during the wait is inferred") {
  TraceText text;
  text.launch("a", 0, 5, 10, 25, 7, 1).launch("b", 6, 2, 20, 30, 8, 2);
  call(text, "cudaStreamSynchronize", 15, 22, 4);  // returns at 37: behind a, before b
  CHECK(Linked(text).edges(DependencyKind::kHostWait) ==
        Lines{"end of a -> end of cudaStreamSynchronize (inferred)"});
  TraceText idle;
  idle.launch("a", 0, 5, 10, 3, 7, 1);
  call(idle, "cudaStreamSynchronize", 15, 22, 4);  // nothing was running
  CHECK(Linked(idle).edges(DependencyKind::kHostWait).empty());
}

TEST_CASE("polling an event waits for nothing") {
  TraceText text;
  text.launch("a", 0, 5, 10, 25, 7, 1);
  call(text, "cudaEventQuery", 15, 22, 4);
  CHECK(Linked(text).edges(DependencyKind::kHostWait).empty());
}

TEST_CASE("a recorded stream wait joins the work before the record with the next launch") {
  TraceText text;
  text.launch("producer", 0, 2, 10, 30, 7, 1);
  call(text, "cudaEventRecord", 3, 1, 2);
  text.launch("unrelated", 5, 2, 40, 30, 7, 3);
  call(text, "cudaStreamWaitEvent", 8, 1, 4);
  text.gpu("cuda_sync", "Stream Wait Event", 8, 1, 8, 4,
           R"("wait_on_stream":7,"wait_on_cuda_event_record_corr_id":2)");
  text.launch("consumer", 10, 2, 42, 5, 8, 5);
  CHECK(Linked(text).edges(DependencyKind::kStreamWait) ==
        Lines{"end of producer -> begin of consumer (explicit)"});
}

TEST_CASE("a stream wait without a record takes the work that ended last before") {
  TraceText text;
  text.launch("producer", 0, 2, 10, 30, 7, 1);
  call(text, "hipStreamWaitEvent", 8, 1, 4);
  text.launch("consumer", 10, 2, 60, 5, 8, 5);
  CHECK(Linked(text).edges(DependencyKind::kStreamWait) ==
        Lines{"end of producer -> begin of consumer (inferred)"});
}

TEST_CASE("a blocking copy call returns when its copy has ended") {
  TraceText text;
  call(text, "cudaMemcpyAsync", 0, 50, 1)
      .gpu("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 10, 35, 7, 1);
  call(text, "cudaMemcpyAsync", 60, 5, 2)
      .gpu("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 70, 35, 7, 2);
  CHECK(Linked(text).edges(DependencyKind::kHostWait) ==
        Lines{"end of Memcpy DtoH (Device -> Pageable) -> end of cudaMemcpyAsync (explicit)"});
}

TEST_CASE("the autograd engine's work is handed over and awaited by a silent thread") {
  TraceText text;
  text.host("user_annotation", "ProfilerStep#1", 0, 500)
      .host("cpu_op", "aten::loss", 10, 20)
      .complete("cpu_op", "autograd::engine::evaluate_function: MulBackward0", 100, 50, 1, "2")
      .complete("cpu_op", "autograd::engine::evaluate_function: AddBackward0", 160, 50, 1, "2")
      .host("cpu_op", "aten::step", 300, 10);
  const Linked g(text);
  CHECK(g.edges(DependencyKind::kThreadStart) ==
        Lines{"end of aten::loss -> begin of autograd::engine::evaluate_function: MulBackward0 "
              "(inferred)"});
  CHECK(g.edges(DependencyKind::kThreadJoin) ==
        Lines{"end of autograd::engine::evaluate_function: AddBackward0 -> begin of aten::step "
              "(inferred)"});
}

TEST_CASE("work without a launch follows what ended last on its device") {
  TraceText text;
  text.gpu("kernel", "a", 0, 10, 7, 1).gpu("kernel", "b", 12, 10, 8, 2);
  CHECK(Linked(text).edges(DependencyKind::kDeviceOrder) ==
        Lines{"end of a -> begin of b (assumed)"});
}

TEST_CASE("work that waits for room follows from inside the work that fills the device") {
  TraceText text;
  text.launch("big", 0, 2, 10, 5000, 7, 1).launch("small", 5, 2, 4900, 200, 8, 2);
  const Linked g(text);
  CHECK(g.edges(DependencyKind::kDeviceBusy) == Lines{"begin of big -> begin of small (assumed)"});
  CHECK(g.graph.time_ns[g.graph.size() - 1] == 4'900'000);
}

TEST_CASE("a wait returns within 200 us of the work it waited for") {
  const auto waits = [](double returned_us) {
    TraceText text;
    text.launch("a", 0, 5, 10, 25, 7, 1);  // to 35
    call(text, "cudaStreamSynchronize", 15, returned_us - 15, 4);
    return Linked(text).edges(DependencyKind::kHostWait).size();
  };
  CHECK(waits(235) == 1);
  CHECK(waits(236) == 0);
}

TEST_CASE("clocks of host and GPU agree to 20 us") {
  const auto waits = [](double returned_us) {
    TraceText text;
    text.launch("a", 0, 5, 10, 25, 7, 1);  // to 35
    call(text, "cudaStreamSynchronize", 8, returned_us - 8, 4);
    text.gpu("cuda_sync", "Stream Sync", 8, returned_us - 8, 7, 4);
    return Linked(text).edges(DependencyKind::kHostWait).size();
  };
  CHECK(waits(15) == 1);
  CHECK(waits(14) == 0);
}

TEST_CASE("a start 20 us late, within 5 us of other work's end, waited for that") {
  const auto waits = [](double end_us, double start_us) {
    TraceText text;
    text.launch("producer", 0, 2, 10, end_us - 10, 7, 1);
    text.launch("consumer", 10, 2, start_us, 5, 8, 2);  // ready at 12
    return Linked(text).edges(DependencyKind::kStreamWait);
  };
  CHECK(waits(31, 33) == Lines{"end of producer -> begin of consumer (assumed)"});
  CHECK(waits(30, 32).empty());
  CHECK(waits(45, 50) == Lines{"end of producer -> begin of consumer (assumed)"});
  CHECK(waits(44, 50).empty());
}

TEST_CASE("a copy call that says nothing of memory waits if it is open for 20 us") {
  const auto waits = [](double copied_us) {
    TraceText text;
    call(text, "hipMemcpyAsync", 0, 50, 1)
        .gpu("gpu_memcpy", "CopyDeviceToHost", 5, copied_us - 5, 7, 1);
    return Linked(text).edges(DependencyKind::kHostWait);
  };
  CHECK(waits(20) == Lines{"end of CopyDeviceToHost -> end of hipMemcpyAsync (inferred)"});
  CHECK(waits(19).empty());
}

TEST_CASE("the work a stream waited for is among the last 64 that ended") {
  const auto waits = [](int own_work) {
    TraceText text;
    text.launch("producer", 0, 2, 10, 5'000, 7, 1);
    for (int i = 0; i < own_work; ++i) {
      text.launch("own", 3 + 0.1 * i, 0.05, 6'000 + 2.0 * i, 1, 8, 100 + i);
    }
    call(text, "hipStreamWaitEvent", 20, 1, 4);
    text.launch("consumer", 22, 2, 6'000 + 2.0 * own_work, 5, 8, 5);
    return Linked(text).edges(DependencyKind::kStreamWait);
  };
  CHECK(waits(63) == Lines{"end of producer -> begin of consumer (inferred)"});
  CHECK(waits(64).empty());
}

TEST_CASE("a thread that was idle for 300 us was woken") {
  const auto starts = [](double again_us) {
    TraceText text;
    text.host("user_annotation", "ProfilerStep#1", 0, 500)
        .host("cpu_op", "a", 5, 5)
        .host("cpu_op", "b", 200, 10)
        .complete("cpu_op", "x", 20, 10, 1, "2")
        .complete("cpu_op", "y", again_us, 10, 1, "2");
    return Linked(text).edges(DependencyKind::kThreadStart);
  };
  CHECK(starts(330) ==
        Lines{"end of a -> begin of x (assumed)", "end of b -> begin of y (assumed)"});
  CHECK(starts(329) == Lines{"end of a -> begin of x (assumed)"});
}

TEST_CASE("a thread goes on within 100 us of another that it waited for") {
  const auto joins = [](double on_us) {
    TraceText text;
    text.host("user_annotation", "ProfilerStep#1", 0, 500)
        .host("cpu_op", "a", 5, 5)
        .complete("cpu_op", "x", 20, 10, 1, "2")
        .host("cpu_op", "b", on_us, 10);
    return Linked(text).edges(DependencyKind::kThreadJoin);
  };
  CHECK(joins(130) == Lines{"end of x -> begin of b (assumed)"});
  CHECK(joins(131).empty());
}

TEST_CASE("a collective's ends follow its last beginning") {
  TraceText early, late;
  early.launch("ncclDevKernel_AllReduce", 0, 2, 10, 100, 7, 1);
  late.launch("ncclDevKernel_AllReduce", 80, 2, 90, 22, 7, 1);
  const Analysed a(early), b(late);
  const std::vector<GraphRank> ranks{{&a.table, &a.tree, 0}, {&b.table, &b.tree, 1000}};
  const Meetings met{{0, 2}, {{0, a.tree.gpu_rows[0]}, {1, b.tree.gpu_rows[0]}}};
  const DependencyGraph graph = build_dependency_graph(ranks, met);
  const Point meeting = graph.size() - 1;
  CHECK(graph.row[meeting] == kNoRow);
  CHECK(graph.time_ns[meeting] == 91'000);
  int followers = 0;
  for (std::size_t e = 0; e < graph.edges(); ++e) followers += graph.source[e] == meeting;
  CHECK(followers == 2);
  require_forward(graph);
}

TEST_CASE("members that a graph doesn't hold are left out") {
  TraceText text;
  text.launch("ncclDevKernel_AllReduce", 0, 2, 10, 100, 7, 1);
  const Analysed a(text);
  const std::vector<GraphRank> ranks{{&a.table, &a.tree, 0}};
  const Meetings met{{0, 3, 3}, {{0, a.tree.gpu_rows[0]}, {3, 0}, {0, 999}}};
  const DependencyGraph graph = build_dependency_graph(ranks, met);
  CHECK(std::count(graph.row.begin(), graph.row.end(), kNoRow) == 0);
}

TEST_CASE("every edge leads forward and none in a circle, whatever the trace") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    const Linked g(RandomTrace(seed, 60, seed % 2 ? 4000 : 4'000'000).text());
    require_forward(g.graph);
    CHECK(is_acyclic(g.graph));
  }
}

TEST_CASE("an empty trace has an empty graph") {
  const Linked g{EventTable()};
  CHECK(g.graph.size() == 0);
  CHECK(build_dependency_graph({}).size() == 0);
}
