// A host that is late while a collective runs: idle time, or exposed communication?

#include "rule_case.hpp"

using namespace traceap;

namespace {

constexpr const char* kAllReduce = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)";

enum class Waits { kNone, kStream, kHost, kUnrecorded };

/// Five steps of 10 ms: 1 ms of computation, which the host waits for; it launches the next kernel
/// at 5 ms. Meanwhile a collective runs on another stream from 0.5 ms to `collective_end_us`.
RuleCase late_host(double collective_end_us, Waits waits, int collective_stream = 20) {
  RuleCase t;
  for (int i = 0; i < 5; ++i) {
    const double at = 10'000.0 * i;
    t.step(i + 1, at, 10'000);
    t.op("aten::mm", at + 5, 20).queued("gemm", at + 10, at + 20, 980);
    if (waits != Waits::kUnrecorded) {
      t.host("cuda_runtime", "cudaStreamWaitEvent", at + 28, 1);  // the collective's own
    }
    t.op("c10d::allreduce_", at + 30, 20);
    t.queued(kAllReduce, at + 35, at + 500, collective_end_us - 500, collective_stream);
    if (waits == Waits::kStream) t.host("cuda_runtime", "cudaStreamWaitEvent", at + 60, 1);
    const double until = waits == Waits::kHost ? collective_end_us : 1'000;
    t.host("cuda_runtime", "cudaStreamSynchronize", at + 100, until - 90);
    t.op("aten::mm", at + 4'990, 20).queued("gemm", at + 5'000, at + 5'010, 4'900);
  }
  return t;
}

std::int64_t idle_us(const RuleCase& t) {
  const EventTable table = t.table();
  const EventTree tree = build_tree(table);
  return total_length_ns(build_signals(table, tree).gpu_idle) / 1'000;
}

}  // namespace

TEST_CASE("a kernel that begins beside a collective did not wait for it", "[detect]") {
  const RuleCase t = late_host(6'000, Waits::kStream);
  // From 1 ms to 5.01 ms of each step, and at both ends of it.
  CHECK(idle_us(t) == 5 * (4'010 + 20 + 90));
  const Finding finding = judge("explicit_synchronize", t);
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(judge("nccl_compute_not_overlapped", t).verdict == Verdict::kAbsent);
  CHECK(judge("nccl_blocks_main_stream", t).verdict == Verdict::kAbsent);
}

TEST_CASE("a collective that nothing waits for hides no late host", "[detect]") {
  const RuleCase t = late_host(4'000, Waits::kNone);
  CHECK(idle_us(t) == idle_us(late_host(6'000, Waits::kNone)));
  CHECK(judge("nccl_blocks_main_stream", t).verdict == Verdict::kAbsent);
}

TEST_CASE("a collective that may be waited for is exposed, and bounds what a fix can save",
          "[detect]") {
  for (const Waits waits : {Waits::kStream, Waits::kHost, Waits::kUnrecorded}) {
    const RuleCase t = late_host(4'000, waits);
    CHECK(idle_us(t) == idle_us(late_host(6'000, Waits::kNone)) - 5 * 3'000);
    const Finding finding = judge("cpu_bound", t);
    CHECK(finding.saving_high_ns >= finding.cost_ns);
  }
  const Finding synchronized = judge("explicit_synchronize", late_host(4'000, Waits::kHost));
  CHECK(synchronized.saving_high_ns == synchronized.cost_ns + 5 * 3'000'000);
  // In its own stream the next kernel waits for it whatever the host does.
  CHECK(idle_us(late_host(4'000, Waits::kNone, 7)) == idle_us(late_host(4'000, Waits::kStream)));
}

TEST_CASE("a kernel that was launched before a collective ended was held back", "[detect]") {
  RuleCase t;
  for (int i = 0; i < 5; ++i) {
    const double at = 10'000.0 * i;
    t.step(i + 1, at, 10'000);
    t.queued("gemm", at + 10, at + 20, 980);
    t.queued(kAllReduce, at + 35, at + 500, 3'500, 20);
    t.queued("gemm", at + 3'000, at + 4'010, 5'900);
  }
  CHECK(idle_us(t) == 5 * (20 + 10 + 90));
  CHECK(judge("nccl_blocks_main_stream", t).verdict == Verdict::kPresent);
}

TEST_CASE("time in which a copy and a collective run alone comes back only with both", "[detect]") {
  const auto judged = [](double collective_at) {
    RuleCase t;
    for (int i = 0; i < 5; ++i) {
      const double at = 10'000.0 * i;
      t.step(i + 1, at, 10'000);
      t.copy("Memcpy HtoD (Pinned -> Device)", at + 10, 5, at + 100, 2'000, 48'000'000, 21);
      t.queued(kAllReduce, at + 20, at + collective_at, 2'000, 20);
      t.queued("gemm", at + 30, at + 4'200, 5'700);
    }
    return judge("high_memcpy", t);
  };
  const Finding beside = judged(100), behind = judged(2'100);
  CHECK(beside.cost_ns == behind.cost_ns);
  CHECK(behind.saving_best_ns == beside.saving_best_ns + 5 * 1'000'000);
  CHECK(beside.saving_high_ns == behind.saving_high_ns);
}
