#include "catch.hpp"
#include "trace_text.hpp"
#include "traceap/tree/event_tree.hpp"

using namespace traceap;

namespace {

/// Processes and threads of a JAX trace: python on the host, a stream and derived lines on a GPU.
TraceText xla_text() {
  const auto meta = [](const std::string& kind, int pid, int tid, const std::string& name) {
    return R"({"ph":"M","pid":)" + std::to_string(pid) + R"(,"tid":)" + std::to_string(tid) +
           R"(,"name":")" + kind + R"(","args":{"name":")" + name + R"("}})";
  };
  return TraceText()
      .raw(meta("process_name", 7, 0, "/host:CPU"))
      .raw(meta("process_name", 1, 0, "/device:GPU:2"))
      .raw(meta("thread_name", 7, 3, "python"))
      .raw(meta("thread_name", 1, 13, "Stream #13(Compute)"))
      .raw(meta("thread_name", 1, 20, "XLA Ops"))
      .raw(meta("thread_name", 1, 30, "CUPTI overhead"));
}

std::string slice(int pid, int tid, const std::string& name, int ts, int dur,
                  const std::string& args = "") {
  return R"({"ph":"X","pid":)" + std::to_string(pid) + R"(,"tid":)" + std::to_string(tid) +
         R"(,"name":")" + name + R"(","ts":)" + std::to_string(ts) + R"(,"dur":)" +
         std::to_string(dur) + R"(,"args":{)" + args + "}}";
}

Row row_named(const EventTable& table, const std::string& name) {
  for (Row row = 0; row < table.size(); ++row) {
    if (table.name_of(row) == name) return row;
  }
  return kNoRow;
}

EventKind kind_of(const EventTable& table, const std::string& name) {
  const Row row = row_named(table, name);
  REQUIRE(row != kNoRow);
  return table.kind[row];
}

}  // namespace

TEST_CASE("kinds of XLA's events follow from processes, threads and arguments", "[trace]") {
  const EventTable table =
      xla_text()
          .raw(slice(7, 3, "$model.py:4 apply", 0, 50))
          .raw(slice(7, 3, "PjitFunction(step)", 1, 40))
          .raw(slice(7, 3, "cuLaunchKernel", 2, 3, R"("correlation_id":"5")"))
          .raw(slice(7, 3, "hipLaunchKernel", 6, 3, R"("correlation_id":"6")"))
          .raw(slice(7, 3, "wrapped_tanh", 10, 3, R"("hlo_op":"wrapped_tanh")"))
          .raw(slice(7, 3, "end: wrapped_tanh", 12, 1))
          .raw(slice(1, 13, "gemm", 20, 5, R"("correlation_id":"5","hlo_op":"dot.1")"))
          .raw(slice(1, 13, "MemcpyD2H", 30, 5, R"("correlation_id":"6","memcpy_details":"x")"))
          .raw(slice(1, 13, "Memset", 40, 1, R"("Memset_details":"x")"))
          .raw(slice(1, 13, "MemoryAlloc", 42, 1, R"("memalloc_details":"x")"))
          .raw(slice(1, 20, "dot.1", 20, 5, R"("hlo_op":"dot.1")"))
          .raw(slice(1, 30, "flush", 50, 5))
          .table();
  CHECK(kind_of(table, "$model.py:4 apply") == EventKind::kPythonFunction);
  CHECK(kind_of(table, "PjitFunction(step)") == EventKind::kUserAnnotation);
  CHECK(kind_of(table, "cuLaunchKernel") == EventKind::kDriver);
  CHECK(kind_of(table, "hipLaunchKernel") == EventKind::kRuntime);
  CHECK(kind_of(table, "wrapped_tanh") == EventKind::kCpuOp);
  CHECK(kind_of(table, "end: wrapped_tanh") == EventKind::kOther);
  CHECK(kind_of(table, "gemm") == EventKind::kKernel);
  CHECK(kind_of(table, "MemcpyD2H") == EventKind::kGpuMemcpy);
  CHECK(kind_of(table, "Memset") == EventKind::kGpuMemset);
  CHECK(kind_of(table, "MemoryAlloc") == EventKind::kOther);
  CHECK(kind_of(table, "dot.1") == EventKind::kGpuUserAnnotation);
  CHECK(kind_of(table, "flush") == EventKind::kOverhead);

  const Row gemm = row_named(table, "gemm");
  CHECK(table.device[gemm] == 2);
  CHECK(table.stream[gemm] == 13);
  CHECK(table.correlation[gemm] == 5);
  const EventTree tree = build_tree(table);
  CHECK(tree.launch[gemm] == row_named(table, "cuLaunchKernel"));
  CHECK(tree.launch[row_named(table, "MemcpyD2H")] == row_named(table, "hipLaunchKernel"));
}

TEST_CASE("without streams the XLA operations are the device's work", "[trace]") {
  const EventTable table =
      TraceText()
          .raw(R"({"ph":"M","pid":3,"name":"process_name","args":{"name":"/device:TPU:0"}})")
          .raw(R"({"ph":"M","pid":3,"tid":1,"name":"thread_name","args":{"name":"XLA Ops"}})")
          .raw(R"({"ph":"M","pid":3,"tid":2,"name":"thread_name","args":{"name":"Framework Ops"}})")
          .raw(slice(3, 1, "fusion.1", 0, 5))
          .raw(slice(3, 2, "jit(f)/add", 0, 5))
          .table();
  CHECK(kind_of(table, "fusion.1") == EventKind::kKernel);
  CHECK(kind_of(table, "jit(f)/add") == EventKind::kGpuUserAnnotation);
}

TEST_CASE("events of other programs keep the kind of their category", "[trace]") {
  const EventTable plain = TraceText().raw(slice(1, 13, "anything", 0, 5)).table();
  CHECK(kind_of(plain, "anything") == EventKind::kOther);
  const EventTable named = xla_text().complete("cpu_op", "op", 0, 5, 1, "13").table();
  CHECK(kind_of(named, "op") == EventKind::kCpuOp);
}

TEST_CASE("StepTraceAnnotation marks steps", "[trace]") {
  const EventTable table = xla_text()
                               .raw(slice(7, 3, "train", 0, 10, R"("step_num":"4")"))
                               .raw(slice(7, 3, "train", 10, 12, R"("step_num":"5")"))
                               .table();
  const EventTree tree = build_tree(table);
  REQUIRE(tree.steps.size() == 2);
  CHECK(tree.steps[0].name == "train#4");
  CHECK(tree.steps[1].end_ns == 22'000);
  CHECK_FALSE(tree.steps_inferred);
}
