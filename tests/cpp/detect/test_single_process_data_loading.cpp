#include "rule_case.hpp"

using namespace traceap;

namespace {
constexpr const char* kDetect = "single_process_data_loading";
constexpr const char* kSingle = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__";
constexpr const char* kMulti = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__";

/// Three steps of 10 ms, each with a loader range at its start and kernels behind it.
RuleCase loading_steps(const char* loader, double fetch_us) {
  RuleCase t;
  for (int i = 0; i < 3; ++i) {
    const double start = 10'000.0 * i;
    t.step(i, start, 10'000);
    if (loader != nullptr) t.annotation(loader, start + 10, fetch_us);
    for (double at = start + fetch_us + 100; at < start + 9'900; at += 200) {
      t.op("aten::conv2d", at - 20, 30).kernel("conv", at, 190);
    }
  }
  return t;
}
}  // namespace

TEST_CASE("a loader on the main process is found where the GPU waits for it",
          "[detect][single_process_data_loading]") {
  const Finding finding = judge(kDetect, loading_steps(kSingle, 4'000));
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(cost_us(finding) == Approx(3 * 4'000).margin(10));
  CHECK(finding.evidence_count == 3);
  CHECK(fact(finding, "fetches") == "3");
  CHECK(finding.saving_high_ns == finding.cost_ns);
  CHECK(finding.saving_best_ns < finding.saving_high_ns);
  for (const Interval& interval : finding.intervals) CHECK(interval.length_ns() == 4'000'000);
}

TEST_CASE("the range as an operator, as traces of 2021 write it, is the same",
          "[detect][single_process_data_loading]") {
  RuleCase t;
  t.host("Operator", "ProfilerStep#1", 0, 10'000).host("Operator", kSingle, 10, 5'000);
  t.kernel("conv", 5'200, 4'700);
  CHECK(judge(kDetect, t).verdict == Verdict::kPresent);
}

TEST_CASE("a loader that works while kernels are queued costs nothing",
          "[detect][single_process_data_loading]") {
  RuleCase t;
  t.step(1, 0, 10'000).kernel("conv", 10, 9'980).annotation(kSingle, 100, 6'000);
  const Finding finding = judge(kDetect, t);
  CHECK(finding.verdict == Verdict::kAbsent);
  CHECK(finding.cost_ns == 0);
}

TEST_CASE("gaps between queued kernels during a fetch are not the loader's",
          "[detect][single_process_data_loading]") {
  RuleCase t;
  t.step(1, 0, 10'000).op("aten::conv2d", 0, 100);
  for (int i = 0; i < 8; ++i) t.queued("conv", 10 + 10 * i, 200 + 500 * i, 450);  // 50 us apart
  t.annotation(kSingle, 150, 6'000);
  t.op("aten::conv2d", 6'200, 20).kernel("conv", 6'210, 3'500);
  const Finding finding = judge(kDetect, t);
  CHECK(finding.verdict == Verdict::kPresent);
  // And the 60 us that the host needs for its next launch: the fetch took its lead.
  CHECK(cost_us(finding) == 6'210 - (200 + 7 * 500 + 450));
  CHECK(finding.intervals.size() == 1);
}

TEST_CASE("batches that are ready made are no loading", "[detect][single_process_data_loading]") {
  const Finding finding = judge(kDetect, loading_steps(kSingle, 30));
  CHECK(finding.verdict == Verdict::kAbsent);
  CHECK(finding.cost_ns > 0);
}

TEST_CASE("a run that computes on the host waits for all of its loading",
          "[detect][single_process_data_loading]") {
  RuleCase t;
  for (int i = 0; i < 3; ++i) {
    const double start = 10'000.0 * i;
    t.step(i, start, 10'000).annotation(kSingle, start, 4'000);
    t.op("aten::mkldnn_convolution", start + 4'000, 6'000);
  }
  const Finding finding = judge(kDetect, t);
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(cost_us(finding) == Approx(3 * 4'000));
  CHECK(fact(finding, "fetches") == "3");
}

TEST_CASE("operators that fill less than a tenth of the time are no run on the host",
          "[detect][single_process_data_loading]") {
  const auto filled_us = [](double us) {
    RuleCase t;
    t.step(1, 0, 10'000).annotation(kSingle, 10, 4'000).op("aten::mm", 5'000, us);
    return judge(kDetect, t).verdict;
  };
  CHECK(filled_us(1'000) == Verdict::kPresent);
  CHECK(filled_us(999) == Verdict::kUnknown);
}

TEST_CASE("workers are another type", "[detect][single_process_data_loading]") {
  CHECK(judge(kDetect, loading_steps(kMulti, 4'000)).verdict == Verdict::kAbsent);
}

TEST_CASE("silence at the start of steps could hide a loader",
          "[detect][single_process_data_loading]") {
  const Finding silent = judge(kDetect, loading_steps(nullptr, 4'000));
  CHECK(silent.verdict == Verdict::kUnknown);
  CHECK(silent.missing_signals == std::vector<std::string>{"DataLoader range"});
  CHECK(judge(kDetect, loading_steps(nullptr, 20)).verdict == Verdict::kAbsent);
}

TEST_CASE("without GPU events a loader's cost can't be known",
          "[detect][single_process_data_loading]") {
  RuleCase t;
  t.step(1, 0, 10'000).annotation(kSingle, 10, 5'000).op("aten::conv2d", 5'100, 400);
  const Finding finding = judge(kDetect, t);
  CHECK(finding.verdict == Verdict::kUnknown);
  CHECK(finding.missing_signals == std::vector<std::string>{"GPU events"});
}

TEST_CASE("a loader on a thread of its own does not hold the training up",
          "[detect][single_process_data_loading]") {
  RuleCase t;
  t.step(1, 0, 10'000).op("aten::conv2d", 10, 30).kernel("conv", 20, 100);
  t.complete("user_annotation", kSingle, 200, 5'000, 1, "2");
  t.op("aten::conv2d", 100, 7'000).kernel("conv", 7'000, 2'900);
  CHECK(judge(kDetect, t).cost_ns == 0);
}

TEST_CASE("silence of 1 ms could hide a loader", "[detect][single_process_data_loading]") {
  // Silent from the start of the first step to 80 us behind the fetch; less later.
  CHECK(judge(kDetect, loading_steps(nullptr, 920)).verdict == Verdict::kUnknown);
  CHECK(judge(kDetect, loading_steps(nullptr, 909)).verdict == Verdict::kAbsent);
}
