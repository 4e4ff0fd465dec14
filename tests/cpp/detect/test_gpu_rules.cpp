// Rules on what runs on the GPU: each with its pattern and its look-alikes.

#include "catch.hpp"
#include "scene.hpp"

using namespace traceap;

namespace {

/// `count` kernels of `dur` us, launched every `interval` us, each right behind its launch.
Scene launch_bound(int count, double dur, double interval, const std::string& api = "") {
  Scene scene;
  for (int i = 0; i < count; ++i) {
    const double t = 100 + i * interval;
    scene.op("aten::add", t, interval - 2);
    if (api.empty()) {
      scene.kernel("elementwise", t + 1, t + 8, dur);
    } else {
      scene.text().host("cuda_runtime", api, t + 1, 5,
                        R"("correlation":)" + std::to_string(1000 + i));
      scene.text().gpu("kernel", "elementwise", t + 8, dur, 7, 1000 + i);
    }
  }
  return scene;
}

}  // namespace

TEST_CASE("short kernels, each waiting for its launch, are launch bound", "[detect]") {
  const Finding finding = launch_bound(50, 3, 12).judge("tiny_kernels");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.cost_ns == 49 * 9'000);
  CHECK(fact(finding, "kernels") == "49");
  CHECK(fact(finding, "median kernel") == "3000");
  CHECK(fact(finding, "launch interval") == "12000");
}

TEST_CASE("short kernels that are not launch bound", "[detect]") {
  SECTION("they run back to back from a full queue") {
    Scene scene;
    for (int i = 0; i < 50; ++i) scene.kernel("elementwise", i * 4.0, 500 + i * 4.0, 3, 3);
    CHECK(scene.judge("tiny_kernels").verdict == Verdict::kAbsent);
  }
  SECTION("a graph replays them") {
    CHECK(launch_bound(50, 3, 12, "cudaGraphLaunch").judge("tiny_kernels").verdict ==
          Verdict::kAbsent);
  }
  SECTION("kernels are long enough: the host is slow, that is cpu_bound") {
    CHECK(launch_bound(50, 30, 45).judge("tiny_kernels").verdict == Verdict::kAbsent);
  }
  SECTION("a handful of them") {
    CHECK(launch_bound(6, 3, 12).judge("tiny_kernels").verdict == Verdict::kAbsent);
  }
}

TEST_CASE("tiny kernels: below 10 us, gaps up to 50 us, ten in a row", "[detect]") {
  const auto verdict = [](int count, double dur, double interval) {
    return launch_bound(count, dur, interval).judge("tiny_kernels").verdict;
  };
  CHECK(verdict(50, 9.9, 20) == Verdict::kPresent);
  CHECK(verdict(50, 10, 20) == Verdict::kAbsent);
  CHECK(verdict(50, 3, 53) == Verdict::kPresent);
  CHECK(verdict(50, 3, 53.1) == Verdict::kAbsent);
  CHECK(verdict(11, 3, 12) == Verdict::kPresent);  // the first has no gap before it
  CHECK(verdict(10, 3, 12) == Verdict::kAbsent);
}

TEST_CASE("GPU events without launches leave tiny_kernels unknown", "[detect]") {
  Scene scene;
  for (int i = 0; i < 50; ++i) scene.text().gpu("kernel", "k", i * 12.0, 3, 7, i);
  CHECK(scene.judge("tiny_kernels").verdict == Verdict::kUnknown);
}

namespace {

/// Two steps: 4 ms of backward, then an optimiser range with `launches` kernels of 8 us.
Scene optimizer(const std::string& op, const std::string& kernel, int launches,
                const std::string& range = "Optimizer.step#AdamW.step") {
  Scene scene;
  for (int i = 0; i < 2; ++i) {
    const double t = 1000 + i * 10000.0;
    scene.step(5 + i, t, 10000);
    scene.op("autograd::engine::evaluate_function: MmBackward0", t + 1, 100);
    scene.op("aten::mm", t + 2, 50).kernel("gemm", t + 10, t + 20, 4000);
    if (!range.empty()) scene.range(range, t + 4100, launches * 12.0 + 10);
    for (int k = 0; k < launches; ++k) {
      const double at = t + 4105 + k * 12.0;
      scene.op(op, at, 10).kernel(kernel, at + 1, at + 8, 8);
    }
  }
  return scene;
}

}  // namespace

