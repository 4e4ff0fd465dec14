// API classes, kinds of copies, steps and the end of warm-up, by row.

#include "catch.hpp"
#include "tree_helpers.hpp"

using namespace traceap;

TEST_CASE("a step holds its start and not its end; GPU work belongs to the step that launched it",
          "[tree]") {
  TraceText text;
  text.host("user_annotation", "ProfilerStep#0", 0, 100);
  text.host("user_annotation", "ProfilerStep#1", 100, 100);
  text.host("cpu_op", "first", 0, 1).host("cpu_op", "border", 100, 1).host("cpu_op", "end", 200, 1);
  text.host("cpu_op", "last", 199, 1);
  text.launch("late", 90, 5, 150, 10, 7, 1).launch("next", 100, 5, 210, 10, 7, 2);
  text.gpu("kernel", "orphan", 60, 10, 7, 99);
  const Built built = build(text);
  REQUIRE(built.tree.steps.size() == 2);
  const auto step = [&](const char* name) { return built.tree.step[built.row(name)]; };
  CHECK(step("first") == 0);
  CHECK(step("border") == 1);
  CHECK(step("last") == 1);
  CHECK(step("end") == kNoStep);
  CHECK(step("late") == 0);
  CHECK(step("next") == 1);
  CHECK(step("orphan") == 0);
  CHECK(step("ProfilerStep#1") == 1);
}

TEST_CASE("an orphan belongs to the step of its start on the host's clock", "[tree]") {
  TraceText text;
  text.host("user_annotation", "ProfilerStep#0", 0, 1000);
  for (int i = 0; i < 10; ++i) {  // the GPU's clock is 2 ms behind: every start precedes its call
    text.launch("k", 100 + 10 * i, 5, -1900 + 10 * i, 5, 7, i + 1);
  }
  text.gpu("kernel", "inside", -1500, 5, 7, 99).gpu("kernel", "behind", 500, 5, 7, 98);
  const Built built = build(text);
  REQUIRE(built.tree.launch_delay_correction_ns > 1'900'000);
  CHECK(built.tree.step[built.row("inside")] == 0);
  CHECK(built.tree.step[built.row("behind")] == kNoStep);
}

TEST_CASE("copies are told by their names, else by HIP's arguments", "[tree]") {
  TraceText text;
  const auto copy = [&](const char* category, const char* name, const char* event_kind,
                        const char* call_kind, int correlation) {
    const double at = 100.0 * correlation;
    const std::string id = R"("correlation":)" + std::to_string(correlation);
    text.host("hip_runtime", "hipMemcpyAsync", at, 5, id + call_kind);
    text.gpu(category, name, at + 10, 5, 7, correlation, event_kind);
  };
  copy("gpu_memcpy", "Memcpy DtoD (Device -> Device)", "", R"(,"kind":2)", 1);
  copy("kernel", "__amd_rocclr_copyBuffer", R"("kind":"DeviceToHost")", R"(,"kind":1)", 2);
  copy("kernel", "__amd_rocclr_copyBuffer.kd", "", R"(,"kind":1)", 3);
  copy("kernel", "__amd_rocclr_copyBufferAligned", "", "", 4);
  copy("gpu_memcpy", "Memcpy", "", "", 5);
  copy("kernel", "gemm_batch2d", "", R"(,"kind":1)", 6);
  const Built built = build(text);
  const auto kind = [&](const char* name) { return built.tree.copy_of(built.row(name)); };
  using enum CopyDirection;
  CHECK(kind("Memcpy DtoD (Device -> Device)") == CopyKind{kDeviceToDevice, HostMemory::kNone});
  CHECK(kind("__amd_rocclr_copyBuffer").direction == kDeviceToHost);
  CHECK(kind("__amd_rocclr_copyBuffer.kd") == CopyKind{kHostToDevice, HostMemory::kUnknown});
  CHECK(kind("__amd_rocclr_copyBufferAligned") == CopyKind{});  // nothing says which way
  CHECK(kind("Memcpy") == CopyKind{});
  CHECK(kind("gemm_batch2d") == CopyKind{CopyDirection::kNone, HostMemory::kNone});
}

TEST_CASE("rows that are no API call have no class of one", "[tree]") {
  const Built built = build(TraceText()
                                .host("cpu_op", "cudaMalloc", 0, 10)
                                .host("cuda_runtime", "cudaFree", 20, 5)
                                .host("cuda_driver", "cuMemMap", 30, 5));
  CHECK(built.tree.api[built.row("cudaMalloc")] == ApiClass::kNone);
  CHECK(built.tree.api[built.row("cudaFree")] == ApiClass::kDeviceFree);
  CHECK(built.tree.api[built.row("cuMemMap")] == ApiClass::kMapping);
}

TEST_CASE("warm-up is told by the number of the first step, else by the first of several",
          "[tree]") {
  const auto warm_up = [](int first_number, int steps) {
    TraceText text;
    for (int i = 0; i < steps; ++i) {
      text.host("user_annotation", "ProfilerStep#" + std::to_string(first_number + i), i * 100.0,
                100);
    }
    return build(text.launch("k", 1, 1, 5, 20, 7, 1)).tree.warm_up;
  };
  CHECK(warm_up(0, 3).end_ns == 100'000);
  CHECK(warm_up(1, 3).end_ns == 100'000);
  CHECK(warm_up(2, 3).end_ns == 0);
  CHECK(warm_up(2, 1).known);
  CHECK_FALSE(warm_up(1, 1).known);
}

TEST_CASE("without steps a loop of at least 50 kernels is warm when it has shown nearly all names",
          "[tree]") {
  // Ten names in the first ten kernels, then the first name again and again.
  const auto warm_up = [](int kernels, int orphans) {
    TraceText text;
    for (int i = 0; i < kernels; ++i) {
      text.launch("k" + std::to_string(i < 10 ? i : 0), 10.0 * i, 5, 10.0 * i + 6, 2, 7, i + 1);
    }
    for (int i = 0; i < orphans; ++i) text.gpu("kernel", "o", 1e5 + i, 1, 7, 1000 + i);
    return build(text).tree.warm_up;
  };
  CHECK_FALSE(warm_up(49, 0).known);
  CHECK_FALSE(warm_up(49, 9).known);  // orphans do not count
  REQUIRE(warm_up(50, 0).known);
  CHECK_FALSE(warm_up(50, 0).by_steps);
  CHECK(warm_up(50, 0).end_ns == 85'000);  // the return of the call of the ninth name, k8
}
