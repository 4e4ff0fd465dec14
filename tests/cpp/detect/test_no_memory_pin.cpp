#include "rule_case.hpp"

using namespace traceap;

namespace {
constexpr const char* kDetect = "no_memory_pin";
constexpr const char* kPageable = "Memcpy HtoD (Pageable -> Device)";
constexpr const char* kPinned = "Memcpy HtoD (Pinned -> Device)";

/// A step of 10 ms: from 110 us a copy of 1 ms that the host waits for, 100 us later a kernel.
/// Behind 90 us of work the host was ahead when it called, behind 20 us it was not.
RuleCase upload(const std::string& name, std::int64_t bytes, double busy_us = 90) {
  RuleCase t;
  t.step(1, 0, 10'000).kernel("relu", 20, busy_us).op("aten::copy_", 90, 1'030);
  t.copy(name, 100, 990, 110, 1'000, bytes).api("cudaStreamSynchronize", 1'092, 20);
  return t.op("aten::conv2d", 1'190, 30).kernel("conv", 1'210, 8'700);
}
}  // namespace

TEST_CASE("a pageable upload costs the copy and the refill of the queue that it emptied",
          "[detect][no_memory_pin]") {
  const Finding finding = judge(kDetect, upload(kPageable, 8 << 20));
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(cost_us(finding) == Approx(1'100));
  CHECK(fact(finding, "bytes") == std::to_string(8 << 20));
  CHECK(finding.evidence_count == 1);
}

TEST_CASE("an upload into an idle GPU costs its call, not the host's work behind it",
          "[detect][no_memory_pin]") {
  // The call found the GPU idle, which went on for 10 us, and returned 2 us after the copy.
  CHECK(cost_us(judge(kDetect, upload(kPageable, 8 << 20, 20))) == Approx(1'012));
}

TEST_CASE("work behind an upload counts once, as the host's", "[detect][no_memory_pin]") {
  RuleCase t;
  t.step(1, 0, 20'000).kernel("relu", 20, 90).op("aten::copy_", 90, 1'030);
  t.copy(kPageable, 100, 990, 110, 1'000, 8 << 20).api("cudaStreamSynchronize", 1'092, 20);
  t.op("torchvision::nms", 1'200, 5'000)
      .op("aten::conv2d", 6'210, 30)
      .kernel("conv", 6'230, 13'770);
  CHECK(cost_us(judge(kDetect, t)) == Approx(1'000 + 10));  // to the end of copy_
  CHECK(cost_us(judge("cpu_bound", t)) == Approx(6'230 - 1'120));
}

TEST_CASE("copies of less than 64 KiB do not count, however many there are",
          "[detect][no_memory_pin]") {
  const auto uploads = [](std::int64_t bytes) {
    RuleCase t;
    t.step(1, 0, 10'000);
    for (int i = 0; i < 20; ++i) {
      const double at = 100 + 480.0 * i;
      t.kernel("relu", at, 50).copy(kPageable, at + 40, 60, at + 50, 50, bytes);
    }
    return judge(kDetect, t);
  };
  CHECK(uploads(65'536).verdict == Verdict::kPresent);
  CHECK(uploads(65'535).verdict == Verdict::kAbsent);
  CHECK(uploads(65'535).evidence_count == 0);
}

TEST_CASE("a pinned upload is not a missing pin", "[detect][no_memory_pin]") {
  const Finding finding = judge(kDetect, upload(kPinned, 8 << 20));
  CHECK(finding.verdict == Verdict::kAbsent);
  CHECK(finding.cost_ns == 0);
}

TEST_CASE("small constants do not matter however long they take", "[detect][no_memory_pin]") {
  const Finding finding = judge(kDetect, upload(kPageable, 4'096));
  CHECK(finding.verdict == Verdict::kAbsent);
  CHECK(finding.evidence_count == 0);
}

TEST_CASE("downloads are not uploads", "[detect][no_memory_pin]") {
  CHECK(judge(kDetect, upload("Memcpy DtoH (Device -> Pageable)", 8 << 20)).verdict ==
        Verdict::kAbsent);
}

TEST_CASE("names without a word on the host memory leave the question open",
          "[detect][no_memory_pin]") {
  const Finding finding = judge(kDetect, upload("Memcpy HtoD (Host -> Device)", 8 << 20));
  CHECK(finding.verdict == Verdict::kUnknown);
  REQUIRE(finding.missing_signals.size() == 1);
  CHECK(contains(finding.missing_signals[0], "pinned"));
  SECTION("but not where the copies do not matter") {
    CHECK(judge(kDetect, upload("Memcpy HtoD (Host -> Device)", 4'096)).verdict ==
          Verdict::kAbsent);
  }
}

TEST_CASE("a copy under compute on another stream costs nothing", "[detect][no_memory_pin]") {
  RuleCase t;
  t.step(1, 0, 10'000).kernel("conv", 10, 9'900).copy(kPageable, 100, 990, 110, 1'000, 8 << 20, 13);
  const Finding finding = judge(kDetect, t);
  CHECK(finding.verdict == Verdict::kAbsent);
  CHECK(finding.cost_ns == 0);
}

TEST_CASE("the loader behind a copy is not the copy's", "[detect][no_memory_pin]") {
  RuleCase t;
  t.step(1, 0, 20'000).op("aten::copy_", 90, 1'050).copy(kPageable, 100, 990, 110, 1'000, 8 << 20);
  t.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1'150, 8'800);
  t.op("aten::conv2d", 9'990, 30).kernel("conv", 10'000, 9'000);
  const Finding finding = judge(kDetect, t);
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(cost_us(finding) < 2'000);
}

TEST_CASE("without GPU events nothing is known of copies", "[detect][no_memory_pin]") {
  RuleCase t;
  t.step(1, 0, 10'000).op("aten::conv2d", 10, 9'000);
  CHECK(judge(kDetect, t).verdict == Verdict::kUnknown);
}

TEST_CASE("a copy holds the host if its call lasts half of it", "[detect][no_memory_pin]") {
  const auto verdict = [](double call_us) {
    RuleCase t;
    t.step(1, 0, 10'000).op("aten::copy_", 90, 1'050);
    t.copy(kPageable, 100, call_us, 110, 1'000, 8 << 20);
    t.op("aten::conv2d", 1'190, 30).kernel("conv", 1'210, 8'700);
    return judge(kDetect, t).verdict;
  };
  CHECK(verdict(500) == Verdict::kPresent);
  CHECK(verdict(499) == Verdict::kAbsent);
}
