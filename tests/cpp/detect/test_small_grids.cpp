#include "scene.hpp"

using namespace traceap;

namespace {

struct Kernel {
  const char* name;
  double dur;
  const char* blocks_per_sm;  ///< null: not recorded
  int stream = 7;
};

/// Ten times the kernels one after the other, each on its stream; launched ahead.
Finding judge_kernels(const std::vector<Kernel>& kernels, bool at_once = false) {
  TraceText text;
  int id = 0;
  double gpu = 1'000.0;
  for (int i = 0; i < 10; ++i) {
    double longest = 0.0;
    for (const Kernel& k : kernels) {
      const std::string args =
          k.blocks_per_sm == nullptr ? "" : R"("blocks per SM":)" + std::string(k.blocks_per_sm);
      ++id;
      text.launch(k.name, 2.0 * id, 1, gpu, k.dur, k.stream, id, args);
      longest = std::max(longest, k.dur);
      if (!at_once) gpu += k.dur;
    }
    if (at_once) gpu += longest;
  }
  return judge("small_grids", text);
}

constexpr const char* kGemm = "ampere_sgemm_128x64_tn";
constexpr const char* kOther = "my_scan_kernel";

}  // namespace

TEST_CASE("kernels with fewer blocks than multiprocessors leave the device empty",
          "[detect][small_grids]") {
  const Finding finding = judge_kernels({{kOther, 100, "0.25"}, {kOther, 50, "40"}});
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.cost_ns == 10 * 75'000);
  CHECK(fact(finding, "kernels") == "10");
  CHECK(fact(finding, "of the device in use") == "0.25");
  CHECK(fact(finding, "kernel") == kOther);
}

TEST_CASE("an almost empty last wave counts for products, which fill a multiprocessor",
          "[detect][small_grids]") {
  const Finding finding = judge_kernels({{kGemm, 100, "1.1"}});
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.cost_ns == 10 * 45'000);
  CHECK(judge_kernels({{kOther, 100, "1.1"}}).verdict == Verdict::kAbsent);
  CHECK(judge_kernels({{kGemm, 100, "2.1"}}).verdict == Verdict::kAbsent);  // 0.7 of three waves
}

TEST_CASE("kernels that nearly fill the device, and short ones, are well",
          "[detect][small_grids]") {
  CHECK(judge_kernels({{kGemm, 100, "0.97"}}).verdict == Verdict::kAbsent);  // persistent
  CHECK(judge_kernels({{kGemm, 100, "0.61"}}).verdict == Verdict::kAbsent);
  CHECK(judge_kernels({{kGemm, 100, "0.6"}}).verdict == Verdict::kPresent);
  CHECK(judge_kernels({{kOther, 19, "0.02"}}).verdict == Verdict::kAbsent);
  CHECK(judge_kernels({{kOther, 20, "0.02"}}).verdict == Verdict::kPresent);
}

TEST_CASE("what a small kernel leaves free another stream may use", "[detect][small_grids]") {
  CHECK(judge_kernels({{kOther, 100, "0.25", 7}, {kOther, 100, "0.25", 8}}, true).verdict ==
        Verdict::kAbsent);
  CHECK(judge_kernels({{"ncclDevKernel_AllReduce_Sum_f32_RING_LL", 100, "0.2"}}).verdict ==
        Verdict::kAbsent);  // few blocks on purpose
}

TEST_CASE("without the size of grids nothing is known", "[detect][small_grids]") {
  CHECK(judge_kernels({{kOther, 100, nullptr}}).missing_signals ==
        std::vector<std::string>{"blocks per multiprocessor of the kernels"});
  CHECK(judge_kernels({{kOther, 10, nullptr}}).verdict == Verdict::kAbsent);  // short anyway
}

TEST_CASE("small grids are told whatever else is not", "[detect][small_grids]") {
  CHECK(judge_kernels({{kOther, 100, "0.25"}, {kOther, 50, nullptr}}).verdict == Verdict::kPresent);
  // A memset has no grid.
  TraceText text;
  for (int i = 0; i < 10; ++i) {
    text.launch(kOther, 2.0 * i, 1, 1'000 + 200.0 * i, 100, 7, 1 + i, R"("blocks per SM":4)");
    text.gpu("gpu_memset", "Memset (Device)", 1'100 + 200.0 * i, 100, 7, 100 + i);
  }
  CHECK(judge("small_grids", text).verdict == Verdict::kAbsent);
}