TEST_CASE("an optimiser that works parameter by parameter is unfused", "[detect]") {
  const Finding finding =
      optimizer("aten::add_", "vectorized_elementwise_kernel", 200).judge("unfused_optimizer");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(fact(finding, "launches per step") == "200");
  // 200 kernels of 8 us and the 199 gaps of 4 us between them, per step.
  CHECK(finding.cost_ns == 2 * (200 * 8'000 + 199 * 4'000));
  CHECK(finding.saving_best_ns == 2 * (200 * 4'000 + 199 * 4'000));
  CHECK(finding.saving_high_ns == finding.cost_ns);
}

TEST_CASE("fused, foreach, compiled and small optimisers are fine", "[detect]") {
  const char* multi = "multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor>";
  CHECK(optimizer("aten::_foreach_add_", multi, 200).judge("unfused_optimizer").verdict ==
        Verdict::kAbsent);
  CHECK(optimizer("aten::_fused_adamw_", multi, 60).judge("unfused_optimizer").verdict ==
        Verdict::kAbsent);
  CHECK(optimizer("triton_for_fused_0", "triton_for_fused_0", 100)
            .judge("unfused_optimizer")
            .verdict == Verdict::kAbsent);
  CHECK(optimizer("aten::add_", "vectorized_elementwise_kernel", 7)
            .judge("unfused_optimizer")
            .verdict == Verdict::kAbsent);
}

namespace {

/// Two steps of 1 ms; in a range of the optimizer inside `around` the operators of `turn` for each
/// of `parameters`, then those of `behind`.
Scene small_optimizer(int parameters, const std::vector<std::string>& turn,
                      const std::vector<std::string>& behind = {}, const std::string& around = "",
                      const std::string& range = "Optimizer.step#SGD.step") {
  Scene scene;
  std::vector<std::string> names;
  for (int i = 0; i < parameters; ++i) names.insert(names.end(), turn.begin(), turn.end());
  names.insert(names.end(), behind.begin(), behind.end());
  for (int i = 0; i < 2; ++i) {
    const double t = 1000 + i * 1000.0;
    scene.step(5 + i, t, 1000);
    scene.op("autograd::engine::evaluate_function: MmBackward0", t + 5, 30);
    scene.kernel("gemm", t + 10, t + 20, 300);
    const double from = t + 310, each = 20;
    if (!around.empty()) scene.op(around, from - 5, each * static_cast<double>(names.size()) + 10);
    if (!range.empty()) scene.range(range, from - 2, each * static_cast<double>(names.size()) + 4);
    for (std::size_t k = 0; k < names.size(); ++k) {
      const double at = from + each * static_cast<double>(k);
      const bool several = names[k].find("_foreach_") != std::string::npos;
      scene.op(names[k], at, 15);
      scene.kernel(several ? "multi_tensor_apply_kernel<Add>" : "elementwise_kernel", at + 5,
                   at + 12, 6);
    }
  }
  return scene;
}

}  // namespace

TEST_CASE("an optimizer of few launches is told by its turns", "[detect]") {
  const std::vector<std::string> momentum{"aten::mul_", "aten::add_"};
  const auto verdict = [](const Scene& scene) { return scene.judge("unfused_optimizer").verdict; };
  const Finding finding = small_optimizer(5, momentum).judge("unfused_optimizer");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(fact(finding, "launches per step") == "10");
  CHECK(verdict(small_optimizer(3, momentum)) == Verdict::kAbsent);  // too few parameters
  // No turns: each operator once, or something behind.
  CHECK(verdict(small_optimizer(1, {"aten::mul_", "aten::add_", "aten::sub_", "aten::div_",
                                    "aten::sqrt_", "aten::neg_", "aten::exp_", "aten::abs_"})) ==
        Verdict::kAbsent);
  // What a foreach step leaves over.
  CHECK(verdict(small_optimizer(10, {"aten::add_"}, {"aten::_foreach_add_"})) == Verdict::kAbsent);
  // Inside of the backward pass each parameter is updated as its gradient comes.
  CHECK(verdict(small_optimizer(5, momentum, {},
                                "autograd::engine::evaluate_function: AccumulateGrad")) ==
        Verdict::kAbsent);
}

