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

TEST_CASE("without launch calls no chain is told", "[detect][unfused_pointwise]") {
  TraceText text;
  for (int i = 0; i < 40; ++i) {
    text.gpu("kernel", kPointwise, 1'000 + 20.0 * i, 20, 7, 900 + i);
    text.host("cpu_op", "aten::mul", 10.0 * i, 8);
  }
  CHECK(judge("unfused_pointwise", text).missing_signals ==
        std::vector<std::string>{"launch calls of GPU events"});
}

namespace {

/// 20 groups of four kernels of 20 us, queued ahead; `what` adds the i-th of a group.
template <class Add>
Finding groups_of_four(Add&& add) {
  TraceText text;
  for (int group = 0; group < 20; ++group) {
    for (int i = 0; i < 4; ++i) {
      const int n = 4 * group + i;
      add(text, n, i, 10.0 * n, 2'000 + 100.0 * group + 20 * i);
    }
    text.host("cpu_op", "aten::mm", 10.0 * (4 * group + 3) + 7, 2);
    text.launch("gemm", 10.0 * (4 * group + 3) + 8, 1, 2'080 + 100.0 * group, 20, 7, 5'000 + group);
  }
  return judge("unfused_pointwise", text);
}

void add_pointwise(TraceText& text, int n, double host, double gpu) {
  text.host("cpu_op", "aten::mul", host, 5).launch(kPointwise, host + 1, 2, gpu, 20, 7, 1 + n);
}

}  // namespace

TEST_CASE("a chain is one thread's, in one phase", "[detect][unfused_pointwise]") {
  const auto same = [](TraceText& text, int n, int, double host, double gpu) {
    add_pointwise(text, n, host, gpu);
  };
  CHECK(groups_of_four(same).verdict == Verdict::kPresent);
  const auto two_threads = [](TraceText& text, int n, int i, double host, double gpu) {
    const std::string id = R"("correlation":)" + std::to_string(1 + n);
    text.complete("cpu_op", "aten::mul", host, 5, 1, i % 2 == 0 ? "1" : "2");
    text.complete("cuda_runtime", "cudaLaunchKernel", host + 1, 2, 1, i % 2 == 0 ? "1" : "2", id);
    text.gpu("kernel", kPointwise, gpu, 20, 7, 1 + n);
  };
  CHECK(groups_of_four(two_threads).verdict == Verdict::kAbsent);
  const auto half_backward = [](TraceText& text, int n, int i, double host, double gpu) {
    if (i == 2) {
      text.host("cpu_op", "autograd::engine::evaluate_function: MulBackward0", host - 1, 16.5);
    }
    add_pointwise(text, n, host, gpu);
  };
  CHECK(groups_of_four(half_backward).verdict == Verdict::kAbsent);
}

TEST_CASE("a graph's kernels, orphans and memsets make no chain", "[detect][unfused_pointwise]") {
  const auto graph = [](TraceText& text, int n, int i, double host, double gpu) {
    const int id = 1 + n - i;
    if (i == 0) {
      text.host("cpu_op", "aten::mul", host, 5);
      text.host("cuda_runtime", "cudaGraphLaunch", host + 1, 2,
                R"("correlation":)" + std::to_string(id));
    }
    text.gpu("kernel", kPointwise, gpu, 20, 7, id);
  };
  CHECK(groups_of_four(graph).verdict == Verdict::kAbsent);
  const auto orphan = [](TraceText& text, int n, int i, double host, double gpu) {
    if (i == 2) {
      text.gpu("kernel", kPointwise, gpu, 20, 7, 8'000 + n);
    } else {
      add_pointwise(text, n, host, gpu);
    }
  };
  CHECK(groups_of_four(orphan).verdict == Verdict::kAbsent);
  const auto memset = [](TraceText& text, int n, int i, double host, double gpu) {
    if (i != 2) return add_pointwise(text, n, host, gpu);
    text.host("cuda_runtime", "cudaLaunchKernel", host + 1, 2,
              R"("correlation":)" + std::to_string(1 + n));
    text.gpu("gpu_memset", kPointwise, gpu, 20, 7, 1 + n);
  };
  CHECK(groups_of_four(memset).verdict == Verdict::kAbsent);
}
