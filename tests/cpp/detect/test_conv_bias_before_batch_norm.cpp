#include "scene.hpp"

using namespace traceap;

namespace {

/// Five blocks of a convolution with or without a bias, `next` behind it, and the backward pass of
/// the convolution. Kernels of 100 us for products, 20 us for the bias and its gradient.
Scene blocks(bool bias, const std::string& next, bool backward = true,
             const std::string& layer = "aten::conv2d") {
  Scene scene;
  for (int i = 0; i < 5; ++i) {
    const double t = 2'000.0 * i;
    const std::string seq = R"("Fwd thread id":0,"Sequence number":)" + std::to_string(i + 1);
    scene.op(layer, t, 100, seq).op("aten::_convolution", t + 5, 90);
    scene.op("aten::cudnn_convolution", t + 10, 30).kernel("cudnn_gemm", t + 15, t + 50, 100);
    if (bias) scene.op("aten::add_", t + 45, 30).kernel("elementwise_kernel", t + 50, t + 150, 20);
    scene.op(next, t + 110, 30).kernel("cudnn::bn_fw", t + 115, t + 170, 50);
    if (!backward) continue;
    const std::string back = R"("Fwd thread id":1,"Sequence number":)" + std::to_string(i + 1);
    scene.op("autograd::engine::evaluate_function: ConvolutionBackward0", t + 500, 200, back);
    scene.op("ConvolutionBackward0", t + 505, 190, back);
    scene.op("aten::convolution_backward", t + 510, 180);
    scene.kernel("cudnn_dgrad", t + 515, t + 550, 100);
    if (bias) scene.kernel("void at::native::reduce_kernel<512, 1>", t + 540, t + 650, 20);
  }
  return scene;
}

}  // namespace

TEST_CASE("a bias in front of a batch norm costs its addition and its gradient",
          "[detect][conv_bias_before_batch_norm]") {
  const Finding finding = blocks(true, "aten::batch_norm").judge("conv_bias_before_batch_norm");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.cost_ns == 5 * 40'000);
  CHECK(fact(finding, "convolutions") == "5");
}

TEST_CASE("no bias, another layer behind it, or inference",
          "[detect][conv_bias_before_batch_norm]") {
  const auto quiet = [](const Scene& scene) {
    const Finding finding = scene.judge("conv_bias_before_batch_norm");
    return finding.verdict == Verdict::kAbsent && finding.evidence_count == 0;
  };
  CHECK(quiet(blocks(false, "aten::batch_norm")));
  CHECK(quiet(blocks(true, "aten::relu")));
  CHECK(quiet(blocks(true, "aten::batch_norm", false)));
  CHECK(quiet(blocks(true, "aten::batch_norm", true, "aten::linear")));
}

TEST_CASE("a bias that the product adds costs nothing here",
          "[detect][conv_bias_before_batch_norm]") {
  Scene scene = blocks(false, "aten::batch_norm");
  for (int i = 0; i < 5; ++i) scene.op("aten::add_", 2'000.0 * i + 45, 30);  // launches nothing
  const Finding finding = scene.judge("conv_bias_before_batch_norm");
  CHECK(finding.verdict == Verdict::kAbsent);
  CHECK(finding.evidence_count == 0);
}

TEST_CASE("other sums and orphans are not the bias' gradient",
          "[detect][conv_bias_before_batch_norm]") {
  Scene scene = blocks(true, "aten::batch_norm");
  const char* sum = "void at::native::reduce_kernel<512, 1>";
  for (int i = 0; i < 5; ++i) {
    scene.op("aten::sum", 2'000.0 * i + 900, 30)
        .kernel(sum, 2'000.0 * i + 905, 2'000.0 * i + 920, 90);
  }
  scene.text().gpu("kernel", sum, 9'500, 90, 7, 9'000);
  CHECK(scene.judge("conv_bias_before_batch_norm").cost_ns == 5 * 40'000);
}

TEST_CASE("without launch calls a bias is seen, and not what it costs",
          "[detect][conv_bias_before_batch_norm]") {
  TraceText text;
  text.host("cpu_op", "aten::conv2d", 0, 100).host("cpu_op", "aten::add_", 45, 30);
  text.host("cpu_op", "aten::batch_norm", 110, 30);
  text.host("cpu_op", "autograd::engine::evaluate_function: ConvolutionBackward0", 500, 200);
  text.gpu("kernel", "gemm", 60, 500, 7, 900);
  CHECK(judge("conv_bias_before_batch_norm", text).missing_signals ==
        std::vector<std::string>{"launch calls of GPU events"});
}