TEST_CASE("a loop over parameters without a range is told by its turns", "[detect]") {
  const std::vector<std::string> adam{"aten::mul_", "aten::lerp", "aten::addcmul_",
                                      "aten::addcdiv_"};
  const Finding finding = small_optimizer(5, adam, {}, "", "").judge("unfused_optimizer");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(fact(finding, "operators per step") == "20");
  CHECK(small_optimizer(3, adam, {}, "", "").judge("unfused_optimizer").verdict ==
        Verdict::kUnknown);
}

TEST_CASE("an optimizer is unfused from 8 single launches, or half of all, upwards", "[detect]") {
  const auto verdict = [](Scene scene) { return scene.judge("unfused_optimizer").verdict; };
  const auto cost_ns = [](int launches) {
    return optimizer("aten::add_", "elementwise_kernel", launches)
        .judge("unfused_optimizer")
        .cost_ns;
  };
  CHECK(cost_ns(8) > 0);
  CHECK(cost_ns(7) == 0);
  const auto with_reductions = [](int reductions) {
    Scene scene = optimizer("aten::add_", "elementwise_kernel", 60);
    for (int i = 0; i < 2; ++i) {
      for (int k = 0; k < reductions; ++k) {  // a second and third launch of the operators
        const double at = 1000 + i * 10000.0 + 4105 + (k % 60) * 12.0 + k / 60;
        scene.kernel("reduce_kernel", at + 7, at + 16, 1, 0.5);
      }
    }
    return scene;
  };
  CHECK(verdict(with_reductions(60)) == Verdict::kPresent);
  CHECK(verdict(with_reductions(61)) == Verdict::kAbsent);
}

TEST_CASE("training without optimizer ranges or a loop leaves the optimizer unknown", "[detect]") {
  CHECK(optimizer("aten::layer_norm", "elementwise", 200, "").judge("unfused_optimizer").verdict ==
        Verdict::kUnknown);
  CHECK(launch_bound(50, 3, 12).judge("unfused_optimizer").verdict == Verdict::kAbsent);
}

TEST_CASE("zero_grad that launches fills is found", "[detect]") {
  const Finding finding =
      optimizer("aten::zero_", "FillFunctor", 100, "Optimizer.zero_grad#SGD.zero_grad")
          .judge("zero_grad_not_none");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(fact(finding, "launches per step") == "100");
}

TEST_CASE("zero_grad that drops gradients is fine", "[detect]") {
  Scene scene = optimizer("aten::add_", "elementwise", 100, "Optimizer.step#SGD.step");
  for (int i = 0; i < 2; ++i) {
    scene.range("Optimizer.zero_grad#SGD.zero_grad", 9900 + i * 10000.0, 20);
  }
  CHECK(scene.judge("zero_grad_not_none").verdict == Verdict::kAbsent);
  // Fills elsewhere are the program's own.
  CHECK(optimizer("aten::zero_", "FillFunctor", 100, "my_buffers")
            .judge("zero_grad_not_none")
            .verdict == Verdict::kUnknown);
  CHECK(launch_bound(50, 3, 12).judge("zero_grad_not_none").verdict == Verdict::kAbsent);
}

namespace {

Scene product(const std::string& kernel, const std::string& args = "",
              const std::string& op = "aten::mm") {
  Scene scene;
  scene.op(op, 0, 20, args).kernel(kernel, 5, 10, 500);
  scene.op("aten::add", 30, 20).kernel("elementwise", 35, 511, 400);
  return scene;
}

}  // namespace

