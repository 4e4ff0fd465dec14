#include "scene.hpp"

using namespace traceap;

namespace {

/// Three steps of four turns: a memset whose call takes `call_dur`, then a kernel of 300 us that is
/// launched right behind it.
Finding judge_memsets(const std::string& api, double call_dur) {
  TraceText text;
  int id = 0;
  for (int step = 0; step < 3; ++step) {
    text.host("user_annotation", "ProfilerStep#" + std::to_string(3 + step), 10'000.0 * step,
              10'000);
    for (int i = 0; i < 4; ++i) {
      const double t = 10'000.0 * step + 2'000.0 * i;
      ++id;
      text.host("cuda_runtime", api, t, call_dur, R"("correlation":)" + std::to_string(id));
      text.gpu("gpu_memset", "Memset (Device)", t + 10, 40, 7, id);
      ++id;
      text.launch("gemm", t + call_dur + 10, 5, t + call_dur + 100, 300, 7, id);
    }
  }
  return judge("synchronous_memset", text);
}

}  // namespace

TEST_CASE("a memset that holds the host until it is done", "[detect][synchronous_memset]") {
  const Finding finding = judge_memsets("cudaMemset", 500);
  CHECK(finding.verdict == Verdict::kPresent);
  // From the call to the kernel behind it, less the memset itself.
  CHECK(finding.cost_ns == 12 * (600 - 40) * 1'000);
  CHECK(fact(finding, "calls") == "12");
  CHECK(fact(finding, "per step") == "4");
}

TEST_CASE("names of other runtimes are read alike", "[detect][synchronous_memset]") {
  CHECK(judge_memsets("hipMemset", 500).verdict == Verdict::kPresent);
  CHECK(judge_memsets("cuMemsetD32_v2", 500).verdict == Verdict::kPresent);
}

TEST_CASE("asynchronous memsets, and calls that return before theirs is done, hold nobody",
          "[detect][synchronous_memset]") {
  CHECK(judge_memsets("cudaMemsetAsync", 500).verdict == Verdict::kAbsent);
  CHECK(judge_memsets("cudaMemset", 20).verdict == Verdict::kAbsent);
}
