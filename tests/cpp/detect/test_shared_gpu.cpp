#include "scene.hpp"

using namespace traceap;

namespace {

struct Turns {
  int count = 15;
  double dur = 2'000;
  bool ahead = true;                        ///< launched long before
  const char* names[2] = {"gemm", "gemm"};  ///< of even and odd turns
  bool calls[2] = {true, true};             ///< with their launches
};

/// Turns of kernels on stream 7 with a gap behind each. `between` adds calls between two launches.
template <class Gap, class Between>
Finding judge_gaps(Gap&& gap, Between&& between, const Turns& turns = {}) {
  TraceText text;
  double gpu = 1'000.0;
  for (int i = 0; i < turns.count; ++i) {
    const double host = turns.ahead ? 20.0 * i : gpu - 10.0;
    const char* name = turns.names[i % 2];
    text.host("cpu_op", "aten::mm", host, 8);
    if (turns.calls[i % 2]) {
      text.launch(name, host + 1, 5, gpu, turns.dur, 7, 1 + i);
    } else {
      text.gpu("kernel", name, gpu, turns.dur, 7, 1 + i);
    }
    between(text, host + 9, i);
    gpu += turns.dur + gap(i);
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
  CHECK(judge_gaps([](int) { return 2'000.0; }, nothing, {.ahead = false}).verdict ==
        Verdict::kAbsent);
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

TEST_CASE("ten gaps are turns, nine are not", "[detect][shared_gpu]") {
  const auto equal = [](int) { return 2'000.0; };
  CHECK(judge_gaps(equal, nothing, {.count = 11}).verdict == Verdict::kPresent);
  CHECK(judge_gaps(equal, nothing, {.count = 10}).verdict == Verdict::kAbsent);
}

TEST_CASE("gaps of any length that do not matter are nobody's", "[detect][shared_gpu]") {
  CHECK(
      judge_gaps([](int i) { return 150.0 * (1 << (i % 5)); }, nothing, {.dur = 200'000}).verdict ==
      Verdict::kAbsent);
}

TEST_CASE("without launch calls gaps are open where they matter", "[detect][shared_gpu]") {
  const auto equal = [](int) { return 2'000.0; };
  CHECK(judge_gaps(equal, nothing, {.calls = {false, false}}).missing_signals ==
        std::vector<std::string>{"launch calls of GPU events"});
  CHECK(judge_gaps(equal, nothing, {.dur = 200'000, .calls = {false, false}}).verdict ==
        Verdict::kAbsent);
  CHECK(judge_gaps(equal, nothing, {.calls = {true, false}}).verdict == Verdict::kAbsent);
}

TEST_CASE("gaps around collectives are other ranks'", "[detect][shared_gpu]") {
  const char* nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL";
  const auto behind = [](int first) {
    return [first](int i) { return i % 2 == first ? 2'000.0 : 0.0; };
  };
  Turns turns{.count = 30};
  CHECK(judge_gaps(behind(0), nothing, turns).verdict == Verdict::kPresent);
  turns.names[0] = nccl;
  CHECK(judge_gaps(behind(0), nothing, turns).verdict == Verdict::kAbsent);
  CHECK(judge_gaps(behind(1), nothing, turns).verdict == Verdict::kAbsent);
}

TEST_CASE("calls that hold nothing back explain no gap", "[detect][shared_gpu]") {
  const auto asks = [](TraceText& text, double host, int) {
    text.host("cuda_runtime", "cudaEventQuery", host, 2);
  };
  CHECK(judge_gaps([](int) { return 2'000.0; }, asks).verdict == Verdict::kPresent);
}

TEST_CASE("a host that waits for lost work has queued nothing", "[detect][shared_gpu]") {
  // The wait begins when the GPU is done, lasts 1.9 ms, and the next launch follows.
  TraceText text;
  for (int i = 0; i < 15; ++i) {
    const double gpu = 1'000 + 4'000.0 * i;
    text.host("cpu_op", "aten::mm", gpu - 60, 30).launch("gemm", gpu - 50, 5, gpu, 2'000, 7, 1 + i);
    text.host("cuda_runtime", "cudaDeviceSynchronize", gpu + 2'001, 1'900);
  }
  CHECK(judge("shared_gpu", text).verdict == Verdict::kAbsent);
}

TEST_CASE("a few short gaps of another cause change nothing", "[detect][shared_gpu]") {
  const auto mostly = [](int i) { return i % 3 == 2 ? 150.0 : 2'000.0; };
  CHECK(judge_gaps(mostly, nothing, {.count = 25}).verdict == Verdict::kPresent);
  // One long gap is no turn, whatever short ones there are.
  const auto once = [](int i) { return i == 7 ? 50'000.0 : 150.0; };
  CHECK(judge_gaps(once, nothing).verdict == Verdict::kUnknown);
}
