// Rules on traces that were recorded, or stripped, without what the rule asks: the verdict is open,
// never a silent "absent".

#include "rule_case.hpp"

using namespace traceap;

namespace {

constexpr const char* kDown = "Memcpy DtoH (Device -> Pageable)";
constexpr const char* kNccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL";
const std::string kCopyKernel =
    "void at::native::elementwise_kernel<direct_copy_kernel_cuda, float>";
const std::string kPointwise = "void at::native::vectorized_elementwise_kernel<4, MulFunctor>";

enum Without { kNothing, kCalls, kOperators };

/// Writes a trace whose calls or operators can be left out.
struct Stripped {
  Without without;
  RuleCase t;
  Stripped& op(const std::string& name, double ts_us, double dur_us) {
    if (without != kOperators) t.op(name, ts_us, dur_us);
    return *this;
  }
  Stripped& kernel(const std::string& name, double ts_us, double dur_us, int stream = 7) {
    if (without == kCalls) {
      t.gpu("kernel", name, ts_us, dur_us, stream, ++id);
    } else {
      t.queued(name, ts_us - 6, ts_us, dur_us, stream);
    }
    return *this;
  }
  int id = 1'000'000;
};

/// Optimizer.step or zero_grad over 60 parameters in 5 of 10 ms.
Finding loop_over_parameters(Without without, const char* type, const std::string& range,
                             const std::string& op, const std::string& kernel) {
  Stripped s{without, {}};
  s.t.step(1, 0, 10'000).annotation(range, 1'000, 5'000);
  s.op("autograd::engine::evaluate_function: MulBackward0", 100, 300).kernel("gemm", 200, 700);
  for (int i = 0; i < 60; ++i) {
    s.op(op, 1'010 + 80.0 * i, 60).kernel(kernel, 1'050 + 80.0 * i, 4);
  }
  return judge(type, s.kernel("gemm", 6'100, 3'800).t);
}

Finding attention(Without without) {
  Stripped s{without, {}};
  s.t.step(1, 0, 10'000);
  double at = 100;
  for (const char* name : {"aten::bmm", "aten::_softmax", "aten::bmm"}) {
    s.op(name, at, 50).kernel("attention_part", at + 40, 300);
    at += 400;
  }
  return judge("attention_not_fused", s.kernel("gemm", 2'000, 7'900).t);
}

Finding clones(Without without) {
  Stripped s{without, {}};
  s.t.step(1, 0, 10'000);
  s.op("aten::clone", 100, 100).op("aten::copy_", 110, 80).kernel(kCopyKernel, 150, 500);
  return judge("device_to_device_copies", s.kernel("gemm", 700, 9'000).t);
}

/// Two collectives, alone between kernels of the forward pass and at the end of the backward pass.
Finding exposed_collectives(Without without, const char* type) {
  Stripped s{without, {}};
  s.t.step(1, 0, 10'000);
  for (int i = 0; i < 20; ++i) s.op("aten::mm", 10 + 100.0 * i, 90);
  for (int i = 0; i < 20; ++i) {
    s.op("autograd::engine::evaluate_function: MmBackward0", 2'010 + 100.0 * i, 95);
    s.op("aten::mm", 2'020 + 100.0 * i, 80);
  }
  for (int i = 0; i < 20; ++i) s.kernel("gemm", 50 + 100.0 * i, 95);
  for (int i = 0; i < 20; ++i) s.kernel("gemm", 2'060 + 100.0 * i, 95);
  return judge(type, s.kernel(kNccl, 4'100, 3'000, 20).t);
}

}  // namespace

TEST_CASE("loops over parameters are open without calls or operators", "[detect][missing]") {
  const auto optimizer = [](Without without) {
    return loop_over_parameters(without, "unfused_optimizer", "Optimizer.step#Adam.step",
                                "aten::mul_", kPointwise);
  };
  CHECK(optimizer(kNothing).verdict == Verdict::kPresent);
  CHECK(optimizer(kCalls).missing_signals ==
        std::vector<std::string>{"launch calls of GPU events"});
  CHECK(optimizer(kOperators).missing_signals == std::vector<std::string>{"host operators"});
  const auto zero_grad = [](Without without) {
    return loop_over_parameters(without, "zero_grad_not_none", "Optimizer.zero_grad#Adam.zero_grad",
                                "aten::zero_", "FillFunctor");
  };
  CHECK(zero_grad(kNothing).verdict == Verdict::kPresent);
  CHECK(zero_grad(kCalls).missing_signals ==
        std::vector<std::string>{"launch calls of GPU events"});
  CHECK(zero_grad(kOperators).missing_signals == std::vector<std::string>{"host operators"});
}

TEST_CASE("attention is open without calls or operators", "[detect][missing]") {
  CHECK(attention(kNothing).verdict == Verdict::kPresent);
  CHECK(attention(kCalls).missing_signals ==
        std::vector<std::string>{"launch calls of GPU events"});
  CHECK(attention(kOperators).missing_signals == std::vector<std::string>{"host operators"});
}

TEST_CASE("copy kernels whose operator is not known could be anything", "[detect][missing]") {
  CHECK(clones(kNothing).verdict == Verdict::kPresent);
  CHECK(clones(kCalls).verdict == Verdict::kUnknown);
  CHECK(clones(kOperators).missing_signals == std::vector<std::string>{"host operators"});
  RuleCase few;
  few.step(1, 0, 10'000).gpu("kernel", kCopyKernel, 100, 10, 7, 900'000);
  few.gpu("kernel", "gemm", 110, 9'800, 7, 900'001);
  CHECK(judge("device_to_device_copies", few).verdict == Verdict::kAbsent);
}

TEST_CASE("exposed communication can't be split without phases", "[detect][missing]") {
  CHECK(exposed_collectives(kNothing, "nccl_compute_not_overlapped").verdict == Verdict::kPresent);
  CHECK(exposed_collectives(kNothing, "nccl_blocks_main_stream").verdict == Verdict::kAbsent);
  for (const Without without : {kCalls, kOperators}) {
    CHECK(exposed_collectives(without, "nccl_blocks_main_stream").verdict == Verdict::kUnknown);
    const Finding other = exposed_collectives(without, "nccl_compute_not_overlapped");
    CHECK(other.verdict == Verdict::kPresent);  // exposed it is, of whatever type
    CHECK(other.confidence == 0.5);
    CHECK(other.missing_signals.size() == 1);
  }
}

TEST_CASE("copies whose types nobody tells could be casts", "[detect][missing]") {
  const auto copies = [](Without without, const std::string& kernel, double dur_us) {
    Stripped s{without, {}};
    s.t.step(1, 0, 10'000);
    s.op("aten::copy_", 100, 80).kernel(kernel, 150, dur_us);
    return judge("cast_storm", s.kernel("gemm", 150 + dur_us, 9'800 - dur_us).t);
  };
  const std::string any = "void at::native::elementwise_kernel<gpu_kernel_impl, copy_kernel_cuda>";
  CHECK(copies(kNothing, any, 500).missing_signals ==
        std::vector<std::string>{"input types (record_shapes=True)"});
  CHECK(copies(kCalls, any, 500).missing_signals ==
        std::vector<std::string>{"launch calls of GPU events"});
  CHECK(copies(kOperators, any, 500).missing_signals == std::vector<std::string>{"host operators"});
  CHECK(copies(kNothing, any, 100).verdict == Verdict::kAbsent);
  for (const char* same : {"vectorized_elementwise_kernel<4, copy_kernel_cuda>",
                           "elementwise_kernel<gpu_kernel_impl_nocast, copy_kernel_cuda>"}) {
    CHECK(copies(kCalls, same, 500).verdict == Verdict::kAbsent);
  }
}

TEST_CASE("first calls of operators could hide where no operator is recorded",
          "[detect][missing]") {
  const auto cold = [](Without without, double pause_us) {
    Stripped s{without, {}};
    s.t.step(5, 0, 100'000);
    s.op("aten::mm", 0, 100).kernel("gemm", 50, 1'000);
    s.op("aten::mm", 1'100, pause_us).kernel("gemm", 1'100 + pause_us, 98'800 - pause_us);
    return judge("cold_start", s.t);
  };
  CHECK(cold(kNothing, 8'000).verdict == Verdict::kAbsent);
  CHECK(cold(kOperators, 8'000).missing_signals == std::vector<std::string>{"host operators"});
  CHECK(cold(kOperators, 800).verdict == Verdict::kAbsent);
}

TEST_CASE("annotations alone are no operators that tell a formula", "[detect][missing]") {
  RuleCase t;
  t.step(1, 0, 10'000).annotation("my range", 0, 500);
  for (int i = 0; i < 40; ++i) t.queued(kPointwise, 5.0 * i, 1'000 + 20.0 * i, 20);
  CHECK(judge("unfused_pointwise", t).missing_signals ==
        std::vector<std::string>{"host operators"});
}

TEST_CASE("how long copies held the host is open without their calls", "[detect][missing]") {
  const auto reads = [](bool calls, double copy_us) {
    RuleCase t;
    t.step(1, 0, 10'000);
    for (int i = 0; i < 20; ++i) {
      const double at = 100 + 480.0 * i;
      t.op("aten::mm", at - 30, 40).kernel("gemm", at, 200);
      if (calls) {
        t.copy(kDown, at + 20, 10, at + 201, copy_us, 4).api("cudaStreamSynchronize", at + 31, 240);
      } else {
        t.gpu("gpu_memcpy", kDown, at + 201, copy_us, 7, 900'000 + i, "\"bytes\":4");
      }
    }
    return judge("high_memcpy", t);
  };
  CHECK(reads(true, 2).verdict == Verdict::kPresent);
  CHECK(reads(false, 2).missing_signals == std::vector<std::string>{"launch calls of the copies"});
  CHECK(reads(false, 50).verdict == Verdict::kPresent);  // by the copies alone
  SECTION("but not where the GPU works on both sides") {
    RuleCase t;
    t.step(1, 0, 10'000).kernel("gemm", 10, 4'990);
    t.gpu("gpu_memcpy", kDown, 5'000, 2, 7, 900'000, "\"bytes\":4");
    t.queued("gemm", 4'000, 5'002, 4'900);
    CHECK(judge("high_memcpy", t).verdict == Verdict::kAbsent);
  }
}

TEST_CASE("a read of unknown size is a value only in an operator that reads values",
          "[detect][missing]") {
  const auto reads = [](const std::string& op, const std::string& args) {
    RuleCase t;
    t.step(1, 0, 10'000);
    for (int i = 0; i < 20; ++i) {
      const double at = 100 + 480.0 * i;
      const std::string id = std::to_string(900'000 + i);
      t.kernel("gemm", at, 200).op(op, at + 15, 290);
      t.host("cuda_runtime", "cudaMemcpyAsync", at + 20, 10, "\"correlation\":" + id);
      t.gpu("gpu_memcpy", kDown, at + 201, 2, 7, 900'000 + i, args);
      t.api("cudaStreamSynchronize", at + 31, 240);
    }
    return judge("host_sync_in_loop", t);
  };
  CHECK(reads("aten::to", "\"bytes\":4").verdict == Verdict::kPresent);
  CHECK(reads("aten::to", "\"bytes\":65537").verdict == Verdict::kAbsent);
  CHECK(reads("aten::to", "").missing_signals == std::vector<std::string>{"sizes of the copies"});
  CHECK(reads("aten::item", "").verdict == Verdict::kPresent);
}

TEST_CASE("silence is open without calls or operators", "[detect][missing]") {
  const auto silence = [](Without without) {
    Stripped s{without, {}};
    s.t.step(1, 0, 100'000).frame("train.py(3): step", 10, 99'000);
    s.op("aten::mm", 100, 100).kernel("gemm", 150, 20'000);
    s.op("aten::mm", 60'000, 100).kernel("gemm", 60'100, 39'000);
    return judge("host_silence", s.t);
  };
  CHECK(silence(kNothing).verdict == Verdict::kPresent);
  CHECK(silence(kCalls).missing_signals == std::vector<std::string>{"launch calls of GPU events"});
  CHECK(silence(kOperators).missing_signals == std::vector<std::string>{"host operators"});
}

TEST_CASE("without GPU events, calls or operators a rule says which of them it lacks",
          "[detect][missing]") {
  using Types = std::vector<const char*>;
  const auto lacks = [](const TraceText& text, const char* type) {
    INFO(type);
    const Finding finding = judge(type, text);
    CHECK(finding.verdict == Verdict::kUnknown);
    return finding.missing_signals.empty() ? "" : finding.missing_signals.front();
  };
  TraceText no_gpu;
  no_gpu.host("user_annotation", "ProfilerStep#3", 0, 1'000).host("cpu_op", "aten::mm", 0, 20);
  no_gpu.host("cuda_runtime", "cudaLaunchKernel", 5, 5, R"("correlation":1)");
  for (const char* type :
       Types{"unfused_pointwise", "small_grids", "shared_gpu", "uncached_allocator",
             "synchronous_memset", "pageable_readback", "recomputed_activations", "created_on_host",
             "for_loop_indexing", "conv_bias_before_batch_norm", "graph_recapture",
             "misaligned_dimensions", "host_silence"}) {
    CHECK(lacks(no_gpu, type) == "GPU events");
  }
  TraceText no_calls;
  no_calls.host("cpu_op", "aten::mm", 0, 20).gpu("kernel", "gemm", 20, 1'000, 7, 1);
  for (const char* type :
       Types{"uncached_allocator", "synchronous_memset", "pageable_readback", "graph_recapture"}) {
    CHECK(lacks(no_calls, type) == "runtime calls");
  }
  TraceText no_operators;
  no_operators.launch("gemm", 5, 5, 20, 1'000, 7, 1);
  for (const char* type : Types{"recomputed_activations", "created_on_host", "for_loop_indexing",
                                "conv_bias_before_batch_norm", "host_silence"}) {
    CHECK(lacks(no_operators, type) == "host operators");
  }
}
