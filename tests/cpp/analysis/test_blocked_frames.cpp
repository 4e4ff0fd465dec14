#include "analysis/analysed.hpp"
#include "catch.hpp"
#include "traceap/analysis/dependencies/blocked_frames.hpp"
#include "traceap/analysis/dependencies/dependency_graph.hpp"

using namespace traceap;

TEST_CASE("Frames that only block are those of the standard library") {
  for (const char* name :
       {"threading.py(312): wait", "/usr/lib/python3.11/threading.py(1119): join",
        "queue.py(171): get", "multiprocessing/queues.py(113): get",
        "C:\\Python310\\lib\\multiprocessing\\connection.py(257): poll",
        "selectors.py(452): select", "concurrent/futures/_base.py(428): result",
        "<built-in function sleep>", "<built-in function select>",
        "<built-in method acquire of _thread.lock object at 0x7f8e5c0b4a80>",
        "<method 'acquire' of '_thread.lock' objects>", "<method 'poll' of 'select.poll' objects>",
        "<method 'get' of '_queue.SimpleQueue' objects>",
        "<method 'recv_into' of '_socket.socket' objects>"}) {
    INFO(name);
    CHECK(is_blocking_frame(name));
  }
  for (const char* name :
       {"threading.py(953): run", "my_threading.py(312): wait", "train.py(8): wait",
        "torch/distributed/distributed_c10d.py(12): wait", "threading.py(312)", "wait", "",
        "<built-in function getattr>", "<built-in method get of dict object at 0x7f>",
        "<method 'join' of 'str' objects>", "<method ", "<built-in method acquire"}) {
    INFO(name);
    CHECK_FALSE(is_blocking_frame(name));
  }
}

namespace {

constexpr const char* kFrame = "python_function";

/// A host that works, and a thread beside it; the trace's other points and edges.
TraceText with_thread(const std::vector<std::pair<std::string, std::array<double, 2>>>& frames) {
  TraceText text;
  for (int i = 0; i < 10; ++i) {
    text.host("cpu_op", "aten::mm", 1000 * i, 400);
    text.launch("gemm", 1000 * i + 100, 5, 1000 * i + 120, 50, 7, i + 1);
  }
  for (const auto& [name, range] : frames) {
    text.complete(kFrame, name, range[0], range[1], 1, "99");
  }
  return text;
}

std::size_t edges_across_threads(const TraceText& text) {
  const Analysed a(text);
  const DependencyGraph graph = build_dependency_graph(std::array{GraphRank{&a.table, &a.tree}});
  std::size_t count = 0;
  for (const DependencyKind kind : graph.kind) {
    count += kind == DependencyKind::kThreadStart || kind == DependencyKind::kThreadJoin;
  }
  return count;
}

}  // namespace

TEST_CASE("A thread that only waits is started by nobody") {
  const std::string wait = "threading.py(312): wait";
  CHECK(edges_across_threads(with_thread({{wait, {1500, 2000}}, {wait, {5500, 2000}}})) == 0);
  // Frames around the wait, and what the wait calls itself.
  CHECK(edges_across_threads(with_thread({{"tqdm/_monitor.py(60): run", {1500, 2000}},
                                          {wait, {1501, 1998}},
                                          {"threading.py(267): __exit__", {3400, 10}}})) == 0);
  CHECK(edges_across_threads(with_thread({{"worker.py(3): run", {1500, 2000}},
                                          {wait, {1501, 1000}},
                                          {"worker.py(9): write", {2600, 800}}})) == 1);
}
