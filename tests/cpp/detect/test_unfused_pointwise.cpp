#include "scene.hpp"

using namespace traceap;

namespace {

constexpr const char* kPointwise = "void at::native::vectorized_elementwise_kernel<4, MulFunctor>";
constexpr const char* kReduction = "void at::native::reduce_kernel<512, 1, MeanOps>";

/// 20 blocks of a product of 100 us and a formula of kernels of `each` us, launched far ahead of
/// the GPU or just in time, every block inside `around`.
Scene formula(const std::vector<const char*>& kernels, double each, bool queued = true,
              const std::string& around = "") {
  Scene scene;
  double gpu = 1'000.0;
  for (int block = 0; block < 20; ++block) {
    double host = queued ? 20.0 * block : gpu - 10.0;
    const double block_start = host;
    scene.op("aten::mm", host, 2).kernel("ampere_gemm", host, gpu, 100, 1);
    gpu += 100;
    for (const char* kernel : kernels) {
      host = queued ? host + 2.0 : gpu + 5.0;
      gpu = queued ? gpu : host + 5.0;
      scene.op("aten::mul", host, 2).kernel(kernel, host, gpu, each, 1);
      gpu += each;
    }
    if (!around.empty()) scene.range(around, block_start - 0.5, host + 3 - block_start);
  }
  return scene;
}

}  // namespace

TEST_CASE("a formula written out costs all of its kernels but the longest",
          "[detect][unfused_pointwise]") {
  const Scene scene = formula({kPointwise, kReduction, kPointwise, kPointwise}, 20);
  const Finding finding = scene.judge("unfused_pointwise");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.cost_ns == 20 * 3 * 20'000);
  CHECK(fact(finding, "kernels") == "80");
  CHECK(fact(finding, "chains") == "20");
  CHECK(fact(finding, "operations") == "aten::mul");
}

TEST_CASE("three kernels in a row are how a layer ends", "[detect][unfused_pointwise]") {
  CHECK(formula({kPointwise, kPointwise, kPointwise}, 20).judge("unfused_pointwise").verdict ==
        Verdict::kAbsent);
  // A layer's own normalisation and a copy are fused with a formula, and make none.
  const char* norm = "void at::native::vectorized_layer_norm_kernel<float>";
  const char* copy = "void at::native::unrolled_elementwise_kernel<direct_copy_kernel_cuda>";
  CHECK(formula({norm, kPointwise, kPointwise, copy, kPointwise}, 20)
            .judge("unfused_pointwise")
            .verdict == Verdict::kAbsent);
  const Finding finding = formula({norm, kPointwise, kPointwise, copy, kPointwise, kPointwise}, 20)
                              .judge("unfused_pointwise");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.cost_ns == 20 * 4 * 20'000);  // the copy is another type's
}

TEST_CASE("kernels that the GPU waits for are the host's", "[detect][unfused_pointwise]") {
  CHECK(formula({kPointwise, kPointwise, kPointwise, kPointwise, kPointwise}, 20, false)
            .judge("unfused_pointwise")
            .verdict == Verdict::kAbsent);
}

TEST_CASE("compiled code and gradients that are added up are no formula",
          "[detect][unfused_pointwise]") {
  for (const char* around : {"Torch-Compiled Region: 0/0", "torch::autograd::AccumulateGrad"}) {
    INFO(around);
    CHECK(formula({kPointwise, kPointwise, kPointwise, kPointwise}, 20, true, around)
              .judge("unfused_pointwise")
              .verdict == Verdict::kAbsent);
  }
  CHECK(formula({kPointwise, kPointwise, kPointwise, kPointwise}, 20, true, "my range")
            .judge("unfused_pointwise")
            .verdict == Verdict::kPresent);
}

TEST_CASE("an optimiser's kernels are its own", "[detect][unfused_pointwise]") {
  CHECK(formula({kPointwise, kPointwise, kPointwise, kPointwise}, 20, true,
                "Optimizer.step#Adam.step")
            .judge("unfused_pointwise")
            .verdict == Verdict::kAbsent);
}

TEST_CASE("a formula beside the work of another stream costs nothing",
          "[detect][unfused_pointwise]") {
  Scene scene = formula({kPointwise, kPointwise, kPointwise, kPointwise}, 20);
  scene.text().launch("gemm", 0.5, 0.1, 900, 10'000, 8, 9'000);
  CHECK(scene.judge("unfused_pointwise").verdict == Verdict::kAbsent);
}

TEST_CASE("without operators the names of kernels prove no formula",
          "[detect][unfused_pointwise]") {
  TraceText text;
  for (int i = 0; i < 40; ++i) {
    text.launch(kPointwise, 2.0 * i, 1, 1'000 + 20.0 * i, 20, 7, 1 + i);
  }
  CHECK(judge("unfused_pointwise", text).missing_signals ==
        std::vector<std::string>{"host operators"});
}
