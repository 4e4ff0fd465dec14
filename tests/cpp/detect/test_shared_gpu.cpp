#include "scene.hpp"

using namespace traceap;

namespace {

/// 15 turns of kernels of 2 ms on stream 7, launched long before, with a gap behind each.
/// `between` adds calls between two launches; `stream_of` says where the i-th kernel runs.
template <class Gap, class Between>
Finding judge_gaps(Gap&& gap, Between&& between, bool launched_ahead = true) {
  TraceText text;
  double gpu = 1'000.0;
  for (int i = 0; i < 15; ++i) {
    const double host = launched_ahead ? 20.0 * i : gpu - 10.0;
    text.host("cpu_op", "aten::mm", host, 8);
    text.launch("gemm", host + 1, 5, gpu, 2'000, 7, 1 + i);
    between(text, host + 9, i);
    gpu += 2'000 + gap(i);
  }
  return judge("shared_gpu", text);
}

const auto nothing = [](TraceText&, double, int) {};

}  // namespace

TEST_CASE("gaps of one length with work queued are another process's turns",
          "[detect][shared_gpu]") {
  const Finding finding = judge_gaps([](int i) { return 1'900.0 + 20 * (i % 5); }, nothing);
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.evidence_count == 14);
  CHECK(finding.cost_ns == (14 * 1'900 + 20 * (3 * 10 - 4)) * 1'000);
  CHECK(fact(finding, "gaps") == "14");
  CHECK(finding.missing_signals == std::vector<std::string>{"other processes on the GPU"});
}

TEST_CASE("gaps of any length could have any cause", "[detect][shared_gpu]") {
  const Finding finding = judge_gaps([](int i) { return 300.0 * (1 << (i % 5)); }, nothing);
  CHECK(finding.verdict == Verdict::kUnknown);
  CHECK(finding.missing_signals == std::vector<std::string>{"other processes on the GPU"});
}

TEST_CASE("a host that launches late leaves the same gaps", "[detect][shared_gpu]") {
  CHECK(judge_gaps([](int) { return 2'000.0; }, nothing, false).verdict == Verdict::kAbsent);
}

TEST_CASE("a stream that waits for an event or a host function is not pushed aside",
          "[detect][shared_gpu]") {
  for (const char* call : {"cudaStreamWaitEvent", "cudaLaunchHostFunc"}) {
    INFO(call);
    const auto waits = [&](TraceText& text, double host, int) {
      text.host("cuda_runtime", call, host, 2);
    };
    CHECK(judge_gaps([](int) { return 2'000.0; }, waits).verdict == Verdict::kAbsent);
  }
}

TEST_CASE("work that the recording lost may fill the gaps", "[detect][shared_gpu]") {
  const auto lost = [](TraceText& text, double host, int i) {
    text.host("cuda_runtime", "cudaLaunchKernel", host, 2,
              R"("correlation":)" + std::to_string(500 + i));
  };
  CHECK(judge_gaps([](int) { return 2'000.0; }, lost).verdict == Verdict::kAbsent);
}

TEST_CASE("the latency of a launch is no turn", "[detect][shared_gpu]") {
  CHECK(judge_gaps([](int) { return 90.0; }, nothing).verdict == Verdict::kAbsent);
}
