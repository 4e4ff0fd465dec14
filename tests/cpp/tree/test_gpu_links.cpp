#include <algorithm>
#include <regex>

#include "catch.hpp"
#include "traceap/tree/name_traits.hpp"
#include "tree_helpers.hpp"

using namespace traceap;

TEST_CASE("a GPU event is linked to the call with its correlation id", "[tree]") {
  const Built b = build(TraceText()
                            .host("cpu_op", "aten::mm", 0, 20)
                            .host("cpu_op", "aten::inner", 1, 18)
                            .launch("gemm", 5, 3, 30, 10, 7, 11)
                            .host("cuda_runtime", "cudaMemcpyAsync", 50, 3, R"("correlation":12)")
                            .gpu("gpu_memcpy", "Memcpy HtoD", 60, 5, 7, 12)
                            .gpu("kernel", "orphan", 70, 5, 7, 99));
  CHECK(b.launch("gemm") == "cudaLaunchKernel");
  CHECK(b.launch("Memcpy HtoD") == "cudaMemcpyAsync");
  CHECK(b.launch("orphan") == "none");
  CHECK(b.op("gemm") == "aten::inner");
  CHECK(b.op("cudaLaunchKernel") == "aten::inner");
  CHECK(b.op("Memcpy HtoD") == "none");
  CHECK(b.tree.gpu_rows.size() == 3);
  CHECK(b.tree.linked_gpu_rows == std::vector<Row>{b.row("gemm"), b.row("Memcpy HtoD")});
  CHECK(b.count("orphan_gpu_events") == 1);
  CHECK(launch_delay_ns(b.table, b.tree, b.row("gemm")) == 25'000);
  CHECK(launch_delay_ns(b.table, b.tree, b.row("orphan")) == kNoId);
}

TEST_CASE("legacy categories link too", "[tree]") {
  const Built b = build(
      TraceText()
          .host("Operator", "aten::add", 0, 20, R"("External id":5)")
          .host("Runtime", "cudaLaunchKernel", 5, 3, R"("correlation":3,"external id":5)")
          .raw(R"({"ph":"X","cat":"Kernel","name":"k","pid":0,"tid":"stream 7","ts":20,"dur":5,)"
               R"("args":{"device":0,"stream":7,"correlation":3,"external id":5}})"));
  CHECK(b.launch("k") == "cudaLaunchKernel");
  CHECK(b.op("k") == "aten::add");
  REQUIRE(b.tree.streams.size() == 1);
  CHECK(b.tree.streams[0].stream == 7);
}

TEST_CASE("correlation 0 links only if a call carries 0", "[tree]") {
  TraceText text;
  text.gpu("kernel", "k", 20, 5, 7, 0);
  CHECK(build(text).count("orphan_gpu_events") == 1);
  text.host("cuda_runtime", "cudaLaunchKernel", 0, 5, R"("correlation":0)");
  CHECK(build(text).count("orphan_gpu_events") == 0);
}

TEST_CASE("only runtime and driver calls own a correlation id", "[tree]") {
  const Built b =
      build(TraceText()
                .host("cpu_op", "op", 0, 5, R"("correlation":4)")
                .complete("cuda_sync", "Stream Wait Event", 1, 1, 0, "7", R"("correlation":4)")
                .gpu("gpu_user_annotation", "range", 10, 10, 7, 4)
                .gpu("kernel", "k", 20, 5, 7, 4));
  CHECK(b.launch("k") == "none");
  CHECK(b.tree.gpu_rows.size() == 1);
}

TEST_CASE("one launch owns all events of a graph replay", "[tree]") {
  TraceText text;
  text.host("cpu_op", "replay", 0, 20)
      .host("cuda_runtime", "cudaGraphLaunch", 5, 10, R"("correlation":8)");
  for (int i = 0; i < 5; ++i) {
    text.gpu("kernel", "k" + std::to_string(i), 30 + 10 * i, 5, 7 + i % 2, 8, R"("graph id":1)");
  }
  const Built b = build(text);
  const auto launched = b.tree.launched_by(b.row("cudaGraphLaunch"));
  REQUIRE(launched.size() == 5);
  for (std::size_t i = 0; i < 5; ++i) CHECK(b.name(launched[i]) == "k" + std::to_string(i));
  CHECK(b.op("k4") == "replay");
  CHECK(b.count("graph_launches") == 1);
  CHECK(b.tree.launched_by(b.row("replay")).empty());
}

TEST_CASE("of several calls with one id the innermost launching one before the work wins",
          "[tree]") {
  const std::string id = R"("correlation":5)";
  SECTION("runtime call around a driver call") {
    const Built b = build(TraceText()
                              .host("cuda_runtime", "cudaLaunchKernel", 0, 10, id)
                              .host("cuda_driver", "cuLaunchKernel", 2, 5, id)
                              .gpu("kernel", "k", 20, 5, 7, 5));
    CHECK(b.launch("k") == "cuLaunchKernel");
    CHECK(b.count("ambiguous_correlations") == 1);
  }
  SECTION("a call that launches nothing") {
    const Built b = build(TraceText()
                              .host("cuda_runtime", "cudaLaunchKernel", 0, 10, id)
                              .host("cuda_runtime", "cudaEventRecord", 12, 2, id)
                              .gpu("kernel", "k", 20, 5, 7, 5));
    CHECK(b.launch("k") == "cudaLaunchKernel");
  }
  SECTION("an id that comes back") {
    const Built b = build(TraceText()
                              .host("cuda_runtime", "cudaLaunchKernel", 0, 10, id)
                              .host("cuda_runtime", "cudaLaunchKernelExC", 100, 10, id)
                              .gpu("kernel", "first", 20, 5, 7, 5)
                              .gpu("kernel", "second", 120, 5, 7, 5));
    CHECK(b.launch("first") == "cudaLaunchKernel");
    CHECK(b.launch("second") == "cudaLaunchKernelExC");
  }
  SECTION("all calls after the work") {
    const Built b = build(TraceText()
                              .gpu("kernel", "k", 1, 5, 7, 5)
                              .host("cuda_runtime", "cudaLaunchKernel", 10, 10, id)
                              .host("cuda_runtime", "cudaLaunchKernelExC", 100, 10, id));
    CHECK(b.launch("k") == "cudaLaunchKernel");
  }
}

TEST_CASE("hostile ids: negative, huge, and one id for everything", "[tree]") {
  TraceText text;
  for (int i = 0; i < 3000; ++i) text.launch("k", i, 1, i + 2, 1, 7, 1);
  const Built same = build(text);
  CHECK(same.tree.linked_gpu_rows.size() == 3000);
  for (const Row r : same.tree.gpu_rows) {
    const std::int64_t last_call_ns = 2'999'000;
    REQUIRE(same.table.ts_ns[same.tree.launch[r]] == std::min(same.table.ts_ns[r], last_call_ns));
  }
  const std::string huge = "9223372036854775807", least = "-9223372036854775807";
  const Built b = build(
      TraceText()
          .host("cuda_runtime", "cudaLaunchKernel", 0, 1, R"("correlation":)" + huge)
          .host("cuda_runtime", "hipLaunchKernel", 1, 1, R"("correlation":)" + least)
          .complete("kernel", "a", 5, 1, 0, "7", R"("device":-3,"stream":-1,"correlation":)" + huge)
          .complete("kernel", "b", 6, 1, 0, "7", R"("correlation":)" + least)
          .complete("kernel", "c", 7, 1, 0, "7", R"("correlation":-1)"));
  CHECK(b.launch("a") == "cudaLaunchKernel");
  CHECK(b.launch("b") == "hipLaunchKernel");
  CHECK(b.launch("c") == "none");
}

TEST_CASE("flows link only what has no correlation id, and never make it linked", "[tree]") {
  const auto flow = [](const char* phase, const char* cat, int pid, int tid, int ts,
                       const std::string& id) {
    return R"({"ph":")" + std::string(phase) + R"(","cat":")" + cat +
           R"(","name":"ac2g","bp":"e","pid":)" + std::to_string(pid) + R"(,"tid":)" +
           std::to_string(tid) + R"(,"ts":)" + std::to_string(ts) + R"(,"id":)" + id + "}";
  };
  const std::string graph_edge = std::to_string((std::int64_t{1} << 40) + 1);
  TraceText text;
  text.host("cpu_op", "op", 0, 50)
      .host("cuda_runtime", "cudaLaunchKernel", 10, 5)
      .host("cuda_runtime", "cudaMemcpyAsync", 20, 5)
      .complete("kernel", "by flow", 40, 5, 0, "7", R"("device":0,"stream":7)")
      .complete("gpu_memcpy", "by text id", 50, 5, 0, "7", R"("device":0,"stream":7)")
      .complete("kernel", "by graph edge", 60, 5, 0, "7", R"("device":0,"stream":7)")
      .gpu("kernel", "numbered orphan", 70, 5, 7, 99)
      .raw(flow("s", "ac2g", 1, 1, 10, "501"))
      .raw(flow("f", "ac2g", 0, 7, 40, "501"))
      .raw(flow("s", "async", 1, 1, 20, "\"502\""))
      .raw(flow("f", "async", 0, 7, 50, "\"502\""))
      .raw(flow("s", "ac2g", 1, 1, 10, graph_edge))
      .raw(flow("f", "ac2g", 0, 7, 60, graph_edge))
      .raw(flow("f", "ac2g", 0, 7, 70, "501"));
  const Built b = build(text);
  CHECK(b.launch("by flow") == "cudaLaunchKernel");
  CHECK(b.op("by flow") == "op");
  CHECK(b.launch("by text id") == "cudaMemcpyAsync");
  CHECK(b.launch("by graph edge") == "none");
  CHECK(b.launch("numbered orphan") == "none");
  CHECK(b.tree.linked_gpu_rows.empty());
  CHECK(b.count("orphan_gpu_events") == 4);
  CHECK(b.count("gpu_events_linked_by_flow") == 2);
}

