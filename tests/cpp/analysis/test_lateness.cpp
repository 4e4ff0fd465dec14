// Who keeps the others waiting and why, what rules are told of it, who is missing, where ranks
// meet.

#include <deque>

#include "catch.hpp"
#include "trace_text.hpp"
#include "traceap/analysis/collectives/lateness.hpp"
#include "traceap/analysis/collectives/meetings.hpp"
#include "traceap/analysis/collectives/missing_ranks.hpp"
#include "traceap/analysis/collectives/peers.hpp"
#include "traceap/base/error.hpp"

using namespace traceap;

namespace {

constexpr double kMaterial = 0.02;
constexpr const char* kAllReduce = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)";
constexpr const char* kSendRecv = "ncclDevKernel_SendRecv(ncclDevComm*)";
constexpr const char* kLoader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__";

std::string called(const std::string& name, int elements, const std::string& more) {
  const std::string count = std::to_string(elements);
  return R"("Collective name":")" + name + R"(","In msg nelems":)" + count +
         R"(,"Out msg nelems":)" + count + R"(,"dtype":"Float","Process Group Name":"0",)" +
         R"("Process Group Ranks":"[0, 1, 2]")" + more;
}

/// Ranks on one clock, in us. Every rank begins to record at 1 and has one thread.
class Job {
 public:
  explicit Job(std::size_t count) : texts_(count) {
    for (TraceText& text : texts_) text.host("user_annotation", "start", 1, 1);
  }
  TraceText& operator[](std::size_t rank) { return texts_[rank]; }

  Job& work(std::size_t rank, double start_us, double length_us) {
    ++correlation_;
    texts_[rank].launch("gemm", start_us - 0.5, 0.2, start_us, length_us, 7, correlation_);
    return *this;
  }
  /// Each rank's start; negative: it has no part.
  Job& all_reduce(const std::vector<double>& starts_us, double end_us,
                  const std::string& name = "allreduce", const std::string& more = "",
                  int elements = 64) {
    ++correlation_;
    for (std::size_t r = 0; r < starts_us.size(); ++r) {
      if (starts_us[r] < 0) continue;
      const char* kernel = name == "all_to_allv" ? kSendRecv : kAllReduce;
      texts_[r].launch(kernel, starts_us[r] - 0.5, 0.2, starts_us[r], end_us - starts_us[r], 20,
                       correlation_, called(name, elements, more));
    }
    return *this;
  }

  void match() {
    for (std::size_t r = 0; r < texts_.size(); ++r) {
      tables.push_back(texts_[r].table());
      trees.push_back(build_tree(tables.back()));
      ranks.push_back({&tables[r], &trees[r], static_cast<std::int64_t>(r)});
    }
    all = build_rank_collectives(ranks);
  }
  std::vector<RankLateness> lateness(double material_share = kMaterial) {
    match();
    return measure_lateness(all, ranks, material_share);
  }

  std::deque<EventTable> tables;
  std::deque<EventTree> trees;
  std::vector<RankInput> ranks;
  RankCollectives all;

 private:
  std::vector<TraceText> texts_;
  int correlation_ = 0;
};

std::vector<std::string> verdicts(const std::vector<RankLateness>& late) {
  std::vector<std::string> names;
  for (const RankLateness& rank : late) names.emplace_back(rank_verdict_name(rank.verdict));
  return names;
}

std::int64_t excess_us(const RankLateness& rank, LateCause cause) {
  return rank.excess_ns[static_cast<std::size_t>(cause)] / 1000;
}

/// Rank 2 computes 300 us where the others compute 100, then all meet.
Job slow_kernels() {
  Job job(3);
  job.work(0, 10, 100).work(1, 10, 100).work(2, 10, 300);
  job.all_reduce({110, 110, 310}, 320);
  return job;
}

}  // namespace

