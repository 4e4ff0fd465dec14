// Rules about ranks that work together, and what the traces of the others change.

#include "rule_case.hpp"
#include "traceap/detect/queries/collectives.hpp"
#include "traceap/detect/rules.hpp"

using namespace traceap;

namespace {
constexpr const char* kAllReduce = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)";
constexpr const char* kBroadcast = "ncclDevKernel_Broadcast_RING_LL(ncclDevComm*)";
constexpr const char* kSendRecv = "ncclDevKernel_SendRecv(ncclDevComm*)";
constexpr const char* kBackward = "autograd::engine::evaluate_function: MmBackward0";
const std::string kWorld = R"("distributedInfo":{"backend":"nccl","rank":0,"world_size":2})";

std::string elements(int count) {
  return R"("Collective name":"allreduce","In msg nelems":)" + std::to_string(count) +
         R"(,"Out msg nelems":)" + std::to_string(count) + R"(,"dtype":"Float")";
}

/// Tensor parallelism: every gemm ends in an all-reduce of 990 us, which the next gemm waits for.
RuleCase blocked_steps() {
  RuleCase t;
  t.top(kWorld);
  t.step(1, 0, 10'000);
  for (int i = 0; i < 4; ++i) {
    t.op("aten::mm", 10 + 60.0 * i, 20).queued("gemm", 15 + 60.0 * i, 300 + 2'000.0 * i, 1'000);
    t.op("c10d::allreduce_", 31 + 60.0 * i, 20);
    t.queued(kAllReduce, 36 + 60.0 * i, 1'305 + 2'000.0 * i, 990, 20, elements(1 << 22));
  }
  t.op("aten::mm", 300, 20).queued("gemm", 305, 8'300, 1'000);
  return t;
}

/// Judges with what other ranks say; `wait_us` of each collective is for the late rank.
Finding judge_with_peers(const char* type, const TraceText& text, double wait_us,
                         PeerView peers = {}) {
  const EventTable table = text.table();
  const EventTree tree = build_tree(table);
  Signals signals = build_signals(table, tree);
  peers.known = true;
  for (const Collective& c : signals.collectives) {
    const auto wait_ns = static_cast<std::int64_t>(wait_us * 1e3);
    peers.parts.push_back({c.row, wait_ns, wait_ns, wait_ns, 0, 1});
  }
  signals.peers = peers;
  return run_rule(type, signals);
}

PeerView straggler() {
  PeerView peers;
  peers.straggler = {
      .rank = 1, .cause = LateCause::kHost, .lateness_ns = 3'600'000, .explained = 0.9};
  return peers;
}

/// A training step whose gradients (`megabytes`) go out in `buckets` at the end of the backward.
RuleCase gradient_exchange(int buckets, int megabytes) {
  RuleCase t;
  t.step(1, 0, 10'000);
  for (int i = 0; i < 20; ++i) {
    t.op("aten::mm", 10 + 20.0 * i, 18).queued("gemm", 15 + 20.0 * i, 900 + 50.0 * i, 50);
  }
  for (int i = 0; i < 20; ++i) {
    t.op(kBackward, 450 + 20.0 * i, 18);
    t.queued("gemm_bw", 455 + 20.0 * i, 2'000 + 50.0 * i, 50);
  }
  const double length_us = 3'000.0 / buckets;
  for (int i = 0; i < buckets; ++i) {
    t.op(kBackward, 860 + 20.0 * i, 18);
    t.queued(kAllReduce, 865 + 20.0 * i, 3'010 + length_us * i, length_us - 5, 20,
             elements(megabytes * (1 << 18) / buckets));
  }
  return t;
}
}  // namespace

TEST_CASE("waiting for a late rank is the straggler's", "[detect][straggler]") {
  const RuleCase t = blocked_steps();
  const Finding finding = judge_with_peers("straggler", t, 900, straggler());
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(cost_us(finding) == Approx(4 * 900));
  CHECK(fact(finding, "late rank") == "1");
  CHECK(fact(finding, "cause") == "host");
  CHECK(fact(finding, "lateness") == "3600000");
  CHECK(fact(finding, "explained") == "0.9");
  CHECK(finding.evidence_count == 4);
  CHECK(finding.saving_low_ns == 1'080'000);   // 0.3
  CHECK(finding.saving_best_ns == 3'240'000);  // 0.9
  CHECK(finding.saving_high_ns == 3'600'000);
}

TEST_CASE("a straggler's host is named by what holds it", "[detect][straggler]") {
  PeerView peers = straggler();
  peers.straggler->host_cause = IdleCause::kAllocator;
  CHECK(fact(judge_with_peers("straggler", blocked_steps(), 900, peers), "cause") == "allocator");
  peers.straggler->cause = LateCause::kInput;
  CHECK(fact(judge_with_peers("straggler", blocked_steps(), 900, peers), "cause") ==
        "input pipeline");
}

TEST_CASE("one rank alone shows that someone is late, not who", "[detect][straggler]") {
  // Nine all-reduces of 3 ms and one of `length_ms`.
  const auto judged = [](double length_ms, const std::string& args, const std::string& top) {
    RuleCase t;
    if (!top.empty()) t.top(top);
    t.step(1, 0, 4'000'000);
    for (int i = 0; i < 10; ++i) {
      const double length = i == 4 ? length_ms * 1e3 : 3'000;
      t.op("c10d::allreduce_", 10 + 20.0 * i, 15);
      t.queued(kAllReduce, 15 + 20.0 * i, 100 + 10'000.0 * i + (i > 4 ? length_ms * 1e3 : 0),
               length, 20, args);
    }
    return judge("straggler", t);
  };
  const std::vector<std::string> waits{"the other ranks' traces, which would tell who is late"};
  const Finding unsized = judged(2'000, "", kWorld);
  CHECK(unsized.verdict == Verdict::kUnknown);
  CHECK(unsized.missing_signals == waits);
  CHECK(fact(unsized, "waiting") == "1970000000");
  CHECK(judged(2'000, "", "").missing_signals == waits);  // whatever the world's size says
  CHECK(judged(450, "", kWorld).missing_signals ==
        std::vector<std::string>{"traces of the other ranks"});
  const Finding sized = judged(450, elements(1 << 20), kWorld);
  CHECK(sized.missing_signals == waits);
  CHECK(fact(sized, "waiting") == std::to_string(450'000'000 - 1'000'000 - 2 * (4 << 20)));
  CHECK(judged(450, elements(1 << 26), kWorld).missing_signals != waits);  // 256 MiB
}

TEST_CASE("no straggler without proof", "[detect][straggler]") {
  const RuleCase t = blocked_steps();
  SECTION("one rank alone can't tell") {
    CHECK(judge("straggler", t).missing_signals ==
          std::vector<std::string>{"traces of the other ranks"});
  }
  SECTION("nor can it be where there is one rank") {
    RuleCase lone;
    lone.step(1, 0, 1'000).op("aten::mm", 10, 10).kernel("gemm", 100, 500);
    CHECK(judge("straggler", lone).verdict == Verdict::kAbsent);
  }
  SECTION("no rank is late") {
    CHECK(judge_with_peers("straggler", t, 0).verdict == Verdict::kAbsent);
  }
  SECTION("late, but no cause explains it") {
    PeerView peers;
    peers.unproven = {1, 3};
    const Finding finding = judge_with_peers("straggler", t, 0, peers);
    CHECK(finding.verdict == Verdict::kUnknown);
    CHECK(finding.missing_signals ==
          std::vector<std::string>{"what delays rank 1, 3: no cause explains 80 % of it"});
  }
}

TEST_CASE("a blocked stream stays present, but overlapping would not bring the late rank sooner",
          "[detect][nccl_blocks_main_stream]") {
  const RuleCase t = blocked_steps();
  const Finding alone = judge("nccl_blocks_main_stream", t);
  const Finding told = judge_with_peers("nccl_blocks_main_stream", t, 900, straggler());
  CHECK(told.verdict == Verdict::kPresent);
  CHECK(told.cost_ns == alone.cost_ns);
  CHECK(alone.saving_high_ns == 4 * 990'000);
  CHECK(told.saving_high_ns == 4 * 90'000);
  CHECK(fact(told, "behind a late rank") == "3600000");
  CHECK(fact(alone, "behind a late rank").empty());
}

TEST_CASE("the straggler claims its waiting before others do", "[detect][straggler]") {
  Finding blocked, late;
  blocked.type = "nccl_blocks_main_stream";
  blocked.verdict = late.verdict = Verdict::kPresent;
  blocked.intervals = {{0, 1'000}};
  late.type = "straggler";
  late.intervals = {{0, 900}};
  blocked.cost_ns = 1'000;
  late.cost_ns = 900;
  CHECK(compute_unclaimed_cost({blocked, late}) == std::vector<std::int64_t>{100, 900});
}

TEST_CASE("uneven parts of an all-to-all", "[detect][collective_imbalance]") {
  RuleCase t;
  t.top(kWorld);
  t.step(1, 0, 10'000);
  t.op("aten::mm", 10, 20).queued("gemm", 15, 300, 1'000);
  t.queued(kSendRecv, 36, 2'000, 4'000, 20,
           R"("Collective name":"all_to_allv","In msg nelems":100,"Out msg nelems":100,)"
           R"("dtype":"Float","In split size":"[90, 10]","Out split size":"[90, 10]")");
  CHECK(judge("collective_imbalance", t).verdict == Verdict::kUnknown);
  const EventTable table = t.table();
  const EventTree tree = build_tree(table);
  Signals signals = build_signals(table, tree);
  signals.peers.known = true;
  CHECK(run_rule("collective_imbalance", signals).missing_signals ==
        std::vector<std::string>{"split sizes of the all-to-alls"});
  signals.peers.imbalance = 1.8;
  signals.peers.parts = {{signals.collectives[0].row, 0, 0, 0, 1'500'000}};
  const Finding finding = run_rule("collective_imbalance", signals);
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(cost_us(finding) == Approx(1'500));
  CHECK(judge("collective_imbalance", blocked_steps()).verdict == Verdict::kAbsent);
}

TEST_CASE("all gradients in one large all-reduce", "[detect][one_bucket_ddp]") {
  const Finding finding = judge("one_bucket_ddp", gradient_exchange(1, 400));
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(cost_us(finding) == Approx(2'995));
  CHECK(fact(finding, "passes") == "1");
}

TEST_CASE("several buckets, or a small model, are no single bucket", "[detect][one_bucket_ddp]") {
  CHECK(judge("one_bucket_ddp", gradient_exchange(4, 400)).verdict == Verdict::kAbsent);
  CHECK(judge("one_bucket_ddp", gradient_exchange(1, 8)).verdict == Verdict::kAbsent);
  CHECK(judge("one_bucket_ddp", blocked_steps()).verdict == Verdict::kAbsent);
}

TEST_CASE("one bucket is large from 50 MiB upwards", "[detect][one_bucket_ddp]") {
  CHECK(judge("one_bucket_ddp", gradient_exchange(1, 50)).verdict == Verdict::kPresent);
  CHECK(judge("one_bucket_ddp", gradient_exchange(1, 49)).verdict == Verdict::kAbsent);
}

TEST_CASE("without a size one all-reduce is large only where it takes its time",
          "[detect][one_bucket_ddp]") {
  const auto exchange = [](double length_us) {
    RuleCase t;
    t.step(1, 0, 1'000);
    for (int i = 0; i < 4; ++i) {
      t.op(kBackward, 10 + 20.0 * i, 18).queued("gemm_bw", 15 + 20.0 * i, 200 + 50.0 * i, 50);
    }
    t.op(kBackward, 100, 18).queued(kAllReduce, 105, 405, length_us, 20);
    return judge("one_bucket_ddp", t).verdict;
  };
  CHECK(exchange(500) == Verdict::kUnknown);
  CHECK(exchange(52) == Verdict::kAbsent);  // 50 MiB at 1 TB/s
  CHECK(exchange(53) == Verdict::kUnknown);
}

TEST_CASE("buffers are broadcast in every forward pass", "[detect][broadcast_buffers]") {
  const auto trace = [](bool every_step, bool in_forward) {
    RuleCase t;
    for (int s = 0; s < 3; ++s) {
      const double at = 1'000.0 * s;
      t.step(s, at, 1'000);
      if (in_forward) t.op("DistributedDataParallel.forward", at + 1, 150);
      if (every_step || s == 0) {
        t.op("c10d::broadcast_", at + 5, 20);
        t.queued(kBroadcast, at + 10, at + 100, 80, 20);
      }
      t.op("aten::mm", at + 60, 20).queued("gemm", at + 65, at + 200, 200);
      t.op(kBackward, at + 200, 20).queued("gemm_bw", at + 205, at + 420, 300);
    }
    return t;
  };
  const Finding finding = judge("broadcast_buffers", trace(true, true));
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(cost_us(finding) == Approx(240));
  CHECK(judge("broadcast_buffers", trace(true, false)).verdict == Verdict::kPresent);
  CHECK(judge("broadcast_buffers", trace(false, false)).verdict == Verdict::kAbsent);
  CHECK(judge("broadcast_buffers", blocked_steps()).verdict == Verdict::kAbsent);
}
