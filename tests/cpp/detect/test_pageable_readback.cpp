#include "scene.hpp"

using namespace traceap;

namespace {

constexpr const char* kPageable = "Memcpy DtoH (Device -> Pageable)";
constexpr const char* kPinned = "Memcpy DtoH (Device -> Pinned)";

struct Readback {
  const char* name = kPageable;
  long long bytes = 8 << 20;
  double call_dur = 900;
  const char* api = "cudaMemcpyAsync";
  bool sync = false;
};

/// Six steps: a kernel of 500 us, then its result is copied back for 800 us, then 100 us until the
/// next launch.
Scene steps(const Readback& what) {
  Scene scene;
  for (int i = 0; i < 6; ++i) {
    const double t = 2'000.0 * i;
    scene.step(3 + i, t, 2'000);
    scene.op("aten::mm", t, 20).kernel("gemm", t + 5, t + 20, 500);
    scene.op("aten::copy_", t + 30, 1'350);
    scene.copy(what.name, t + 520 - 100, what.call_dur, t + 520, 800, what.bytes, what.api);
    if (what.sync) scene.call("cudaStreamSynchronize", t + 425 + what.call_dur, 10);
    scene.op("aten::mm", t + 1'400, 20).kernel("gemm", t + 1'415, t + 1'420, 500);
  }
  return scene;
}

}  // namespace

TEST_CASE("a copy into pageable memory holds the host", "[detect][pageable_readback]") {
  const Finding finding = steps({}).judge("pageable_readback");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.cost_ns == 6 * 900'000);  // the copy and the 100 us behind it
  CHECK(fact(finding, "copies") == "6");
  CHECK(fact(finding, "bytes") == std::to_string(6 * (8 << 20)));
  CHECK(fact(finding, "meant to wait") == "0");
}

TEST_CASE("copies that are meant to wait are staged all the same", "[detect][pageable_readback]") {
  for (const Readback& what : {Readback{.sync = true}, Readback{.api = "cudaMemcpy"}}) {
    const Finding finding = steps(what).judge("pageable_readback");
    CHECK(finding.verdict == Verdict::kPresent);
    // The wait holds the host 15 us longer, by which it launches the next step late.
    CHECK(finding.cost_ns == 6 * 900'000 + (what.sync ? 5 * 15'000 : 0));
    CHECK(fact(finding, "meant to wait") == "6");
  }
}

TEST_CASE("results that are read once, at the end, are no loop", "[detect][pageable_readback]") {
  const auto read = [](int times, bool kernel_between, const char* name) {
    Scene scene;
    scene.step(3, 0, 10'000).op("aten::mm", 0, 20).kernel("gemm", 5, 20, 980);
    for (int i = 0; i < times; ++i) {
      const double t = 1'000.0 + 1'000 * i;
      scene.op("aten::copy_", t, 900).copy(name, t + 5, 880, t + 10, 860, 8 << 20);
      if (kernel_between) scene.kernel("gemm", t + 910, t + 920, 50);
    }
    return scene.judge("pageable_readback");
  };
  const char* unknown = "CopyDeviceToHost";
  CHECK(read(3, true, kPageable).verdict == Verdict::kPresent);
  CHECK(read(3, false, kPageable).verdict == Verdict::kAbsent);
  CHECK(read(1, true, kPageable).verdict == Verdict::kAbsent);
  CHECK(read(3, true, unknown).verdict == Verdict::kUnknown);
  CHECK(read(1, true, unknown).verdict == Verdict::kAbsent);
}

TEST_CASE("pinned memory, small values and copies that hold nobody are other types'",
          "[detect][pageable_readback]") {
  const auto verdict = [](const Readback& what) {
    return steps(what).judge("pageable_readback").verdict;
  };
  CHECK(verdict({.name = kPinned}) == Verdict::kAbsent);
  CHECK(verdict({.bytes = (64 << 10) - 1}) == Verdict::kAbsent);
  CHECK(verdict({.bytes = 64 << 10}) == Verdict::kPresent);
  CHECK(verdict({.call_dur = 20}) == Verdict::kAbsent);
  CHECK(verdict({.name = "Memcpy HtoD (Pageable -> Device)"}) == Verdict::kAbsent);
}

TEST_CASE("copies without a word on memory could be such copies", "[detect][pageable_readback]") {
  CHECK(steps({.name = "CopyDeviceToHost"}).judge("pageable_readback").missing_signals ==
        std::vector<std::string>{"pageable or pinned in the names of the copies"});
}

TEST_CASE("what could be such copies counts only where it matters", "[detect][pageable_readback]") {
  CHECK(steps({.bytes = -1}).judge("pageable_readback").missing_signals ==
        std::vector<std::string>{"sizes of the copies"});
  // 2 us of each step of 100 ms.
  Scene scene;
  for (int i = 0; i < 3; ++i) {
    const double t = 100'000.0 * i;
    scene.step(3 + i, t, 100'000).op("aten::mm", t, 20).kernel("gemm", t + 5, t + 20, 500);
    scene.copy("CopyDeviceToHost", t + 600, 20, t + 610, 2, 8 << 20);
  }
  CHECK(scene.judge("pageable_readback").verdict == Verdict::kAbsent);
}

TEST_CASE("copies beside computation cost nothing, and those without a call tell nothing",
          "[detect][pageable_readback]") {
  Scene covered = steps({});
  covered.text().launch("gemm", 0.5, 0.1, 1, 11'990, 8, 9'000);
  CHECK(covered.judge("pageable_readback").verdict == Verdict::kAbsent);
  Scene orphans = steps({.call_dur = 20});
  for (int i = 0; i < 6; ++i) {
    orphans.text().gpu("gpu_memcpy", kPageable, 2'000.0 * i + 1'330, 60, 7, 9'000 + i,
                       R"("bytes":8388608)");
  }
  CHECK(orphans.judge("pageable_readback").verdict == Verdict::kAbsent);
}

TEST_CASE("copies outside of the profiled steps do not count", "[detect][pageable_readback]") {
  Scene scene = steps({});
  scene.op("aten::copy_", -2'000, 900).copy(kPageable, -1'995, 880, -1'990, 860, 8 << 20);
  CHECK(fact(scene.judge("pageable_readback"), "copies") == "6");
}
