#include <numeric>
#include <string>

#include "analysis/analysed.hpp"
#include "catch.hpp"
#include "traceap/analysis/costs/modules.hpp"

using namespace traceap;

namespace {

struct WithModules : Analysed {
  explicit WithModules(const TraceText& text)
      : Analysed(text),
        costs(build_gpu_costs(table, tree)),
        modules(build_modules(table, tree, costs)) {}

  std::string path(std::uint32_t node) const {
    const ModuleNode& n = modules.nodes[node];
    return n.parent == kNoRow ? n.name : path(n.parent) + "/" + n.name;
  }
  /// "path: forward backward recompute none" of a node's own GPU time in us, for nodes with any.
  std::vector<std::string> gpu_us() const {
    std::vector<std::string> lines;
    for (const std::uint32_t node : modules.preorder) {
      const auto& ns = modules.own[node].gpu_ns;
      if (modules.own[node].gpu_events == 0) continue;
      std::string line = path(node) + ":";
      for (const std::int64_t pass : ns) line += " " + std::to_string(pass / 1000);
      lines.push_back(line);
    }
    return lines;
  }
  const ModuleNode& node(const std::string& wanted) const {
    for (std::uint32_t i = 0; i < modules.nodes.size(); ++i) {
      if (path(i) == wanted) return modules.nodes[i];
    }
    FAIL("no module " + wanted);
    return modules.nodes[0];
  }
  GpuCosts costs;
  ModuleTree modules;
};

/// Builds host rows that launch a kernel of 1 us each, on two threads.
class ModelTrace {
 public:
  ModelTrace& row(const std::string& category, const std::string& name, double ts, double dur,
                  int thread = 1, const std::string& args = "") {
    text.complete(category, name, ts, dur, 1, std::to_string(thread), args);
    return *this;
  }
  ModelTrace& frame(const std::string& module, double ts, double dur, int thread = 1) {
    return row("python_function", "nn.Module: " + module, ts, dur, thread);
  }
  /// An op of 4 us with its launch; `sequence` < 0: none.
  ModelTrace& op(const std::string& name, double ts, int sequence = -1, int thread = 1,
                 int forward_thread = 0) {
    std::string args;
    if (sequence >= 0) {
      args = R"("Sequence number":)" + std::to_string(sequence) + R"(,"Fwd thread id":)" +
             std::to_string(forward_thread);
    }
    row("cpu_op", name, ts, 4, thread, args);
    return launch(ts + 1, thread);
  }
  ModelTrace& launch(double ts, int thread = 1) {
    const int id = ++correlation_;
    row("cuda_runtime", "cudaLaunchKernel", ts, 1, thread,
        R"("correlation":)" + std::to_string(id));
    text.gpu("kernel", "kernel", 1000 + 2 * id, 1, 7, id);
    return *this;
  }
  /// The engine's frame of a node of `dur` us, and its kernel.
  ModelTrace& backward(const std::string& node, double ts, double dur, int sequence,
                       int thread = 2) {
    const std::string args =
        R"("Sequence number":)" + std::to_string(sequence) + R"(,"Fwd thread id":1)";
    row("cpu_op", "autograd::engine::evaluate_function: " + node, ts, dur, thread, args);
    return launch(ts + 0.5, thread);
  }
  TraceText text;

