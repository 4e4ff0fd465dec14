// Helpers of the extended rules, and all rules on traces that hold nothing for them.

#include "catch.hpp"
#include "scene.hpp"
#include "traceap/detect/queries/matmul.hpp"
#include "traceap/detect/queries/shapes.hpp"
#include "traceap/detect/rules.hpp"

using namespace traceap;

TEST_CASE("shapes are read from their JSON, and nonsense is no shape", "[detect]") {
  using Lists = std::vector<std::vector<std::int64_t>>;
  CHECK(parse_int_lists("[[2, 3], [], [4]]") == Lists{{2, 3}, {}, {4}});
  CHECK(parse_int_lists("[[[1,2],[3]],[5]]") == Lists{{}, {5}});  // a list of tensors
  CHECK(parse_int_lists("[[-1,9223372036854775807]]") == Lists{{-1, 9223372036854775807}});
  CHECK(parse_int_lists("[[99999999999999999999]]") == Lists{{}});
  CHECK(parse_int_lists("[[1,2") == Lists{{1, 2}});
  CHECK(parse_int_lists("\"hello\"").empty());
  CHECK(parse_int_lists("").empty());
}

TEST_CASE("256 lists are read, and 64 numbers of each", "[detect]") {
  std::string lists, numbers = "0";
  for (int i = 0; i < 300; ++i) lists += "[1],";
  for (int i = 1; i < 70; ++i) numbers += "," + std::to_string(i);
  CHECK(parse_int_lists("[" + lists + "[1]]").size() == 256);
  const auto list = parse_int_lists("[[" + numbers + "]]").at(0);
  CHECK(list.size() == 64);
  CHECK(list.back() == 63);
}

TEST_CASE("names of kernels tell which units they use", "[detect]") {
  CHECK(classify_matmul("volta_sgemm_128x64_tn") == MatmulKind::kPlainFp32);
  CHECK(classify_matmul("cudnn_infer_ampere_scudnn_128x32_relu_xregs_large_nn_v1") ==
        MatmulKind::kPlainFp32);
  CHECK(classify_matmul("void wgrad_alg0_engine<float, 128, 5, 5, 3, 3, 3, false, 512>") ==
        MatmulKind::kPlainFp32);
  CHECK(classify_matmul("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn") == MatmulKind::kMatrixUnit);
  CHECK(classify_matmul("void cutlass::Kernel<cutlass_80_simt_sgemm_128x64_8x5_nt_align1>") ==
        MatmulKind::kPlainFp32);
  CHECK(classify_matmul("vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>") ==
        MatmulKind::kNone);
  CHECK(classify_matmul("Cijk_") == MatmulKind::kNone);
  CHECK(classify_matmul("") == MatmulKind::kNone);
}

TEST_CASE("every rule answers on a trace without GPU and on one without host", "[detect]") {
  Scene host, gpu;
  host.op("aten::mm", 0, 100).op("aten::add", 200, 50);
  gpu.text().gpu("kernel", "k", 0, 10, 7, 1).gpu("kernel", "k", 50, 10, 7, 2);
  for (const Rule& rule : all_rules()) {
    INFO(rule.type);
    const Finding on_host = host.judge(rule.type), on_gpu = gpu.judge(rule.type);
    CHECK(on_host.verdict != Verdict::kPresent);
    CHECK(on_gpu.verdict != Verdict::kPresent);
    for (const Finding* finding : {&on_host, &on_gpu}) {
      if (finding->verdict == Verdict::kUnknown) CHECK_FALSE(finding->missing_signals.empty());
      CHECK(finding->saving_low_ns <= finding->saving_best_ns);
      CHECK(finding->saving_best_ns <= finding->saving_high_ns);
    }
  }
}

TEST_CASE("clocks that disagree are corrected before host and GPU are compared", "[detect]") {
  // The GPU's clock runs 21 ms late, as seen on ROCm; one fetch of 4 ms per step.
  Scene scene;
  for (int i = 0; i < 12; ++i) {
    const double t = 1000 + i * 10000.0;
    scene.step(5 + i, t, 10000);
    scene.range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", t, 4000);
    scene.op("aten::mm", t + 4010, 20).kernel("gemm", t + 4015, t + 4025 + 21000, 5900);
    scene.kernel("gemm", t + 4040, t + 9930 + 21000, 60);
  }
  const EventTable table = scene.text().table();
  const EventTree tree = build_tree(table);
  REQUIRE(tree.launch_delay_correction_ns != 0);
  const Finding finding = run_rule("worker_starvation", build_signals(table, tree));
  CHECK(finding.verdict == Verdict::kPresent);
  // On the GPU's clock the last two fetches lie behind the last step.
  CHECK(finding.cost_ns >= 10 * 3'900'000);
  CHECK(finding.cost_ns <= 12 * 4'100'000);
}
