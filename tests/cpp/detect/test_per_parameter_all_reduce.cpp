#include "rule_case.hpp"

using namespace traceap;

namespace {

constexpr const char* kType = "per_parameter_all_reduce";
constexpr const char* kAllReduce = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)";
constexpr const char* kBackward = "autograd::engine::evaluate_function: MmBackward0";
constexpr const char* kClone = "void at::native::vectorized_elementwise_kernel<4, copy>";

std::string elements(std::int64_t count) {
  return R"("Collective name":"allreduce","In msg nelems":)" + std::to_string(count) +
         R"(,"Out msg nelems":)" + std::to_string(count) + R"(,"dtype":"Float")";
}

/// Two steps of 20 ms, forward and backward in their first 5 ms.
RuleCase training() {
  RuleCase t;
  for (int step = 0; step < 2; ++step) {
    const double start = 20'000.0 * step;
    t.step(3 + step, start, 20'000);
    for (int i = 0; i < 20; ++i) {
      t.op("aten::mm", start + 10 + 20.0 * i, 18);
      t.queued("gemm", start + 15 + 20.0 * i, start + 100 + 100.0 * i, 100);
    }
    for (int i = 0; i < 25; ++i) {
      t.op(kBackward, start + 450 + 20.0 * i, 18);
      t.queued("gemm_bw", start + 455 + 20.0 * i, start + 2'100 + 100.0 * i, 100);
    }
  }
  return t;
}

/// From 5 ms on: `count` times a clone of 10 us, an all-reduce of 80 us and 10 us of nothing.
void add_exchange(RuleCase& t, double start, int count, const std::string& args,
                  const char* between = kClone) {
  for (int i = 0; i < count; ++i) {
    const double at = start + 5'000 + 100.0 * i;
    t.op("aten::clone", at - 60, 10).queued(between, at - 55, at, 10);
    t.op("c10d::allreduce_", at - 40, 15).queued(kAllReduce, at - 35, at + 10, 80, 20, args);
  }
}

RuleCase exchange(int count, const std::string& args = "", const char* between = kClone) {
  RuleCase t = training();
  for (int step = 0; step < 2; ++step) {
    add_exchange(t, 20'000.0 * step, count, args, between);
    t.op("aten::mm", 20'000.0 * step + 19'000, 20)
        .queued("gemm", 20'000.0 * step + 19'005, 20'000.0 * step + 19'100, 100);
  }
  return t;
}

}  // namespace

TEST_CASE("gradients that are reduced one by one after backward, sizes recorded or not",
          "[detect][per_parameter_all_reduce]") {
  const Finding bare = judge(kType, exchange(100));
  CHECK(bare.verdict == Verdict::kPresent);
  CHECK(fact(bare, "all-reduces") == "200");
  CHECK(fact(bare, "per step") == "100");
  CHECK(fact(bare, "kernels between") == "198");
  CHECK(bare.missing_signals == std::vector<std::string>{"message sizes of the collectives"});
  // 100 all-reduces of 80 us and 99 pauses of 10 us in each step.
  CHECK(bare.cost_ns == 2 * (100 * 80'000 + 99 * 10'000));
  CHECK(bare.evidence_count == 200);
  const Finding sized = judge(kType, exchange(100, elements(1 << 18)));
  CHECK(sized.verdict == Verdict::kPresent);
  CHECK(fact(sized, "median size") == "1048576");
  CHECK(sized.missing_signals.empty());
  CHECK(sized.confidence > bare.confidence);
}

TEST_CASE("the first of a run waits for other ranks and counts like the others",
          "[detect][per_parameter_all_reduce]") {
  RuleCase t = training();
  t.op("c10d::allreduce_", 1'000, 15).queued(kAllReduce, 1'005, 4'700, 305, 20);
  add_exchange(t, 10, 40, "");
  CHECK(judge(kType, t).cost_ns == 80'000 + 40 * 80'000 + 39 * 10'000 + 5'000);
}

TEST_CASE("a pause of more than 1 ms between them has another cause",
          "[detect][per_parameter_all_reduce]") {
  const auto cost_with_pause = [](double pause_us) {
    RuleCase t = training();
    for (int i = 0; i < 40; ++i) {
      const double at = 5'000 + 100.0 * i + (i < 20 ? 0 : pause_us - 20);
      t.op("c10d::allreduce_", at - 40, 15);
      t.queued(kAllReduce, at - 35, at, 80, 20, elements(1 << 10));
    }
    return judge(kType, t).cost_ns;
  };
  const std::int64_t others_ns = 40 * 80'000 + 38 * 20'000;
  CHECK(cost_with_pause(1'000) == others_ns + 1'000'000);
  CHECK(cost_with_pause(1'001) == others_ns);
}

TEST_CASE("buckets of DistributedDataParallel are sent from within the backward pass",
          "[detect][per_parameter_all_reduce]") {
  RuleCase t = training();
  for (int i = 0; i < 60; ++i) {  // overlapped at first, a tail behind it
    const double at = 3'000 + 100.0 * i;
    t.op(kBackward, 960 + 10.0 * i, 9);
    t.queued(kAllReduce, 962 + 10.0 * i, at, 90, 20);
  }
  const Finding finding = judge(kType, t);
  CHECK(finding.verdict == Verdict::kAbsent);
  CHECK(finding.evidence_count == 0);
}

TEST_CASE("a few all-reduces behind the backward pass are norms and flags",
          "[detect][per_parameter_all_reduce]") {
  CHECK(judge(kType, exchange(31)).evidence_count == 0);
  CHECK(judge(kType, exchange(32)).evidence_count == 64);
}

TEST_CASE("all-reduces of tensor parallelism have matrix products between them",
          "[detect][per_parameter_all_reduce]") {
  CHECK(judge(kType, exchange(100, "", "gemm")).evidence_count == 0);
  RuleCase forward;  // without a backward pass there are no gradients
  forward.step(3, 0, 20'000).op("aten::mm", 10, 20).queued("gemm", 15, 100, 1'000);
  add_exchange(forward, 0, 100, "");
  CHECK(judge(kType, forward).verdict == Verdict::kAbsent);
}

TEST_CASE("all-reduces of whole buckets are bound by bandwidth",
          "[detect][per_parameter_all_reduce]") {
  const std::int64_t bucket = (std::int64_t{25} << 20) / 4;
  CHECK(judge(kType, exchange(40, elements(bucket))).evidence_count == 0);
  CHECK(judge(kType, exchange(40, elements(bucket - 1))).evidence_count == 80);
}

TEST_CASE("without sizes and with nothing between them they could be buckets",
          "[detect][per_parameter_all_reduce]") {
  const auto exchange_alone = [](int count, double length_us, const std::string& args) {
    RuleCase t = training();
    for (int i = 0; i < count; ++i) {
      const double at = 5'000 + 100.0 * i;
      t.op("c10d::allreduce_", at - 40, 15).queued(kAllReduce, at - 35, at, length_us, 20, args);
    }
    return judge(kType, t);
  };
  CHECK(exchange_alone(100, 90, "").missing_signals ==
        std::vector<std::string>{"message sizes of the collectives"});
  CHECK(exchange_alone(100, 90, "").verdict == Verdict::kUnknown);
  CHECK(exchange_alone(100, 27, "").verdict == Verdict::kUnknown);
  // 25 MiB take 26 us where a link moves 1 TB/s; the pauses alone are material.
  CHECK(exchange_alone(100, 26, "").verdict == Verdict::kPresent);
  CHECK(exchange_alone(40, 2, "").verdict == Verdict::kPresent);
  CHECK(exchange_alone(100, 90, elements(1 << 18)).verdict == Verdict::kPresent);
}

TEST_CASE("what only the order of gradients explains is claimed before what they end in",
          "[detect][per_parameter_all_reduce]") {
  const RuleCase t = exchange(150, elements(1 << 10));
  const EventTable table = t.table();
  const EventTree tree = build_tree(table);
  const std::vector<Finding> findings = detect_all(build_signals(table, tree));
  const std::vector<std::int64_t> unclaimed = compute_unclaimed_cost(findings);
  std::int64_t claimed = 0;
  IntervalSet all;
  for (std::size_t i = 0; i < findings.size(); ++i) {
    if (findings[i].verdict != Verdict::kPresent) continue;
    claimed += unclaimed[i];
    all = set_union(all, findings[i].intervals);
    if (findings[i].type == kType) CHECK(unclaimed[i] == findings[i].cost_ns);
  }
  CHECK(claimed == total_length_ns(all));
}

TEST_CASE("without host operators nothing tells gradients from activations",
          "[detect][per_parameter_all_reduce]") {
  TraceText gpu;
  for (int i = 0; i < 40; ++i) gpu.gpu("kernel", kAllReduce, 100.0 * i, 80, 20, i + 1);
  CHECK(judge(kType, gpu).missing_signals == std::vector<std::string>{"host operators"});
}
