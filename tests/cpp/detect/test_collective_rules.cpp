#include "rule_case.hpp"
#include "traceap/analysis/collectives/metadata.hpp"
#include "traceap/detect/queries/collectives.hpp"

using namespace traceap;

namespace {
constexpr const char* kAllReduce = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)";
constexpr const char* kBackward = "autograd::engine::evaluate_function: MmBackward0";

std::string elements(int count) {
  return R"("Collective name":"allreduce","In msg nelems":)" + std::to_string(count) +
         R"(,"Out msg nelems":)" + std::to_string(count) + R"(,"dtype":"Float")";
}

/// A step of 10 ms: forward kernels to 2 ms, backward ones to 6 ms, the optimizer's from 9 ms on.
/// Everything is launched early, so the GPU's queue is full.
RuleCase training_step() {
  RuleCase t;
  t.step(1, 0, 10'000);
  for (int i = 0; i < 20; ++i) {
    t.op("aten::mm", 10 + 20.0 * i, 18).queued("gemm", 15 + 20.0 * i, 30 + 100.0 * i, 100);
  }
  for (int i = 0; i < 40; ++i) {
    t.op(kBackward, 450 + 20.0 * i, 18);
    t.queued("gemm_bw", 455 + 20.0 * i, 2'030 + 100.0 * i, 100);
  }
  t.annotation("Optimizer.step#SGD.step", 1'400, 500);
  for (int i = 0; i < 9; ++i) {
    t.op("aten::_foreach_add_", 1'410 + 20.0 * i, 18);
    t.queued("foreach", 1'415 + 20.0 * i, 9'030 + 100.0 * i, 100);
  }
  return t;
}
}  // namespace

TEST_CASE("a collective alone at the end of the backward pass is not overlapped",
          "[detect][nccl_compute_not_overlapped]") {
  RuleCase t = training_step();
  t.op(kBackward, 1'260, 30).queued(kAllReduce, 1'270, 6'030, 2'990, 20, elements(1 << 24));
  const Finding finding = judge("nccl_compute_not_overlapped", t);
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(cost_us(finding) == Approx(2'990));
  CHECK(finding.saving_high_ns == finding.cost_ns);  // 4 ms of backward could cover it
  CHECK(judge("nccl_blocks_main_stream", t).verdict == Verdict::kAbsent);
  CHECK(judge("small_nccl_kernels", t).verdict == Verdict::kAbsent);
}

TEST_CASE("gradients exchanged among the first kernels of the optimizer end the backward pass",
          "[detect][nccl_compute_not_overlapped]") {
  RuleCase t;
  t.step(1, 0, 10'000);
  for (int i = 0; i < 40; ++i) {
    t.op(kBackward, 50 + 20.0 * i, 18);
    t.queued("gemm_bw", 55 + 20.0 * i, 900 + 100.0 * i, 100);
  }
  t.annotation("Optimizer.step#Zero.step", 900, 1'500);
  for (int i = 0; i < 60; ++i) {  // one kernel, the exchange, all others
    t.op("aten::mul_", 910 + 20.0 * i, 18);
    t.queued("update", 915 + 20.0 * i, i == 0 ? 4'900 : 7'950 + 30.0 * i, 30);
  }
  t.op("c10d::reduce_scatter_", 929, 1);
  t.queued(kAllReduce, 929.2, 4'935, 3'000, 20, elements(1 << 24));
  const Finding finding = judge("nccl_compute_not_overlapped", t);
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(cost_us(finding) == Approx(3'000));
  CHECK(judge("nccl_blocks_main_stream", t).verdict == Verdict::kAbsent);
}

TEST_CASE("a collective under the backward pass is overlapped",
          "[detect][nccl_compute_not_overlapped]") {
  RuleCase t = training_step();
  t.op(kBackward, 760, 10).queued(kAllReduce, 765, 3'000, 2'990, 20, elements(1 << 24));
  for (const char* type : {"nccl_compute_not_overlapped", "nccl_blocks_main_stream"}) {
    const Finding finding = judge(type, t);
    CHECK(finding.verdict == Verdict::kAbsent);
    CHECK(finding.cost_ns == 0);
  }
}

TEST_CASE("the saving of overlapping is bounded by the compute there is",
          "[detect][nccl_compute_not_overlapped]") {
  RuleCase t;
  t.step(1, 0, 10'000).op(kBackward, 5, 20).queued("gemm_bw", 10, 30, 500);
  t.op(kBackward, 30, 20).queued(kAllReduce, 35, 540, 9'000, 20, elements(1 << 26));
  const Finding finding = judge("nccl_compute_not_overlapped", t);
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(cost_us(finding) == Approx(9'000));
  CHECK(finding.saving_high_ns == 500'000);
}

TEST_CASE("a queued kernel of the same phase that waits is blocked",
          "[detect][nccl_blocks_main_stream]") {
  RuleCase t;
  t.step(1, 0, 10'000);
  for (int i = 0; i < 4; ++i) {  // tensor parallelism: every layer ends in an all-reduce
    t.op("aten::mm", 10 + 60.0 * i, 20).queued("gemm", 15 + 60.0 * i, 300 + 2'000.0 * i, 1'000);
    t.op("c10d::allreduce_", 31 + 60.0 * i, 20);
    t.queued(kAllReduce, 36 + 60.0 * i, 1'305 + 2'000.0 * i, 990, 20, elements(1 << 22));
  }
  t.op("aten::mm", 300, 20).queued("gemm", 305, 8'300, 1'000);
  const Finding finding = judge("nccl_blocks_main_stream", t);
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(cost_us(finding) == Approx(4 * 990));
  CHECK(fact(finding, "waits") == "4");
  CHECK(judge("nccl_compute_not_overlapped", t).verdict == Verdict::kAbsent);
}

TEST_CASE("a collective that runs while the host is late blocks nobody",
          "[detect][nccl_blocks_main_stream]") {
  RuleCase t;
  t.step(1, 0, 10'000).op("aten::mm", 10, 20).kernel("gemm", 30, 1'000);
  t.op("c10d::allreduce_", 40, 20).queued(kAllReduce, 50, 1'035, 2'000, 20, elements(1 << 22));
  for (int i = 0; i < 30; ++i) {  // the next kernel is only launched when the collective is over
    t.op("aten::mm", 3'080 + 200.0 * i, 30).kernel("gemm", 3'100 + 200.0 * i, 190);
  }
  const Finding finding = judge("nccl_blocks_main_stream", t);
  CHECK(finding.verdict == Verdict::kAbsent);
  CHECK(finding.cost_ns == 0);
  SECTION("unless the host was late because it waited for it") {
    t.api("cudaStreamSynchronize", 60, 2'985);
    CHECK(judge("nccl_blocks_main_stream", t).verdict == Verdict::kPresent);
  }
}

TEST_CASE("a row of small collectives costs first to last", "[detect][small_nccl_kernels]") {
  RuleCase t = training_step();
  t.op(kBackward, 1'260, 100);
  for (int i = 0; i < 60; ++i) {
    t.queued(kAllReduce, 1'262 + 1.0 * i, 6'035 + 45.0 * i, 15, 20, elements(256));
  }
  const Finding finding = judge("small_nccl_kernels", t);
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(cost_us(finding) == Approx(59 * 45 + 15));
  CHECK(finding.evidence_count == 60);
  SECTION("what compute covers is not lost") {
    t.queued("gemm", 1'390, 6'035, 2'000);
    CHECK(cost_us(judge("small_nccl_kernels", t)) < 1'000);
  }
}

TEST_CASE("what a clone takes between small collectives does not end a row",
          "[detect][small_nccl_kernels]") {
  const auto exchange = [](double copy_us) {
    RuleCase t = training_step();
    t.op(kBackward, 1'260, 100);
    for (int i = 0; i < 60; ++i) {
      t.queued(kAllReduce, 1'262 + 0.5 * i, 6'035 + 45.0 * i, 15, 20, elements(256));
      t.queued("copy", 1'262.2 + 0.5 * i, 6'053 + 45.0 * i, copy_us);
    }
    return judge("small_nccl_kernels", t);
  };
  const Finding finding = exchange(2.5);
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.evidence_count == 60);
  CHECK(cost_us(finding) == Approx(60 * 15 + 59 * 27.5));
  CHECK(cost_us(exchange(20)) == Approx(60 * 15 + 59 * 10));
  CHECK(cost_us(exchange(20.1)) == Approx(60 * 15));  // the pause has work of its own
}

TEST_CASE("a size of nothing is no size", "[detect][small_nccl_kernels]") {
  const auto verdict = [](double length_us) {
    RuleCase t = training_step();
    t.op(kBackward, 1'260, 100);
    for (int i = 0; i < 10; ++i) {
      t.queued(kAllReduce, 1'262 + i, 6'035 + 280.0 * i, length_us, 20, elements(0));
    }
    return judge("small_nccl_kernels", t).verdict;
  };
  CHECK(verdict(270) == Verdict::kAbsent);
  CHECK(verdict(20) == Verdict::kPresent);
}

TEST_CASE("gradients reduced one by one are not overlapped, though each is put in its place",
          "[detect][nccl_compute_not_overlapped]") {
  constexpr const char* kAccumulate =
      "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad";
  const auto exchange = [](const char* between) {
    RuleCase t = training_step();
    for (int i = 0; i < 12; ++i) {
      const double at = 6'040 + 220.0 * i;
      t.op("c10d::allreduce_", 1'255 + 12.0 * i, 5.8);
      t.queued(kAllReduce, 1'255.2 + 12.0 * i, at, 210, 20, elements(1 << 20));
      t.op(between, 1'261 + 12.0 * i, 5.8).queued("copy", 1'261.2 + 12.0 * i, at + 212, 3);
    }
    return t;
  };
  const Finding finding = judge("nccl_compute_not_overlapped", exchange(kAccumulate));
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(cost_us(finding) == Approx(12 * 210));
  // Backward work that each of them holds back is in the middle of the phase.
  const RuleCase sharded = exchange(kBackward);
  CHECK(cost_us(judge("nccl_compute_not_overlapped", sharded)) < 4 * 210);
  CHECK(judge("nccl_blocks_main_stream", sharded).verdict == Verdict::kPresent);
}

TEST_CASE("small collectives by size, whatever they take", "[detect][small_nccl_kernels]") {
  RuleCase t = training_step();
  t.op(kBackward, 1'260, 100);
  for (int i = 0; i < 30; ++i) {
    t.queued(kAllReduce, 1'262 + 1.0 * i, 6'035 + 90.0 * i, 60, 20, elements(1'000));
  }
  CHECK(judge("small_nccl_kernels", t).verdict == Verdict::kPresent);
}

TEST_CASE("a small barrier, large buckets and waiting are no small collectives",
          "[detect][small_nccl_kernels]") {
  SECTION("one barrier per step, however long it waits") {
    RuleCase t = training_step();
    t.op(kBackward, 1'260, 30).queued(kAllReduce, 1'270, 6'030, 2'990, 20, elements(1));
    CHECK(judge("small_nccl_kernels", t).verdict == Verdict::kAbsent);
  }
  SECTION("buckets") {
    RuleCase t = training_step();
    t.op(kBackward, 1'260, 100);
    for (int i = 0; i < 8; ++i) {
      t.queued(kAllReduce, 1'262 + 1.0 * i, 6'035 + 350.0 * i, 340, 20, elements(1 << 22));
    }
    CHECK(judge("small_nccl_kernels", t).verdict == Verdict::kAbsent);
  }
  SECTION("a row of flags of which one waits for a late rank") {
    RuleCase t = training_step();
    t.op(kBackward, 1'260, 100);
    for (int i = 0; i < 5; ++i) {
      t.queued(kAllReduce, 1'262 + 1.0 * i, 6'035 + 12.0 * i, 8, 20, elements(1));
    }
    t.queued(kAllReduce, 1'269, 6'100, 2'900, 20, elements(1));
    CHECK(judge("small_nccl_kernels", t).verdict == Verdict::kAbsent);
  }
}

TEST_CASE("message sizes of older traces come from the operator's inputs",
          "[detect][collectives]") {
  RuleCase t;
  t.step(1, 0, 1'000);
  t.host("cpu_op", "record_param_comms", 5, 50,
         R"("Input Dims":[[16,256],[],[[2]]],"Input type":["float","Int","TensorList"])");
  t.queued(kAllReduce, 10, 100, 50, 20);
  const EventTable table = t.table();
  const EventTree tree = build_tree(table);
  const auto collectives = build_collectives(table, tree).collectives;
  REQUIRE(collectives.size() == 1);
  CHECK(collectives[0].bytes == 16 * 256 * 4);
}

TEST_CASE("without communication kernels it depends on what else is there",
          "[detect][collectives]") {
  RuleCase single;
  single.step(1, 0, 1'000).op("aten::mm", 10, 10).kernel("gemm", 100, 500);
  RuleCase group_of_one = single;
  group_of_one.op("c10d::allreduce_", 50, 10);
  group_of_one.top(R"("distributedInfo":{"backend":"nccl","rank":0,"world_size":1})");
  RuleCase lost = single;
  lost.op("c10d::allreduce_", 50, 10);
  lost.top(R"("distributedInfo":{"backend":"nccl","rank":0,"world_size":8})");
  RuleCase host_only;
  host_only.step(1, 0, 1'000).op("aten::mm", 10, 10);
  host_only.top(R"("distributedInfo":{"backend":"nccl","rank":0,"world_size":8})");
  for (const char* type :
       {"small_nccl_kernels", "nccl_blocks_main_stream", "nccl_compute_not_overlapped"}) {
    CHECK(judge(type, single).verdict == Verdict::kAbsent);
    CHECK(judge(type, group_of_one).verdict == Verdict::kAbsent);
    CHECK(judge(type, lost).missing_signals == std::vector<std::string>{"communication kernels"});
    CHECK(judge(type, host_only).missing_signals == std::vector<std::string>{"GPU events"});
  }
}

namespace {

/// A training step with `count` all-reduces between backward and optimizer, launched early.
RuleCase all_reduces(int count, double length_us, double every_us, int element_count) {
  RuleCase t = training_step();
  t.op(kBackward, 1'260, 100);
  for (int i = 0; i < count; ++i) {
    t.queued(kAllReduce, 1'262 + i, 6'035 + every_us * i, length_us, 20, elements(element_count));
  }
  return t;
}

}  // namespace

TEST_CASE("a collective is small below 64 KiB or up to 20 us, and five make a row",
          "[detect][small_nccl_kernels]") {
  const auto verdict = [](const RuleCase& t) { return judge("small_nccl_kernels", t).verdict; };
  CHECK(verdict(all_reduces(30, 60, 90, 16'383)) == Verdict::kPresent);  // 65'532 bytes
  CHECK(verdict(all_reduces(30, 60, 90, 16'384)) == Verdict::kAbsent);
  CHECK(verdict(all_reduces(30, 20, 90, 1 << 20)) == Verdict::kPresent);
  CHECK(verdict(all_reduces(30, 20.1, 90, 1 << 20)) == Verdict::kAbsent);
  CHECK(verdict(all_reduces(5, 60, 90, 256)) == Verdict::kPresent);
  CHECK(verdict(all_reduces(4, 60, 90, 256)) == Verdict::kAbsent);
}

TEST_CASE("a pause of more than 500 us ends a row of small collectives",
          "[detect][small_nccl_kernels]") {
  const auto verdict = [](double pause_us) {
    RuleCase t = all_reduces(3, 60, 90, 256);  // to 6275 us
    for (int i = 0; i < 3; ++i) {
      t.queued(kAllReduce, 1'270 + i, 6'275 + pause_us + 90.0 * i, 60, 20, elements(256));
    }
    return judge("small_nccl_kernels", t).verdict;
  };
  CHECK(verdict(500) == Verdict::kPresent);
  CHECK(verdict(501) == Verdict::kAbsent);
}

TEST_CASE("a small collective of 1 ms waits for another rank", "[detect][small_nccl_kernels]") {
  const auto verdict = [](double last_us) {
    RuleCase t = all_reduces(5, 8, 12, 1);
    t.queued(kAllReduce, 1'269, 6'100, last_us, 20, elements(1));
    return judge("small_nccl_kernels", t).verdict;
  };
  CHECK(verdict(999) == Verdict::kPresent);
  CHECK(verdict(1'000) == Verdict::kAbsent);
}

TEST_CASE("a kernel that starts within 100 us of a collective was held back by it",
          "[detect][nccl_blocks_main_stream]") {
  const auto verdict = [](double late_us) {
    RuleCase t;
    t.step(1, 0, 10'000);
    for (int i = 0; i < 4; ++i) {
      t.op("aten::mm", 10 + 60.0 * i, 20).queued("gemm", 15 + 60.0 * i, 300 + 2'000.0 * i, 1'000);
      t.op("c10d::allreduce_", 31 + 60.0 * i, 20);
      t.queued(kAllReduce, 36 + 60.0 * i, 1'305 + 2'000.0 * i, 995 - late_us, 20,
               elements(1 << 22));
    }
    t.op("aten::mm", 300, 20).queued("gemm", 305, 8'300, 1'000);
    return judge("nccl_blocks_main_stream", t).verdict;
  };
  CHECK(verdict(100) == Verdict::kPresent);
  CHECK(verdict(101) == Verdict::kAbsent);
}

TEST_CASE("a phase is over when one in twenty of its kernels is still to come",
          "[detect][nccl_compute_not_overlapped]") {
  const auto finding = [](int to_come) {
    RuleCase t;
    t.step(1, 0, 10'000);
    for (int i = 0; i < 40; ++i) {
      t.op(kBackward, 50 + 20.0 * i, 18);
      t.queued("gemm_bw", 55 + 20.0 * i, 900 + 100.0 * i + (i < 40 - to_come ? 0 : 3'000), 100);
    }
    t.op(kBackward, 900, 30)
        .queued(kAllReduce, 910, 4'900 - 100.0 * to_come, 2'990, 20, elements(1 << 24));
    t.annotation("Optimizer.step#SGD.step", 1'000, 500);
    t.op("aten::_foreach_add_", 1'010, 18).queued("foreach", 1'015, 7'910, 2'000);
    return judge("nccl_compute_not_overlapped", t);
  };
  CHECK(finding(2).verdict == Verdict::kPresent);  // 2 of 40
  CHECK(finding(3).verdict == Verdict::kAbsent);
}

TEST_CASE("overlapping saves 30 to 70 per cent of what is exposed", "[detect]") {
  RuleCase t = training_step();
  t.op(kBackward, 1'260, 30).queued(kAllReduce, 1'270, 6'030, 2'990, 20, elements(1 << 24));
  const Finding finding = judge("nccl_compute_not_overlapped", t);
  CHECK(finding.saving_low_ns == 897'000);
  CHECK(finding.saving_best_ns == 2'093'000);
}
