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
  // From the call to the kernel behind it, less the memset itself, from the first one on.
  CHECK(finding.cost_ns == 12 * (600 - 40) * 1'000 - 10'000);
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

TEST_CASE("other calls that wait, and memsets that left no mark, are no such memsets",
          "[detect][synchronous_memset]") {
  CHECK(judge_memsets("cudaMemcpy", 500).verdict == Verdict::kAbsent);
  TraceText text;
  for (int i = 0; i < 12; ++i) {
    const double t = 1'000.0 * i;
    text.host("cuda_runtime", "cudaMemset", t, 500, R"("correlation":)" + std::to_string(500 + i));
    text.launch("gemm", t + 510, 5, t + 520, 300, 7, 1 + i);
  }
  CHECK(judge("synchronous_memset", text).verdict == Verdict::kAbsent);
}

TEST_CASE("one memset, or one before the profiled steps, is no loop",
          "[detect][synchronous_memset]") {
  const auto with = [](int before, int inside) {
    TraceText text;
    text.host("user_annotation", "ProfilerStep#3", 0, 10'000);
    int id = 0;
    const auto memset = [&](double t) {
      text.host("cuda_runtime", "cudaMemset", t, 900, R"("correlation":)" + std::to_string(++id));
      text.gpu("gpu_memset", "Memset (Device)", t + 10, 40, 7, id);
    };
    for (int i = 0; i < before; ++i) memset(-2'000.0 * (i + 1));
    text.launch("gemm", 5, 5, 20, 100, 7, 900);
    for (int i = 0; i < inside; ++i) memset(1'000 + 2'000.0 * i);
    text.launch("gemm", 9'000, 5, 9'020, 100, 7, 901);
    return judge("synchronous_memset", text);
  };
  CHECK(fact(with(0, 2), "calls") == "2");
  CHECK(with(0, 1).verdict == Verdict::kAbsent);
  CHECK(with(3, 1).verdict == Verdict::kAbsent);
}
