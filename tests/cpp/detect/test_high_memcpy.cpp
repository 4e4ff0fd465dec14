#include "rule_case.hpp"

using namespace traceap;

namespace {
constexpr const char* kDetect = "high_memcpy";
constexpr const char* kDown = "Memcpy DtoH (Device -> Pageable)";
}  // namespace

TEST_CASE("reading a value per layer costs the time in which the host sits in the copy",
          "[detect][high_memcpy]") {
  RuleCase t;
  t.step(1, 0, 10'000);
  for (int i = 0; i < 20; ++i) {
    const double at = 100 + 480.0 * i;
    t.op("aten::mm", at - 30, 40).kernel("gemm", at, 200);
    t.op("aten::item", at + 15, 270).op("aten::_local_scalar_dense", at + 16, 268);
    t.copy(kDown, at + 20, 10, at + 201, 2, 4).api("cudaStreamSynchronize", at + 31, 240);
  }
  const Finding finding = judge(kDetect, t);
  CHECK(finding.verdict == Verdict::kPresent);
  // Each: 1 us between kernel and copy, 2 us of copy, 68 us until the call returns.
  CHECK(cost_us(finding) == Approx(20 * 71));
  CHECK(fact(finding, "device to host") == "20");
  CHECK(fact(finding, "copies the host waited for") == "20");
}

TEST_CASE("batch uploads count as well, pinned or not", "[detect][high_memcpy]") {
  RuleCase t;
  t.step(1, 0, 10'000).copy("Memcpy HtoD (Pinned -> Device)", 10, 5, 20, 3'000, 64 << 20);
  t.kernel("conv", 3'100, 6'800);
  const Finding finding = judge(kDetect, t);
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(cost_us(finding) == Approx(3'000 + 5));  // the call itself held the host for 5 us
}

TEST_CASE("a copy that waits for work outside the file is not blamed for it",
          "[detect][high_memcpy][host_sync_in_loop]") {
  // A recording that began while the GPU still worked: its kernels are not in the file.
  const auto reads = [](double first_us) {
    RuleCase t;
    t.step(1, 0, 20'000);
    if (first_us > 0) t.kernel("relu", 10, first_us - 10);
    t.op("aten::item", 15, 8'000).copy(kDown, 20, 10, 8'000, 2, 4);
    t.api("cudaStreamSynchronize", 31, 7'980);
    t.op("aten::item", 8'100, 20).copy(kDown, 8'101, 2, 8'106, 2, 4);
    t.api("cudaStreamSynchronize", 8'104, 14);
    return t.kernel("gemm", 8'200, 11'000);
  };
  for (const double first_us : {0.0, 500.0}) {
    INFO(first_us);
    CHECK(cost_us(judge(kDetect, reads(first_us))) < 50);
    CHECK(cost_us(judge("host_sync_in_loop", reads(first_us))) < 200);
  }
}

TEST_CASE("pageable uploads at the start of a recording do not own what was still running",
          "[detect][high_memcpy]") {
  RuleCase t;
  t.step(1, 0, 100'000).op("aten::to", 10, 40'000);
  t.copy("Memcpy HtoD (Pageable -> Device)", 20, 39'900, 36'000, 3'900, 38 << 20);
  t.kernel("conv", 40'100, 59'000);
  CHECK(cost_us(judge(kDetect, t)) == Approx(3'900 + 20).epsilon(0.01));
}

TEST_CASE("one logged value per step, read while the GPU works, is nothing",
          "[detect][high_memcpy]") {
  RuleCase t;
  t.step(1, 0, 10'000).kernel("conv", 10, 9'900).op("aten::item", 100, 9'830);
  t.copy(kDown, 110, 10, 9'911, 2, 4).api("cudaStreamSynchronize", 121, 9'800);
  const Finding finding = judge(kDetect, t);
  CHECK(finding.verdict == Verdict::kAbsent);
  CHECK(cost_us(finding) < 20);
}

TEST_CASE("copies under compute or inside the device are nothing", "[detect][high_memcpy]") {
  RuleCase t;
  t.step(1, 0, 10'000).kernel("conv", 10, 5'900);
  t.copy("Memcpy HtoD (Pinned -> Device)", 20, 5, 30, 5'000, 64 << 20, 13);
  t.copy("Memcpy DtoD (Device -> Device)", 5'900, 5, 5'920, 3'000, 64 << 20);
  const Finding finding = judge(kDetect, t);
  CHECK(finding.verdict == Verdict::kAbsent);
  CHECK(finding.cost_ns == 0);
  CHECK(finding.evidence_count == 1);
}

TEST_CASE("a copy kernel without a direction takes it from its call, or stays unknown",
          "[detect][high_memcpy]") {
  const auto trace = [](const std::string& kind) {
    RuleCase t;
    t.step(1, 0, 10'000)
        .host("cuda_runtime", "hipMemcpyAsync", 10, 5, R"("correlation":99)" + kind);
    t.gpu("kernel", "__amd_rocclr_copyBuffer", 20, 3'000, 7, 99);
    t.kernel("conv", 3'100, 6'800);
    return t;
  };
  CHECK(judge(kDetect, trace(R"(,"kind":"2")")).verdict == Verdict::kPresent);
  CHECK(judge(kDetect, trace(R"(,"kind":"3")")).verdict == Verdict::kAbsent);
  CHECK(judge(kDetect, trace("")).missing_signals ==
        std::vector<std::string>{"direction of the copies"});
}
