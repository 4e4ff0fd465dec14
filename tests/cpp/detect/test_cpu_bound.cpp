#include "rule_case.hpp"

using namespace traceap;

namespace {
constexpr const char* kDetect = "cpu_bound";

/// Kernels of `kernel_us` every 100 us over `steps` steps of 10 ms, each launched just in time.
RuleCase just_in_time(double kernel_us, int steps = 3) {
  RuleCase t;
  for (int i = 0; i < steps; ++i) {
    t.step(i, 10'000.0 * i, 10'000);
    for (double at = 10'000.0 * i + 100; at < 10'000.0 * (i + 1) - 50; at += 100) {
      t.op("aten::add", at - 90, 95).kernel("add", at, kernel_us);
    }
  }
  return t;
}
}  // namespace

TEST_CASE("gaps between just-in-time launches are CPU bound", "[detect][cpu_bound]") {
  const Finding finding = judge(kDetect, just_in_time(20));
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(cost_us(finding) == Approx(0.8 * 30'000).epsilon(0.05));
  CHECK(finding.confidence > 0.8);
}

TEST_CASE("gaps around kernels shorter than a launch are one burst", "[detect][cpu_bound]") {
  const Finding finding = judge(kDetect, just_in_time(1.5));
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.intervals.size() < 10);
  CHECK(finding.saving_high_ns < finding.cost_ns);  // the kernels themselves stay
}

TEST_CASE("a host that runs ahead is not the bottleneck", "[detect][cpu_bound]") {
  RuleCase t;
  t.step(1, 0, 10'000);
  for (int i = 0; i < 90; ++i) {
    t.op("aten::add", 10 + 20.0 * i, 18).queued("add", 20 + 20.0 * i, 30 + 110.0 * i, 105);
  }
  const Finding finding = judge(kDetect, t);
  CHECK(finding.verdict == Verdict::kAbsent);
}

TEST_CASE("the empty queue at the start of a recording is no steady state", "[detect][cpu_bound]") {
  RuleCase t;
  t.step(1, 0, 10'000).op("aten::add", 10, 2'950);
  t.queued("long", 2'900, 3'000, 6'900);
  CHECK(judge(kDetect, t).verdict == Verdict::kAbsent);
  SECTION("nor is a first step whose like does not come again") {
    RuleCase steps;
    for (int i = 0; i < 4; ++i) steps.step(i, 10'000.0 * i, 10'000);
    steps.kernel("left over", 10, 20).op("aten::add", 100, 2'850);
    steps.queued("long", 2'900, 3'000, 36'900);
    CHECK(judge(kDetect, steps).verdict == Verdict::kAbsent);
  }
}

TEST_CASE("the refill behind a read is the read's, work of the host behind it is the host's",
          "[detect][cpu_bound]") {
  const auto cost = [](const std::string& name, double work_us) {
    RuleCase t;
    t.step(1, 0, 20'000).kernel("conv", 10, 4'000).op("aten::to", 100, 3'950);
    t.copy("Memcpy DtoH (Device -> Pageable)", 110, 10, 4'010, 2, 4);
    t.api("cudaStreamSynchronize", 121, 3'920).op(name, 4'060, work_us);
    return cost_us(judge(kDetect, t.kernel("conv", 4'080 + work_us, 15'920 - work_us)));
  };
  CHECK(cost("aten::add", 500) == 0);
  CHECK(cost("aten::add", 900) == 0);
  CHECK(cost("torchvision::nms", 4'000) == Approx(4'030));  // the read is over at 4'050
}

TEST_CASE("a first call that was far slower than all later ones is a cold start",
          "[detect][cpu_bound]") {
  RuleCase t = just_in_time(95);
  t.step(4, 30'000, 40'000).op("aten::gelu", 30'010, 20'000).queued("gelu", 50'000, 50'015, 95);
  for (double at = 50'200; at < 69'900; at += 100) {
    t.op("aten::gelu", at - 90, 95).queued("gelu", at - 20, at, 98);
  }
  CHECK(judge(kDetect, t).verdict == Verdict::kAbsent);
}

TEST_CASE("a host that does nothing that is recorded is not launching", "[detect][cpu_bound]") {
  RuleCase t;
  t.step(1, 0, 60'000).op("aten::add", 1, 20).kernel("conv", 20, 20'000);
  t.op("aten::add", 45'000, 20).kernel("conv", 45'020, 14'900);
  CHECK(judge(kDetect, t).verdict == Verdict::kAbsent);
}

TEST_CASE("CPU bound is unknown without GPU events or without launches", "[detect][cpu_bound]") {
  RuleCase host_only;
  host_only.step(1, 0, 10'000).op("aten::add", 10, 9'000);
  CHECK(judge(kDetect, host_only).missing_signals == std::vector<std::string>{"GPU events"});
  RuleCase gpu_only;
  for (int i = 0; i < 10; ++i) gpu_only.gpu("kernel", "add", 100.0 * i, 20, 7, 100 + i);
  const Finding finding = judge(kDetect, gpu_only);
  CHECK(finding.verdict == Verdict::kUnknown);
  CHECK(finding.missing_signals == std::vector<std::string>{"host events"});
  SECTION("but absent where the GPU is busy") {
    RuleCase busy;
    for (int i = 0; i < 10; ++i) busy.gpu("kernel", "add", 100.0 * i, 100, 7, 100 + i);
    CHECK(judge(kDetect, busy).verdict == Verdict::kAbsent);
  }
  SECTION("and launch calls alone don't tell what kept the host") {
    RuleCase launches;
    for (int i = 1; i < 100; ++i) launches.kernel("add", 100.0 * i, 20);
    CHECK(judge(kDetect, launches).missing_signals == std::vector<std::string>{"host operators"});
  }
}

TEST_CASE("kernels of up to 2 us do not part the gaps around them", "[detect][cpu_bound]") {
  CHECK(judge(kDetect, just_in_time(2)).intervals.size() < 10);
  CHECK(judge(kDetect, just_in_time(2.1)).intervals.size() > 200);
}

TEST_CASE("a first call is cold from 1 ms, ten times the mean, with three calls behind it",
          "[detect][cpu_bound]") {
  // The GPU idles during the first call only; behind it one kernel covers the later calls.
  const auto verdict = [](double first_us, double later_us, int later_calls) {
    RuleCase t;
    t.step(1, 0, 20'000).op("aten::mm", 5, 20).queued("gemm", 10, 100, 900);
    const double done = 1'000 + first_us;
    t.op("aten::gelu", 1'000, first_us).queued("gelu", done - 10, done + 5, 19'900 - done);
    for (int i = 0; i < later_calls; ++i) {
      t.op("aten::gelu", done + 20 + (later_us + 10) * i, later_us);
    }
    return judge(kDetect, t).verdict;
  };
  CHECK(verdict(1'000, 10, 3) == Verdict::kAbsent);
  CHECK(verdict(999, 10, 3) == Verdict::kPresent);
  CHECK(verdict(2'000, 200, 3) == Verdict::kAbsent);
  CHECK(verdict(2'000, 201, 3) == Verdict::kPresent);
  CHECK(verdict(2'000, 10, 2) == Verdict::kPresent);
}

TEST_CASE("a host that is silent for a tenth of the step does something else",
          "[detect][cpu_bound]") {
  const auto verdict = [](double next_us) {
    RuleCase t;
    t.step(1, 0, 60'000).op("aten::add", 1, 20).kernel("conv", 20, 1'000);
    t.op("aten::add", next_us, 20).kernel("conv", next_us + 20, 59'900 - next_us);
    return judge(kDetect, t).verdict;
  };
  CHECK(verdict(6'020) == Verdict::kPresent);
  CHECK(verdict(6'021) == Verdict::kAbsent);
}

TEST_CASE("a first step with more than twice the idle share of the others is left out",
          "[detect][cpu_bound]") {
  const auto cost = [](double first_gap_us) {
    RuleCase t;
    for (int i = 0; i < 3; ++i) t.step(i, 10'000.0 * i, 10'000);
    t.op("aten::mm", 5, 30).kernel("gemm", 50, 4'950);
    double end = 5'000;
    for (int i = 0; i < 3; ++i) {  // one gap per step
      const double gap = i == 0 ? first_gap_us : 1'000, next_end = 15'000 + 10'000.0 * i;
      t.op("aten::mm", end - 100, gap + 100);
      t.kernel("gemm", end + gap, (i < 2 ? next_end : 30'000) - (end + gap));
      end = next_end;
    }
    return cost_us(judge(kDetect, t));
  };
  // The first 50 us of the step, in front of its first kernel, count as well.
  CHECK(cost(1'940) == Approx(3'990));
  CHECK(cost(1'960) == Approx(2'000));
}