TEST_CASE("External id names the op where no launch does", "[tree]") {
  const Built b = build(TraceText()
                            .host("cpu_op", "aten::mul", 0, 10, R"("External id":42)")
                            .host("cpu_op", "zero", 20, 10, R"("External id":0)")
                            .gpu("kernel", "orphan", 30, 5, 7, 9, R"("External id":42)")
                            .gpu("kernel", "nobody's", 40, 5, 7, 10, R"("External id":0)")
                            .complete("cuda_runtime", "cudaLaunchKernel", 50, 5, 1, "2",
                                      R"("correlation":11,"External id":42)")
                            .gpu("kernel", "launched elsewhere", 60, 5, 7, 11));
  CHECK(b.op("orphan") == "aten::mul");
  CHECK(b.op("nobody's") == "none");
  CHECK(b.op("launched elsewhere") == "aten::mul");
}

TEST_CASE("GPU classes follow INTERFACE's words", "[tree]") {
  const Built b =
      build(TraceText()
                .gpu("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 0, 1, 7, 1)
                .gpu("kernel", "ncclDevKernel_Generic", 1, 1, 7, 2)
                .gpu("kernel", "void vllm::cross_device_reduce_1stage<half>", 2, 1, 7, 3)
                .gpu("kernel", "multimem_all_reduce_kernel", 3, 1, 7, 4)
                .gpu("kernel", "generic_1", 4, 1, 7, 5, R"("Collective name":"allreduce")")
                .gpu("kernel", "__amd_rocclr_copyBufferAligned", 5, 1, 7, 6)
                .gpu("kernel", "MEMORY_COPY_HOST_TO_DEVICE", 6, 1, 7, 7)
                .gpu("kernel", "__amd_rocclr_fillBufferAligned", 7, 1, 7, 8)
                .gpu("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 8, 1, 7, 9)
                .gpu("gpu_memset", "Memset (Device)", 9, 1, 7, 10)
                .gpu("gpu_memcpy", "nccl copy", 10, 1, 7, 11)
                .gpu("kernel", "void reduce_kernel<512>", 11, 1, 7, 12)
                .gpu("kernel", "", 12, 1, 7, 13)
                .host("cpu_op", "nccl:all_reduce", 0, 5)
                .raw(R"({"ph":"X","cat":"kernel","name":"no end","pid":0,"tid":7,"ts":1})"));
  for (const char* name :
       {"ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "ncclDevKernel_Generic",
        "void vllm::cross_device_reduce_1stage<half>", "multimem_all_reduce_kernel", "generic_1"}) {
    CHECK(b.gpu_class(name) == GpuClass::kCommunication);
  }
  for (const char* name : {"__amd_rocclr_copyBufferAligned", "MEMORY_COPY_HOST_TO_DEVICE",
                           "Memcpy DtoH (Device -> Pageable)", "nccl copy"}) {
    CHECK(b.gpu_class(name) == GpuClass::kMemcpy);
  }
  for (const char* name :
       {"__amd_rocclr_fillBufferAligned", "Memset (Device)", "void reduce_kernel<512>", ""}) {
    CHECK(b.gpu_class(name) == GpuClass::kCompute);
  }
  CHECK(b.gpu_class("nccl:all_reduce") == GpuClass::kNone);
  CHECK(b.tree.gpu_rows.size() == 13);
}

TEST_CASE("the communication words equal INTERFACE's expression", "[tree]") {
  const std::regex oracle(
      "nccl|rccl|cross_device_reduce|msccl|oneccl|hccl|all_?reduce|all_?gather|reduce_?scatter|"
      "all_?to_?all",
      std::regex::icase);
  const std::vector<std::string> pieces{"all", "_",  "reduce", "gather", "to", "scatter", "n",
                                        "ccl", "r",  "ms",     "one",    "h",  "cross",   "device",
                                        "ALL", "To", "x",      "__",     "aa", "l"};
  for (const auto& a : pieces) {
    for (const auto& b : pieces) {
      for (const auto& c : pieces) {
        for (const auto& d : pieces) {
          const std::string name = a + b + c + d;
          REQUIRE(is_communication_name(name) == std::regex_search(name, oracle));
        }
      }
    }
  }
  CHECK(is_communication_name("x_Cross_Device_Reduce_y"));
  CHECK_FALSE(is_communication_name("cross_device"));
  CHECK_FALSE(is_communication_name(""));
}

TEST_CASE("streams are told apart by device and number, their roles by time", "[tree]") {
  const Built b = build(TraceText()
                            .gpu("kernel", "a", 0, 10, 7, 1)
                            .gpu("gpu_memcpy", "copy", 20, 5, 7, 2)
                            .gpu("kernel", "ncclKernel", 0, 50, 13, 3)
                            .gpu("kernel", "little", 60, 5, 13, 4)
                            .gpu("gpu_memcpy", "copy", 70, 50, 20, 5)
                            .complete("kernel", "b", 5, 5, 1, "7", R"("device":1,"stream":7)")
                            .complete("kernel", "annotated", 100, 5, 0, "99",
                                      R"("device":0,"stream":99,"original_stream":7)")
                            .complete("kernel", "bare", 200, 5, 0, "1"));
  REQUIRE(b.tree.streams.size() == 5);
  const auto& s = b.tree.streams;
  CHECK((s[0].device == -1 && s[0].stream == kNoId));
  CHECK((s[1].device == 0 && s[1].stream == 7 && s[1].role == StreamRole::kCompute));
  CHECK((s[2].device == 0 && s[2].stream == 13 && s[2].role == StreamRole::kCommunication));
  CHECK((s[3].device == 0 && s[3].stream == 20 && s[3].role == StreamRole::kCopy));
  CHECK((s[4].device == 1 && s[4].stream == 7));
  CHECK(s[1].rows == std::vector<Row>{b.row("a"), b.row("copy"), b.row("annotated")});
  CHECK(b.tree.stream_of[b.row("ncclKernel")] == 2);
  CHECK(b.tree.stream_of[b.row("bare")] == 0);
}

TEST_CASE("a trace of GPU events alone and an empty tree are fine", "[tree]") {
  const Built b =
      build(TraceText().gpu("kernel", "k", 0, 10, 7, 1).gpu("kernel", "l", 20, 5, 7, 2));
  CHECK(b.tree.main_track == kNoTrack);
  CHECK(b.tree.steps.empty());
  CHECK(b.tree.host_rows.empty());
  CHECK(b.count("orphan_gpu_events") == 2);
  CHECK(b.tree.profiled == Interval{0, 25'000});
  const EventTree empty = build_tree(EventTable{});
  CHECK(empty.profiled == Interval{0, 0});
  CHECK(empty.launched_offsets == std::vector<std::uint32_t>{0});
  CHECK(empty.main_track == kNoTrack);
}
