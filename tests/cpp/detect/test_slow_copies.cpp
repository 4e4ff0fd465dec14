// Copies below the speed that others of their kind reach, and their look-alikes.

#include "rule_case.hpp"

using namespace traceap;

namespace {

constexpr const char* kUp = "Memcpy HtoD (Pinned -> Device)";
constexpr std::int64_t kBytes = 24'000'000;  // 1 ms at 24 GB/s

/// Ten steps of 10 ms, each with an upload of 24 MB that takes 1 ms, or `slow_us` in every other.
RuleCase uploads(double slow_us, const std::string& name = kUp, std::int64_t bytes = kBytes) {
  RuleCase t;
  for (int i = 0; i < 10; ++i) {
    const double at = 10'000.0 * i;
    const double length = i % 2 == 0 ? 1'000 : slow_us;
    t.step(i, at, 10'000);
    t.op("aten::copy_", at + 10, 30).copy(name, at + 20, 10, at + 100, length, bytes);
    t.op("aten::mm", at + 60, 20).queued("gemm", at + 65, at + 110 + length, 3'000);
  }
  return t;
}

}  // namespace

TEST_CASE("copies that take longer than their bytes need elsewhere", "[detect][slow_copies]") {
  const Finding finding = judge("slow_copies", uploads(4'000));
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(cost_us(finding) == Approx(5 * 3'000));
  CHECK(fact(finding, "copies") == "5");
  CHECK(fact(finding, "GB per s") == "6");
  CHECK(fact(finding, "GB per s of others") == "24");
}

TEST_CASE("copies of similar speed, small ones and pageable ones are not slow",
          "[detect][slow_copies]") {
  CHECK(judge("slow_copies", uploads(1'000)).verdict == Verdict::kAbsent);
  CHECK(judge("slow_copies", uploads(1'600)).verdict == Verdict::kAbsent);
  CHECK(judge("slow_copies", uploads(4'000, kUp, 512 << 10)).verdict == Verdict::kAbsent);
  CHECK(judge("slow_copies", uploads(4'000, "Memcpy HtoD (Pageable -> Device)")).verdict ==
        Verdict::kAbsent);
}

TEST_CASE("copies beside computation cost nothing", "[detect][slow_copies]") {
  RuleCase t = uploads(4'000);
  for (int i = 0; i < 10; ++i) t.queued("gemm", 10'000.0 * i + 70, 10'000.0 * i + 90, 5'000, 9);
  CHECK(judge("slow_copies", t).verdict == Verdict::kAbsent);
}

TEST_CASE("copies at the same time share the link", "[detect][slow_copies]") {
  RuleCase t = uploads(4'000);
  for (int i = 1; i < 10; i += 2) {
    t.copy(kUp, 10'000.0 * i + 40, 5, 10'000.0 * i + 100, 4'000, 3 * kBytes, 21);
  }
  CHECK(judge("slow_copies", t).verdict == Verdict::kAbsent);
}

TEST_CASE("where names tell no memory, or copies no sizes, slow copies are unknown",
          "[detect][slow_copies]") {
  const Finding nameless = judge("slow_copies", uploads(4'000, "CopyHostToDevice"));
  CHECK(nameless.verdict == Verdict::kUnknown);
  CHECK(nameless.missing_signals == std::vector<std::string>{"pinned or pageable in copy names"});
  RuleCase t;
  for (int i = 0; i < 10; ++i) {
    const double at = 10'000.0 * i;
    t.step(i, at, 10'000).gpu("gpu_memcpy", kUp, at + 100, 4'000, 7, 1'000 + i);
    t.queued("gemm", at + 65, at + 5'000, 3'000);
  }
  const Finding unsized = judge("slow_copies", t);
  CHECK(unsized.verdict == Verdict::kUnknown);
  CHECK(unsized.missing_signals == std::vector<std::string>{"sizes of the copies"});
}
