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

TEST_CASE("an asynchronous copy into pageable memory waits all the same",
          "[detect][pageable_readback]") {
  const Finding finding = steps({}).judge("pageable_readback");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.cost_ns == 6 * 900'000);  // the copy and the 100 us behind it
  CHECK(fact(finding, "copies") == "6");
  CHECK(fact(finding, "bytes") == std::to_string(6 * (8 << 20)));
}

TEST_CASE("pinned memory, small values and copies that were meant to wait are other types'",
          "[detect][pageable_readback]") {
  const auto verdict = [](const Readback& what) {
    return steps(what).judge("pageable_readback").verdict;
  };
  CHECK(verdict({.name = kPinned}) == Verdict::kAbsent);
  CHECK(verdict({.bytes = (64 << 10) - 1}) == Verdict::kAbsent);
  CHECK(verdict({.bytes = 64 << 10}) == Verdict::kPresent);
  CHECK(verdict({.sync = true}) == Verdict::kAbsent);         // .cpu(): high_memcpy
  CHECK(verdict({.api = "cudaMemcpy"}) == Verdict::kAbsent);  // not asynchronous
  CHECK(verdict({.call_dur = 20}) == Verdict::kAbsent);       // held nobody
  CHECK(verdict({.name = "Memcpy HtoD (Pageable -> Device)"}) == Verdict::kAbsent);
}

TEST_CASE("copies without a word on memory could be such copies", "[detect][pageable_readback]") {
  CHECK(steps({.name = "CopyDeviceToHost"}).judge("pageable_readback").missing_signals ==
        std::vector<std::string>{"pageable or pinned in the names of the copies"});
}
