// Rules about exchanges of tokens between the ranks of experts; times in microseconds.

#include "judged.hpp"

using namespace traceap;

namespace {

constexpr const char* kDispatch = "void deep_ep::internode_ll::dispatch<true, 7168>(void*, int*)";
constexpr const char* kCombine = "void deep_ep::internode_ll::combine<7168, 9, 4>(void*, int*)";

/// Replays of one graph: in each a dispatch, a product of experts and a combine for each layer.
struct Replays {
  std::string annotation = "execute_context_0(0)_generation_64(64)";
  int replays = 4, layers = 3;
  double product_us = 30;
  bool is_overlapped = false;  ///< another product runs all the while on a stream of its own
  /// How long a combine waits, by replay and layer.
  double (*wait_us)(int replay, int layer) = [](int, int) { return 0.0; };

  TraceText text() const {
    TraceText text;
    double at = 1'000;
    for (int replay = 0; replay < replays; ++replay) {
      const int id = 10 + replay;
      text.host("user_annotation", annotation, at - 5, 40);
      text.host("cuda_runtime", "cudaGraphLaunch", at, 10,
                R"("correlation":)" + std::to_string(id));
      at += 20;
      const double begin = at;
      const auto run = [&](const char* name, double length) {
        text.gpu("kernel", name, at, length, 7, id);
        at += length;
      };
      for (int layer = 0; layer < layers; ++layer) {
        run(kDispatch, 12);
        run("m_grouped_gemm", product_us);
        run(kCombine, 16 + wait_us(replay, layer));
      }
      if (is_overlapped) text.gpu("kernel", "nvjet_gemm", begin, at - begin, 8, id);
      at += 100;
    }
    return text;
  }
  Finding judge(std::string_view type) const { return ::judge(type, text()); }
};

double uneven(int replay, int layer) { return layer == 1 && replay > 0 ? 40.0 : 0.0; }

}  // namespace

TEST_CASE("exchanges that nothing covers are exposed", "[detect][exchange_exposed]") {
  Replays replays;
  const Finding finding = replays.judge("exchange_exposed");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.cost_ns == 4 * 3 * 28'000);
  CHECK(fact(finding, "exchanges") == "24");
  CHECK(fact(finding, "under compute") == "0");
  SECTION("less what they wait, which is no transfer") {
    replays.wait_us = uneven;
    CHECK(replays.judge("exchange_exposed").cost_ns == finding.cost_ns);
  }
  SECTION("not where another batch computes meanwhile") {
    replays.is_overlapped = true;
    CHECK(replays.judge("exchange_exposed").verdict == Verdict::kAbsent);
  }
  SECTION("not where one request leaves no batch to split") {
    replays.annotation = "execute_context_0(0)_generation_1(1)";
    CHECK(replays.judge("exchange_exposed").verdict == Verdict::kAbsent);
  }
  SECTION("not where they are a small part of the time") {
    replays.product_us = 1'000;
    CHECK(replays.judge("exchange_exposed").verdict == Verdict::kAbsent);
  }
}

TEST_CASE("what combines wait for uneven experts is the imbalance", "[detect][expert_imbalance]") {
  Replays replays;
  CHECK(replays.judge("expert_imbalance").verdict == Verdict::kAbsent);
  replays.replays = 6;
  replays.wait_us = uneven;
  const Finding finding = replays.judge("expert_imbalance");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.cost_ns == 5 * 40'000);
  CHECK(fact(finding, "exchanges") == "5");
  CHECK(fact(finding, "in dispatch") == "0");
  CHECK(fact(finding, "in combine") == "200000");
  CHECK(fact(finding, "longest") == "combine 1");
  SECTION("a wait of less than a quarter of the transfer is none") {
    replays.wait_us = [](int replay, int layer) { return uneven(replay, layer) / 11; };
    CHECK(replays.judge("expert_imbalance").verdict == Verdict::kAbsent);
  }
  SECTION("two of each do not tell a wait from a transfer") {
    replays.replays = 2;
    replays.layers = 1;
    CHECK(replays.judge("expert_imbalance").verdict == Verdict::kUnknown);
  }
}

TEST_CASE("kernels that are small by design are no row of small collectives",
          "[detect][small_nccl_kernels]") {
  const auto verdict = [](const char* kernel) {
    TraceText text;
    for (int i = 0; i < 12; ++i) {
      text.launch("nvjet_gemm", 50.0 * i, 2, 1'000 + 50.0 * i, 30, 7, 2 * i + 1);
      text.launch(kernel, 50.0 * i + 3, 2, 1'032 + 50.0 * i, 12, 7, 2 * i + 2);
    }
    return judge("small_nccl_kernels", text).verdict;
  };
  CHECK(verdict("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)") == Verdict::kPresent);
  for (const char* kernel : {"void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(void*)",
                             "two_shot_all_reduce_kernel<float>",
                             "trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<8>",
                             kDispatch, kCombine}) {
    CAPTURE(kernel);
    CHECK(verdict(kernel) == Verdict::kAbsent);
  }
}