 private:
  int correlation_ = 0;
};

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("frames make a tree; backward goes to the module whose op made the node") {
  ModelTrace trace;
  trace.frame("Net_0", 0, 40).frame("Linear_0", 2, 10).op("aten::addmm", 3, 1);
  trace.frame("Linear_1", 20, 10).op("aten::addmm", 21, 2).op("aten::add", 32, 3);
  trace.backward("AddBackward0", 100, 5, 3).backward("AddmmBackward0", 110, 5, 2);
  trace.backward("AddmmBackward0", 120, 5, 1).op("aten::adam", 60);
  const WithModules a(trace.text);
  CHECK(a.modules.source == ModuleSource::kFrames);
  CHECK(a.gpu_us() == Lines{"Net_0: 1 1 0 0", "Net_0/Linear_0: 1 1 0 0", "Net_0/Linear_1: 1 1 0 0",
                            "(outside modules)/other: 0 0 0 1"});
  CHECK(a.node("Net_0/Linear_1").type == "Linear");
  CHECK(a.node("Net_0/Linear_1").calls == 1);
  const auto net = static_cast<std::size_t>(&a.node("Net_0") - a.modules.nodes.data());
  CHECK(a.modules.total[net].gpu_ns == std::array<std::int64_t, 4>{3000, 3000, 0, 0});
  CHECK(a.modules.total[net].host_ns[0] == 40'000);
}

TEST_CASE("a module called by two parents is two nodes, called twice by one it is one") {
  ModelTrace trace;
  trace.frame("A_0", 0, 20).frame("Shared_0", 2, 5).frame("Shared_0", 10, 5);
  trace.frame("B_0", 30, 20).frame("Shared_0", 32, 5);
  const WithModules a(trace.text);
  CHECK(a.node("A_0/Shared_0").calls == 2);
  CHECK(a.node("B_0/Shared_0").calls == 1);
}

TEST_CASE("recompute asked for by a hook of a saved tensor goes back to its module") {
  ModelTrace trace;
  trace.frame("Net_0", 0, 40).frame("Block_0", 2, 30).frame("ReLU_0", 4, 10);
  trace.op("aten::relu", 5, 1);
  trace.backward("ReluBackward0", 100, 50, 1);
  trace.frame("Block_0", 110, 30, 2).frame("ReLU_0", 112, 10, 2).op("aten::relu", 113, -1, 2);
  const WithModules a(trace.text);
  CHECK(a.gpu_us() == Lines{"Net_0/Block_0/ReLU_0: 1 1 1 0"});
  CHECK(a.node("Net_0/Block_0").recompute_calls == 1);
  CHECK(a.node("Net_0/Block_0").calls == 1);
}

TEST_CASE("recompute of a node that stands for the checkpoint, and what is differentiated in it") {
  ModelTrace trace;
  trace.frame("Net_0", 0, 40).op("CheckpointFunction", 1, 1);
  trace.frame("Block_0", 10, 20).op("aten::relu", 12);
  trace.backward("CheckpointFunctionBackward", 100, 80, 1);
  trace.frame("Block_0", 110, 20, 2).op("aten::relu", 112, 77, 2);
  trace.backward("ReluBackward0", 140, 10, 77);
  const WithModules a(trace.text);
  CHECK(a.gpu_us() == Lines{"Net_0: 1 1 0 0", "Net_0/Block_0: 1 1 1 0"});
}

TEST_CASE("TorchScript's hierarchy: instances by path, graphs taken out belong to the root") {
  const auto op = [](TraceText& text, const std::string& hierarchy, double ts, int id) {
    text.host("cpu_op", "aten::op" + std::to_string(id), ts, 5,
              R"("Module Hierarchy":")" + hierarchy + "\"");
    text.launch("k", ts + 1, 1, 1000 + 2 * id, 1, 7, id);
  };
  TraceText text;
  op(text, "TOP(Net)::forward.", 0, 1);
  op(text, "TOP()::<forward op>.layer1(Sequential)::forward.0(Block)::forward.SELF(Block)::run", 10,
     2);
  op(text, "TOP()::<backward op>.", 20, 3);
  op(text, "", 30, 4);
  const WithModules a(text);
  CHECK(a.modules.source == ModuleSource::kHierarchy);
  CHECK(a.gpu_us() ==
        Lines{"Net: 1 1 0 0", "Net/layer1/0: 1 0 0 0", "(outside modules)/other: 0 0 0 1"});
  CHECK(a.node("Net/layer1/0").type == "Block");
}

TEST_CASE("annotations stand in for modules; steps and collectives are none") {
  ModelTrace trace;
  trace.row("user_annotation", "ProfilerStep#1", 0, 200);
  trace.row("user_annotation", "## forward ##", 0, 50).op("aten::relu", 10, 1);
  trace.row("user_annotation", "nccl:all_reduce", 60, 20).op("c10d::allreduce_", 62);
  trace.backward("ReluBackward0", 100, 10, 1);
  const WithModules a(trace.text);
  CHECK(a.modules.source == ModuleSource::kAnnotations);
  CHECK(a.gpu_us().front() == "## forward ##: 1 1 0 0");
  CHECK(a.gpu_us().size() == 2);
}

TEST_CASE("XLA programs with their name scopes") {
  const auto args = [](const std::string& scope) {
    return R"("hlo_module":"jit_step","tf_op":")" + scope + "\"";
  };
  TraceText text;
  text.gpu("kernel", "fusion.1", 0, 2, 7, 1, args("jit(step)/jit(main)/jvp(encoder)/dot_general"));
  text.gpu("kernel", "fusion.2", 4, 3, 7, 2,
           args("jit(step)/jit(main)/transpose(jvp(encoder))/dot_general"));
  text.gpu("kernel", "fusion.3", 9, 1, 7, 3, R"("hlo_module":"jit_step")");
  const WithModules a(text);
  CHECK(a.modules.source == ModuleSource::kHlo);
  CHECK(a.gpu_us() == Lines{"jit_step: 1 0 0 0", "jit_step/encoder: 2 3 0 0"});
}

TEST_CASE("without any names there is no module, and nothing is lost") {
  const WithModules a(TraceText().host("cpu_op", "aten::add", 0, 5).launch("k", 1, 1, 10, 3, 7, 1));
  CHECK(a.modules.source == ModuleSource::kNone);
  CHECK(a.modules.total[0].gpu_ns[3] == 3'000);
  const WithModules empty{TraceText().raw(R"({"ph":"M","name":"process_name","pid":1,"args":{}})")};
  CHECK(empty.modules.nodes.size() == 1);
}

TEST_CASE("nesting deeper than any model ends at the limit") {
  TraceText text;
  constexpr int kDepth = 2000;
  for (int i = 0; i < kDepth; ++i) {
    text.host("python_function", "nn.Module: M_" + std::to_string(i), i, 2 * (kDepth - i));
  }
  const WithModules a(text);
  CHECK(a.modules.nodes.size() == 1 + kMaxModuleDepth);
}

TEST_CASE("times of modules sum to those of the trace on random traces") {
  for (unsigned seed = 0; seed < 100; ++seed) {
    const WithModules a(RandomTrace(seed, 150, 5000).text());
    std::int64_t gpu_ns = 0, host_ns = 0, events = 0, self_ns = 0;
    for (const ModuleCosts& own : a.modules.own) {
      for (const std::int64_t ns : own.gpu_ns) gpu_ns += ns;
      for (const std::int64_t ns : own.host_ns) host_ns += ns;
      events += own.gpu_events;
    }
    for (const std::int64_t ns : a.costs.self_host_ns) self_ns += ns;
    REQUIRE(gpu_ns == compute_timeline(a.gpu).busy_ns);
    REQUIRE(host_ns == self_ns);
    REQUIRE(events == static_cast<std::int64_t>(a.tree.gpu_rows.size()));
    REQUIRE(a.modules.preorder.size() == a.modules.nodes.size());
    for (std::uint32_t node = 1; node < a.modules.nodes.size(); ++node) {
      const std::uint32_t parent = a.modules.nodes[node].parent;
      REQUIRE((parent == kNoRow || parent < node));
    }
  }
}
