#include "rule_case.hpp"

using namespace traceap;

namespace {
constexpr const char* kDetect = "no_memory_pin";
constexpr const char* kPageable = "Memcpy HtoD (Pageable -> Device)";
constexpr const char* kPinned = "Memcpy HtoD (Pinned -> Device)";

/// A step of 10 ms: a copy of 1 ms that the host waits for, 100 us later a kernel.
RuleCase upload(const std::string& name, std::int64_t bytes) {
  RuleCase t;
  t.step(1, 0, 10'000).op("aten::copy_", 90, 1'050).copy(name, 100, 990, 110, 1'000, bytes);
  t.api("cudaStreamSynchronize", 1'092, 20);
  return t.op("aten::conv2d", 1'190, 30).kernel("conv", 1'210, 8'700);
}
}  // namespace

TEST_CASE("a pageable upload costs the copy and the idle time to the next kernel",
          "[detect][no_memory_pin]") {
  const Finding finding = judge(kDetect, upload(kPageable, 8 << 20));
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(cost_us(finding) == Approx(1'100));
  CHECK(fact(finding, "bytes") == std::to_string(8 << 20));
  CHECK(finding.evidence_count == 1);
}

TEST_CASE("a pinned upload is not a missing pin", "[detect][no_memory_pin]") {
  const Finding finding = judge(kDetect, upload(kPinned, 8 << 20));
  CHECK(finding.verdict == Verdict::kAbsent);
  CHECK(finding.cost_ns == 0);
}

TEST_CASE("small constants do not matter however long they take", "[detect][no_memory_pin]") {
  const Finding finding = judge(kDetect, upload(kPageable, 4'096));
  CHECK(finding.verdict == Verdict::kAbsent);
  CHECK(finding.evidence_count == 1);
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

TEST_CASE("uploads matter from 64 KiB upwards", "[detect][no_memory_pin]") {
  CHECK(judge(kDetect, upload(kPageable, 65'536)).verdict == Verdict::kPresent);
  CHECK(judge(kDetect, upload(kPageable, 65'535)).verdict == Verdict::kAbsent);
}