TEST_CASE("sgemm on a GPU with tensor cores is plain fp32", "[detect]") {
  const Finding a100 =
      product("ampere_sgemm_128x64_tn").units("NVIDIA A100-SXM4-40GB", 16, 8).judge("fp32_matmul");
  CHECK(a100.verdict == Verdict::kPresent);
  CHECK(a100.cost_ns == 500'000);
  CHECK(a100.saving_high_ns == 500'000 * 15 / 16);  // bf16 over fp32: 312 / 19.5 TFLOPS
  CHECK(fact(a100, "precision") == "TF32");
  CHECK(fact(a100, "ratio") == "8");
  const Finding v100 = product("volta_scudnn_128x64_relu_medium_nn_v1")
                           .units("Tesla V100-SXM2-32GB", 8, 0)
                           .judge("fp32_matmul");
  CHECK(v100.verdict == Verdict::kPresent);
  CHECK(fact(v100, "precision") == "half precision");  // Volta has no TF32
}

TEST_CASE("fp32 products on AMD are judged by Tensile's type letters", "[detect]") {
  const auto judge = [](const std::string& kernel) {
    return product(kernel).units("AMD Instinct MI300X", 8, 0).judge("fp32_matmul").verdict;
  };
  CHECK(judge("Cijk_Alik_Bljk_SB_MT64x64x16") == Verdict::kPresent);
  CHECK(judge("Cijk_Ailk_Bljk_S_B_Bias_HA_S_SAV_UserArgs_MT16") == Verdict::kPresent);
  CHECK(judge("Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs") == Verdict::kAbsent);
  CHECK(judge("Cijk_Alik_Bljk_S_MX_B_Bias_UserArgs") == Verdict::kAbsent);
}

TEST_CASE("products that use the matrix units, or cannot, are fine", "[detect]") {
  const auto judge = [](const std::string& kernel, const std::string& device, double half_ratio,
                        double tf32_ratio) {
    return product(kernel).units(device, half_ratio, tf32_ratio).judge("fp32_matmul").verdict;
  };
  CHECK(judge("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn", "A100", 16, 8) ==
        Verdict::kAbsent);
  CHECK(judge("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc", "A100", 16, 8) ==
        Verdict::kAbsent);
  CHECK(judge("cutlass_80_tensorop_s1688gemm_128x128_16x4_tn_align4", "A100", 16, 8) ==
        Verdict::kAbsent);
  CHECK(judge("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", "H100", 14.8, 7.4) == Verdict::kAbsent);
  CHECK(judge("maxwell_sgemm_128x64_tn", "Quadro GP100", 0, 0) == Verdict::kAbsent);
  CHECK(judge("void gemv2T_kernel_val<int, int, float, float>", "A100", 16, 8) == Verdict::kAbsent);
}

TEST_CASE("without device properties the kernels' names must tell", "[detect]") {
  const Finding by_name = product("ampere_sgemm_128x64_tn").judge("fp32_matmul");
  CHECK(by_name.verdict == Verdict::kPresent);
  CHECK(by_name.missing_signals.size() == 1);
  CHECK(product("sgemm_32x32x32_NN").judge("fp32_matmul").verdict == Verdict::kUnknown);
}

TEST_CASE("half-precision products with odd rows are misaligned", "[detect]") {
  const std::string kernel = "ampere_bf16_s16816gemm_bf16_128x128_ldg2_f2f_stages_64x3_tn";
  const Finding finding = product(kernel, two_inputs("[512,768]", "[768,50257]", "c10::BFloat16"))
                              .judge("misaligned_dimensions");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(fact(finding, "example") == "512x768 by 768x50257");
  CHECK(finding.saving_high_ns == 250'000);
  const Finding conv = product("some_conv",
                               R"("Input Dims":[[8,67,32,32],[130,67,3,3]],)"
                               R"("Input type":["c10::Half","c10::Half"])",
                               "aten::cudnn_convolution")
                           .judge("misaligned_dimensions");
  CHECK(conv.verdict == Verdict::kPresent);
}

TEST_CASE("products that fit, need not fit or cannot be padded", "[detect]") {
  const std::string kernel = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn";
  const auto judge = [&](const std::string& a, const std::string& b, const std::string& type) {
    return product(kernel, two_inputs(a, b, type)).judge("misaligned_dimensions").verdict;
  };
  CHECK(judge("[512,768]", "[768,50304]", "c10::BFloat16") == Verdict::kAbsent);
  CHECK(judge("[513,768]", "[768,50304]", "c10::BFloat16") == Verdict::kAbsent);  // odd batch
  CHECK(judge("[1,768]", "[768,50257]", "c10::BFloat16") == Verdict::kAbsent);    // a vector
  CHECK(judge("[512,768]", "[768,50257]", "float") == Verdict::kAbsent);
  // The gradient of a weight: rows of the transposed operand are 768 apart.
  const std::string strides = R"(,"Input Strides":[[1,768],[1024,1]])";
  CHECK(product(kernel, two_inputs("[768,513]", "[513,1024]", "c10::BFloat16") + strides)
            .judge("misaligned_dimensions")
            .verdict == Verdict::kAbsent);
}

TEST_CASE("rows of half precision fit in eights, from 16 upwards", "[detect]") {
  const auto judge = [&](const std::string& a, const std::string& b) {
    return product("gemm", two_inputs(a, b, "c10::Half")).judge("misaligned_dimensions").verdict;
  };
  CHECK(judge("[512,768]", "[768,50264]") == Verdict::kAbsent);   // 8 * 6283
  CHECK(judge("[512,768]", "[768,50260]") == Verdict::kPresent);  // 4 * 12565
  CHECK(judge("[16,768]", "[768,50257]") == Verdict::kPresent);
  CHECK(judge("[15,768]", "[768,50257]") == Verdict::kAbsent);
}

TEST_CASE("without shapes misalignment is unknown unless a kernel's name shows it", "[detect]") {
  CHECK(product("ampere_bf16_s16816gemm_bf16_128x128_ldg8_tn")
            .judge("misaligned_dimensions")
            .verdict == Verdict::kUnknown);
  CHECK(product("void cutlass::Kernel<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_tn_align2>")
            .judge("misaligned_dimensions")
            .verdict == Verdict::kPresent);
  CHECK(product("void cutlass::Kernel<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_tn_align16>")
            .judge("misaligned_dimensions")
            .verdict == Verdict::kUnknown);
  CHECK(product("ampere_fp16_sgemm_fp16_128x64_tn").judge("misaligned_dimensions").verdict ==
        Verdict::kPresent);
}

TEST_CASE("kernels without matrix units have reasons besides alignment", "[detect]") {
  const auto judge = [](const std::string& kernel, double half_ratio) {
    return product(kernel).units("some GPU", half_ratio, 0).judge("misaligned_dimensions").verdict;
  };
  CHECK(judge("ampere_fp16_sgemm_fp16_128x64_tn", 16) == Verdict::kPresent);
  CHECK(judge("ampere_fp16_sgemm_fp16_128x64_tn", 0) == Verdict::kAbsent);  // none to use
  // A dimension of a few elements, few channels, groups.
  CHECK(judge("void gemmSN_TN_kernel<float, 128, 16, 2, __nv_bfloat16 const>", 16) !=
        Verdict::kPresent);
  CHECK(judge("void precomputed_convolve_sgemm<__nv_bfloat16, 512, 6, 7>", 16) !=
        Verdict::kPresent);
  CHECK(judge("void cudnn::cnn::wgrad2d_grouped_direct_kernel<__half, float, int>", 16) !=
        Verdict::kPresent);
}

TEST_CASE("what names of kernels tell of alignment is less sure, and gives way to shapes",
          "[detect]") {
  const std::string narrow = "void cutlass::Kernel<cutlass_80_wmma_tensorop_bf16_gemm_bf16_align2>";
  const Finding by_name = product(narrow).judge("misaligned_dimensions");
  CHECK(by_name.confidence == 0.6);
  CHECK(by_name.missing_signals ==
        std::vector<std::string>{"input shapes: judged by kernel names"});
  CHECK(product(narrow, two_inputs("[512,768]", "[768,50304]", "c10::BFloat16"))
            .judge("misaligned_dimensions")
            .verdict == Verdict::kAbsent);
}

TEST_CASE("products whose shapes are not recorded are open where they matter", "[detect]") {
  const auto judge = [](double dur, const char* kernel) {
    Scene scene;
    scene.op("aten::mm", 0, 50).kernel("ampere_bf16_s16816gemm_bf16_ldg8_tn", 10, 20, dur);
    scene.op("aten::mm", 60, 50).kernel(kernel, 70, 20 + dur, 10);
    scene.op("aten::add", 120, 20).kernel("elementwise_kernel", 125, 40 + dur, 10'000 - dur);
    return scene.judge("misaligned_dimensions").verdict;
  };
  const char* narrow = "void cutlass::Kernel<cutlass_80_wmma_tensorop_bf16_gemm_bf16_align2>";
  CHECK(judge(1'000, "gemv") == Verdict::kUnknown);
  CHECK(judge(1'000, narrow) == Verdict::kUnknown);  // 10 us of them are seen
  CHECK(judge(100, narrow) == Verdict::kAbsent);
}

TEST_CASE("shapes that are no product's, and operands that may be transposed", "[detect]") {
  const auto judge = [](const std::string& args, const std::string& op, bool backward) {
    Scene scene;
    if (backward) {
      scene.op("autograd::engine::evaluate_function: MmBackward0", 0, 100);
      scene.op("MmBackward0", 1, 98);
    }
    scene.op(op, 5, 50, args).kernel("gemm", 10, 20, 1'000);
    scene.text().gpu("gpu_memset", "Memset (Device)", 1'020, 500, 7, 3);
    return scene.judge("misaligned_dimensions");
  };
  const std::string half = R"("Input type":["c10::Half","c10::Half"])";
  const auto dims = [&](const char* lists) {
    return R"("Input Dims":)" + std::string(lists) + "," + half;
  };
  CHECK(judge(dims("[[513],[513]]"), "aten::mm", false).verdict == Verdict::kAbsent);
  CHECK(judge(dims("[[768,513],[513,1024]]"), "aten::mm", false).verdict == Verdict::kPresent);
  CHECK(judge(dims("[[768,513],[513,1024]]"), "aten::mm", true).verdict == Verdict::kAbsent);
  const char* conv = "aten::cudnn_convolution";
  CHECK(judge(dims("[[8,68,9,9],[130,68,3,3]]"), conv, false).verdict == Verdict::kPresent);
  CHECK(judge(dims("[[8,68,9,9],[130,17,3,3]]"), conv, false).verdict == Verdict::kAbsent);
  CHECK(judge(dims("[[8,3,9,9],[130,3,3,3]]"), conv, false).verdict == Verdict::kAbsent);
}

TEST_CASE("an operator's memset is no product", "[detect]") {
  TraceText text;
  text.host("cpu_op", "aten::mm", 0, 50, two_inputs("[512,768]", "[768,50257]", "c10::Half"));
  text.host("cuda_runtime", "cudaMemsetAsync", 5, 5, R"("correlation":1)");
  text.gpu("gpu_memset", "Memset (Device)", 20, 500, 7, 1);
  CHECK(judge("misaligned_dimensions", text).verdict == Verdict::kAbsent);
}

TEST_CASE("layout kernels are found by name, fused layouts are not", "[detect]") {
  const auto judge = [](const std::string& kernel) {
    return product(kernel).judge("layout_conversion").verdict;
  };
  CHECK(judge("void nchwToNhwcKernel<float, float, float, true, false>") == Verdict::kPresent);
  CHECK(judge("void cudnn::ops::nhwcToNchwKernel<__half>") == Verdict::kPresent);
  CHECK(judge("batched_transpose_32x32_half") == Verdict::kPresent);
  CHECK(judge("sm80_xmma_fprop_implicit_gemm_tf32f32_nhwckrsc_nchw") == Verdict::kAbsent);
  CHECK(judge("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1") == Verdict::kAbsent);
}

namespace {

Scene cast(const std::string& from, const std::string& to, const std::string& kernel) {
  Scene scene;
  scene.op("aten::to", 0, 30).op("aten::_to_copy", 1, 28);
  scene.op("aten::copy_", 3, 20,
           R"("Input Dims":[[64,64],[64,64],[]],"Input type":[")" + to + R"(",")" + from +
               R"(","Scalar"])");
  scene.kernel(kernel, 5, 10, 500);
  scene.op("aten::mm", 40, 20).kernel("gemm", 45, 511, 400);
  return scene;
}

}  // namespace

TEST_CASE("copies that change the number type are casts", "[detect]") {
  const char* kernel = "void at::native::unrolled_elementwise_kernel<direct_copy_kernel_cuda>";
  const Finding finding = cast("float", "c10::BFloat16", kernel).judge("cast_storm");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.cost_ns == 500'000);
  CHECK(fact(finding, "example") == "float to BFloat16");
}

TEST_CASE("copies of the same type and casts inside other kernels are no cast storm", "[detect]") {
  const char* kernel = "void at::native::elementwise_kernel<direct_copy_kernel_cuda>";
  CHECK(cast("float", "float", kernel).judge("cast_storm").verdict == Verdict::kAbsent);
  CHECK(product("triton_poi_fused__to_copy_0").judge("cast_storm").verdict == Verdict::kAbsent);
  CHECK(product("elementwise_kernel<mul, LoadWithCast<2>>").judge("cast_storm").verdict ==
        Verdict::kAbsent);
}

TEST_CASE("without types the kernel's name tells a cast", "[detect]") {
  Scene scene;
  scene.op("aten::copy_", 3, 20).kernel("bfloat16_copy_kernel_cuda", 5, 10, 500);
  const Finding finding = scene.judge("cast_storm");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.missing_signals.size() == 1);
}

namespace {

std::string softmax_input(const std::string& dims) {
  return R"("Input Dims":[)" + dims + R"(,[],[]],"Input type":["float","Scalar","Scalar"])";
}

/// product, softmax over `scores`, `between`, product.
Scene attention(const std::string& scores, const std::string& between = "aten::dropout",
                const std::string& softmax = "aten::_softmax") {
  Scene scene;
  scene.op("aten::bmm", 0, 20).kernel("gemm_qk", 5, 10, 100);
  scene.op(softmax, 30, 20, softmax_input(scores)).kernel("softmax", 35, 111, 200);
  scene.op(between, 60, 20).kernel("between", 65, 312, 50);
  scene.op("aten::bmm", 90, 20).kernel("gemm_v", 95, 363, 100);
  scene.op("aten::addmm", 120, 20).kernel("gemm_out", 125, 464, 100);
  return scene;
}

}  // namespace

TEST_CASE("product, softmax, product is unfused attention", "[detect]") {
  const Finding finding = attention("[96,512,512]").judge("attention_not_fused");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.cost_ns == 450'000);  // all four kernels, and not the projection behind them
  CHECK(fact(finding, "blocks") == "1");
  CHECK(fact(finding, "example") == "512 by 512 scores");
  CHECK(finding.saving_high_ns == 337'500);
}

TEST_CASE("the math fallback of SDPA is unfused attention", "[detect]") {
  Scene scene;
  scene.op("aten::scaled_dot_product_attention", 0, 100);
  scene.op("aten::_scaled_dot_product_attention_math", 1, 98);
  scene.op("aten::bmm", 5, 20).kernel("gemm_qk", 6, 30, 100);
  scene.op("aten::_softmax", 30, 20).kernel("softmax", 35, 131, 100);
  scene.op("aten::bmm", 60, 20).kernel("gemm_v", 65, 232, 100);
  const Finding finding = scene.judge("attention_not_fused");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.cost_ns == 300'000);
  CHECK(fact(finding, "blocks") == "1");
}

TEST_CASE("the backward of unfused attention counts too", "[detect]") {
  Scene scene = attention("[96,512,512]");
  const std::string sequence = R"("Sequence number":42,"Fwd thread id":0)";
  Scene with_backward;
  with_backward.op("aten::bmm", 0, 20).kernel("gemm_qk", 5, 10, 100);
  with_backward.op("aten::_softmax", 30, 20, softmax_input("[96,512,512]") + "," + sequence);
  with_backward.kernel("softmax", 35, 111, 200);
  with_backward.op("aten::bmm", 90, 20).kernel("gemm_v", 95, 363, 100);
  with_backward.text().complete("cpu_op", "SoftmaxBackward0", 500, 50, 1, "2",
                                R"("Sequence number":42,"Fwd thread id":1)");
  with_backward.text().complete("cuda_runtime", "cudaLaunchKernel", 510, 5, 1, "2",
                                R"("correlation":900)");
  with_backward.text().gpu("kernel", "softmax_backward", 520, 250, 7, 900);
  const Finding finding = with_backward.judge("attention_not_fused");
  CHECK(finding.cost_ns == 650'000);
}

TEST_CASE("what looks like attention and is not", "[detect]") {
  const auto verdict = [](Scene scene) { return scene.judge("attention_not_fused").verdict; };
  CHECK(verdict(attention("[96,512,512]", "aten::addmm")) == Verdict::kAbsent);  // a layer between
  CHECK(verdict(attention("[96,1,512]")) == Verdict::kAbsent);                   // decoding
  CHECK(verdict(attention("[128,10]")) == Verdict::kAbsent);                     // over classes
  CHECK(verdict(attention("[96,512,512]", "aten::dropout", "aten::_log_softmax")) ==
        Verdict::kAbsent);
}

TEST_CASE("a score matrix has 64 keys and 16 queries at least", "[detect]") {
  const auto verdict = [](const std::string& scores) {
    return attention(scores).judge("attention_not_fused").verdict;
  };
  CHECK(verdict("[96,512,64]") == Verdict::kPresent);
  CHECK(verdict("[96,512,63]") == Verdict::kAbsent);
  CHECK(verdict("[96,16,512]") == Verdict::kPresent);
  CHECK(verdict("[96,15,512]") == Verdict::kAbsent);
}

TEST_CASE("attention without shapes is found with less confidence", "[detect]") {
  Scene scene;
  scene.op("aten::bmm", 0, 20).kernel("gemm_qk", 5, 10, 100);
  scene.op("aten::_softmax", 30, 20).kernel("softmax", 35, 111, 200);
  scene.op("aten::bmm", 90, 20).kernel("gemm_v", 95, 363, 100);
  const Finding finding = scene.judge("attention_not_fused");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.confidence < 0.7);
  CHECK(finding.missing_signals.size() == 1);
}

TEST_CASE("copies within the device are counted, casts and uploads are not", "[detect]") {
  Scene scene;
  scene.op("aten::cat", 0, 20).kernel("CatArrayBatchedCopy<float, 2>", 5, 10, 100);
  scene.op("aten::contiguous", 30, 20).op("aten::clone", 31, 18).op("aten::copy_", 33, 14);
  scene.kernel("elementwise_kernel<direct_copy_kernel_cuda>", 35, 111, 100);
  scene.copy("Memcpy DtoD (Device -> Device)", 60, 5, 212, 100, 4'000'000);
  scene.op("aten::mm", 80, 20).kernel("gemm", 85, 313, 500);
  const Finding finding = scene.judge("device_to_device_copies");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.cost_ns == 300'000);
  CHECK(fact(finding, "copies") == "3");
  CHECK(fact(finding, "bytes") == "4000000");

  CHECK(cast("float", "c10::BFloat16", "elementwise_kernel<direct_copy_kernel_cuda>")
            .judge("device_to_device_copies")
            .verdict == Verdict::kAbsent);
  Scene upload;
  upload.op("aten::copy_", 0, 20).copy("Memcpy HtoD (Pinned -> Device)", 5, 5, 10, 500, 1 << 20);
  CHECK(upload.judge("device_to_device_copies").verdict == Verdict::kAbsent);
  // An optimiser's averaging writes by copy_ too: that is its work.
  Scene average;
  average.op("aten::copy_", 0, 20).kernel("elementwise_kernel<direct_copy_kernel_cuda>", 5, 10, 99);
  CHECK(average.judge("device_to_device_copies").verdict == Verdict::kAbsent);
}

namespace {

/// A step of 1 ms: the kernel in question for 500 us, another for 300, idle for 200. Of what is
/// saved of GPU work the guess therefore counts 0.8.
Scene four_fifths_busy(const std::string& kernel, const std::string& op,
                       const std::string& args = "") {
  Scene scene;
  scene.step(5, 0, 1000);
  scene.op(op, 10, 20, args).kernel(kernel, 15, 200, 500);
  return scene.op("aten::add", 40, 20).kernel("elementwise", 45, 700, 300);
}

}  // namespace

TEST_CASE("the guess at the saving of shorter GPU work, rule by rule", "[detect]") {
  SECTION("padding gives a quarter") {
    const std::string args = two_inputs("[512,768]", "[768,50257]", "c10::Half");
    const Finding finding =
        four_fifths_busy("gemm", "aten::mm", args).judge("misaligned_dimensions");
    CHECK(finding.saving_best_ns == 100'000);
  }
  SECTION("four of five conversions of the layout go") {
    const Finding finding =
        four_fifths_busy("nchwToNhwcKernel", "aten::conv2d").judge("layout_conversion");
    CHECK(finding.saving_best_ns == 320'000);
  }
  SECTION("half of the casts go") {
    const Finding finding =
        four_fifths_busy("bfloat16_copy_kernel_cuda", "aten::copy_").judge("cast_storm");
    CHECK(finding.saving_best_ns == 200'000);
  }
  SECTION("half of the copies go") {
    const Finding finding =
        four_fifths_busy("CatArrayBatchedCopy", "aten::cat").judge("device_to_device_copies");
    CHECK(finding.saving_best_ns == 200'000);
  }
  SECTION("attention takes half as long") {  // 450 of 550 us in a step of 1100
    const Finding finding = attention("[96,512,512]").step(5, 0, 1100).judge("attention_not_fused");
    CHECK(finding.saving_best_ns == 112'500);
  }
}