TEST_CASE("waiting and transfer are a part's duration", "[lateness]") {
  Job job = slow_kernels();
  job.match();
  REQUIRE(job.all.matches.size() == 1);
  const CollectiveMatch& match = job.all.matches[0];
  CHECK(match.comparable);
  CHECK(match.synchronising);
  CHECK(match.kind == CollectiveKind::kAllReduce);
  CHECK(match.latest_rank == 2);
  CHECK(match.latest_start_ns == 310'000);
  const auto parts = job.all.parts_of(match);
  REQUIRE(parts.size() == 3);
  CHECK(parts[0].wait_ns == 200'000);
  CHECK(parts[0].transfer_ns() == 10'000);
  CHECK(parts[2].wait_ns == 0);
}

TEST_CASE("a rank whose kernels take longer is the straggler", "[lateness]") {
  const std::vector<RankLateness> late = slow_kernels().lateness();
  CHECK(verdicts(late) == std::vector<std::string>{"on time", "on time", "straggler"});
  CHECK(late[2].lateness_ns == 200'000);
  CHECK(late[2].cause == LateCause::kCompute);
  CHECK(late[2].cause_share == 1.0);
  CHECK(late[2].times_last == 1);
  CHECK(late[2].wait_ns == 0);
  CHECK(late[0].wait_ns == 200'000);
  CHECK(late[0].compared == 1);
  CHECK(excess_us(late[2], LateCause::kCompute) == 200);
}

TEST_CASE("each cause of a late arrival is told from the others", "[lateness]") {
  Job job(3);
  job.work(0, 10, 50).work(1, 10, 50);
  LateCause cause = LateCause::kHost;
  SECTION("input") {
    cause = LateCause::kInput;
    job[2].host("user_annotation", kLoader, 3, 206);
    job.work(2, 210, 50);
  }
  SECTION("copies") {
    cause = LateCause::kCopies;
    job[2].gpu("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 10, 200, 7, 901);
    job.work(2, 210, 50);
  }
  SECTION("host") {
    job[2].host("cpu_op", "aten::add", 3, 205);
    job.work(2, 210, 50);
  }
  job.all_reduce({60, 60, 260}, 300);
  const std::vector<RankLateness> late = job.lateness();
  CHECK(late[2].verdict == RankVerdict::kStraggler);
  CHECK(late_cause_name(late[2].cause) == late_cause_name(cause));
  CHECK(late[2].lateness_ns == 200'000);
}

TEST_CASE("of a host that is late the cause of its idle time is named", "[lateness]") {
  // Late by 200 us, of which a call of the host takes so many.
  const auto rank_of = [](const char* kind, const char* name, double call_us) {
    Job job(3);
    job.work(0, 10, 50).work(1, 10, 50);
    job[2].host("cpu_op", "aten::empty", 3, 206);
    job[2].host(kind, name, 4, call_us);
    job.work(2, 210, 50);
    job.all_reduce({60, 60, 260}, 300);
    return job.lateness()[2];
  };
  const RankLateness mallocs = rank_of("cuda_runtime", "cudaMalloc", 190);
  CHECK(mallocs.verdict == RankVerdict::kStraggler);
  CHECK(mallocs.cause == LateCause::kHost);
  CHECK(mallocs.host_cause == IdleCause::kAllocator);
  // Waits for nothing that is recorded: no cause of the host's own.
  CHECK(rank_of("cuda_runtime", "cudaDeviceSynchronize", 190).host_cause == IdleCause::kHostWait);
  CHECK(rank_of("user_annotation", "inductor_compile (dynamo_timed)", 190).host_cause ==
        IdleCause::kCompilation);
  CHECK(rank_of("cuda_runtime", "cudaMalloc", 90).host_cause == IdleCause::kHostWait);
  CHECK(rank_of("cpu_op", "aten::add", 190).host_cause == IdleCause::kHostWait);
}

TEST_CASE("below four fifths of the lateness no cause is named", "[lateness]") {
  // Late by 200 us: so much of them in kernels, the rest in a host that launched late.
  const auto verdict_of = [](double kernel_us) {
    Job job(3);
    job.work(0, 10, 100).work(1, 10, 100);
    job.work(2, 210 - kernel_us, 100 + kernel_us);
    job.all_reduce({110, 110, 310}, 400);
    return job.lateness()[2].verdict;
  };
  CHECK(verdict_of(160) == RankVerdict::kStraggler);
  CHECK(verdict_of(158) == RankVerdict::kLate);
}

TEST_CASE("lateness below the material share of the profiled time is none", "[lateness]") {
  // Profiled from 1 to 1001: 2 % are 20 us.
  const auto verdict_of = [](double late_us) {
    Job job(3);
    job.work(0, 10, 100).work(1, 10, 100).work(2, 10, 100 + late_us);
    job.all_reduce({110, 110, 110 + late_us}, 1001);
    return job.lateness()[2].verdict;
  };
  CHECK(verdict_of(20) == RankVerdict::kStraggler);
  CHECK(verdict_of(19.999) == RankVerdict::kOnTime);
}

TEST_CASE("from one collective to the next ranks are level only where all waited", "[lateness]") {
  Job job(3);
  job.work(0, 10, 100).work(1, 10, 100).work(2, 10, 300);
  job.all_reduce({110, 110, 310}, 320);
  SECTION("all wait, so the second segment begins at the common end") {
    job.work(0, 330, 100).work(1, 330, 100).work(2, 330, 100);
    job.all_reduce({430, 430, 430}, 440);
    CHECK(job.lateness()[2].lateness_ns == 200'000);
  }
  SECTION("who computes meanwhile stays behind as it was") {
    job.work(2, 309, 250);
    job.all_reduce({430, 430, 560}, 570);
    const std::vector<RankLateness> late = job.lateness();
    CHECK(late[2].lateness_ns == 200'000 + 130'000);
    CHECK(excess_us(late[2], LateCause::kCompute) == 200 + 449);
  }
}

TEST_CASE("two ranks that never met are not judged", "[lateness]") {
  Job job(2);
  job.work(0, 10, 100).work(1, 10, 300);
  CHECK(verdicts(job.lateness()) == std::vector<std::string>{"unknown", "unknown"});
  CHECK(build_peer_views(job.all, std::vector<RankLateness>(2), job.ranks)[0].known == false);
}

TEST_CASE("rules hear of the straggler, the waits for it and what ending them gains", "[peers]") {
  Job job(3);
  job.work(0, 10, 100).work(1, 10, 150).work(2, 10, 300);
  job.all_reduce({110, 160, 310}, 320);
  const std::vector<RankLateness> late = job.lateness();
  const std::vector<PeerView> views = build_peer_views(job.all, late, job.ranks);
  REQUIRE(views.size() == 3);
  REQUIRE(views[0].straggler);
  CHECK(views[0].straggler->rank == 2);
  CHECK(views[0].straggler->cause == LateCause::kCompute);
  CHECK(views[0].straggler->lateness_ns == late[2].lateness_ns);
  REQUIRE(views[0].parts.size() == 1);
  const PeerPart& part = views[0].parts[0];
  CHECK(views[0].find(part.row) == &views[0].parts[0]);
  CHECK(views[0].find(part.row + 1) == nullptr);
  CHECK(part.wait_ns == 200'000);
  CHECK(part.gain_ns == 150'000);  // rank 1 would be the last one
  CHECK(part.wait_any_ns == 200'000);
  CHECK(part.imbalance_ns == 0);
  CHECK_FALSE(views[0].imbalance);
  CHECK(views[2].parts[0].wait_ns == 0);
}

TEST_CASE("waits for a rank whose cause is not proven are for any rank", "[peers]") {
  Job job(3);
  job.work(0, 10, 100).work(1, 10, 100).work(2, 110, 200);
  job.all_reduce({110, 110, 310}, 320);
  const std::vector<RankLateness> late = job.lateness();
  const std::vector<PeerView> views = build_peer_views(job.all, late, job.ranks);
  CHECK_FALSE(views[0].straggler);
  CHECK(views[0].unproven == std::vector<std::int64_t>{2});
  CHECK(views[0].parts[0].wait_ns == 0);
  CHECK(views[0].parts[0].wait_any_ns == 200'000);
}

TEST_CASE("the fullest rank of an all-to-all sets its time", "[peers]") {
  // The first rank sends and receives 10 and `more` elements, the second 20 in all.
  const auto views_of = [](int more) {
    Job job(2);
    job.work(0, 10, 100).work(1, 10, 100);
    const auto split = [](const std::string& sizes) {
      return R"(,"In split size":")" + sizes + R"(","Out split size":")" + sizes + "\"";
    };
    job.all_reduce({110, -1}, 210, "all_to_allv", split("[10, " + std::to_string(more) + "]"),
                   10 + more);
    job.all_reduce({-1, 110}, 210, "all_to_allv", split("[10, 10]"), 20);
    const std::vector<RankLateness> late = job.lateness();
    return build_peer_views(job.all, late, job.ranks);
  };
  SECTION("uneven: largest over mean is 4/3, so a quarter of the transfer is lost") {
    const std::vector<PeerView> views = views_of(30);
    REQUIRE(views[0].imbalance);
    CHECK(*views[0].imbalance == Approx(4.0 / 3.0));
    CHECK(views[1].parts[0].imbalance_ns == 25'000);
  }
  SECTION("up to 1.2 it counts as even") {
    const std::vector<PeerView> views = views_of(20);
    CHECK(*views[0].imbalance == Approx(1.2));
    CHECK(views[0].parts[0].imbalance_ns == 0);
  }
}

TEST_CASE("ranks of the group without a part are missing", "[collectives]") {
  Job job(3);
  job.all_reduce({10, 10, 10}, 20, "allreduce", R"(,"Seq":1)");
  job.all_reduce({30, -1, 30}, 40, "allreduce", R"(,"Seq":2)");
  job.all_reduce({50, -1, 50}, 60, "allreduce", R"(,"Seq":3)");
  job.match();
  CHECK(expected_ranks(job.all, job.ranks) == std::vector<std::vector<std::int64_t>>{{0, 1, 2}});
  const MissingRanks missing = find_missing_ranks(job.all, job.ranks);
  CHECK(missing.list_of == std::vector<std::uint32_t>{0, 1, 1});
  CHECK(missing.lists == std::vector<std::vector<std::int64_t>>{{}, {1}});
}

TEST_CASE("ranks meet where the end needs all of them", "[collectives]") {
  Job job(3);
  job.all_reduce({10, 10, 10}, 20).all_reduce({30, 30, 30}, 40, "broadcast");
  job.all_reduce({50, 50, -1}, 60);
  job.match();
  const Meetings meetings = find_meetings(job.all, std::vector<std::uint32_t>{0, 1, 2});
  REQUIRE(meetings.size() == 2);  // a broadcast's root may leave early
  CHECK(meetings[0].size() == 3);
  REQUIRE(meetings[1].size() == 2);
  CHECK(job.tables[1].ts_ns[meetings[1][1].row] == 50'000);

  const Meetings some = find_meetings(job.all, std::vector<std::uint32_t>{2, 0});
  REQUIRE(some.size() == 2);
  CHECK(some[0].size() == 2);
  CHECK(some[0][0].rank == 1);  // rank 0 of the job is the graph's second
  CHECK_THROWS_AS(find_meetings(job.all, std::vector<std::uint32_t>{3}), OptionError);
}

TEST_CASE("a send and its receive meet", "[collectives]") {
  Job job(2);
  job.all_reduce({10, -1}, 40, "send", R"(,"Dst Rank":1)");
  job.all_reduce({-1, 20}, 40, "recv", R"(,"Src Rank":0)");
  job.match();
  REQUIRE(job.all.matches.size() == 1);
  CHECK(job.all.matches[0].kind == CollectiveKind::kSendRecv);
  CHECK(find_meetings(job.all, std::vector<std::uint32_t>{0, 1}).size() == 1);
}
