// Collectives of several ranks: what is read of each, which is which, whose clock is off.

#include <cmath>
#include <random>

#include "catch.hpp"
#include "trace_text.hpp"
#include "traceap/analysis/collectives/matching.hpp"
#include "traceap/analysis/collectives/rank_collectives.hpp"

using namespace traceap;

namespace {

struct Rank {
  EventTable table;
  EventTree tree;
  explicit Rank(const TraceText& text) : table(text.table()), tree(build_tree(table)) {}
  std::vector<Collective> collectives() const { return build_collectives(table, tree).collectives; }
};

std::string described(const std::string& name, int elements, const std::string& more = "") {
  return R"("Collective name":")" + name + R"(","In msg nelems":)" + std::to_string(elements) +
         R"(,"Out msg nelems":)" + std::to_string(elements) + R"(,"dtype":"Float")" + more;
}
const std::string kWorld =
    R"(,"Process Group Name":"0","Process Group Ranks":"[0, 1]","Group size":2)";

RankCollectives match(const std::vector<Rank>& ranks) {
  std::vector<RankInput> inputs;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    inputs.push_back({&ranks[i].table, &ranks[i].tree, static_cast<std::int64_t>(i)});
  }
  return build_rank_collectives(inputs);
}

/// "rank.index" of the parts of each match.
std::vector<std::string> layout(const RankCollectives& all) {
  std::vector<std::string> lines(all.matches.size());
  for (const CollectivePart& part : all.parts) {
    std::string& line = lines[part.match];
    line +=
        (line.empty() ? "" : " ") + std::to_string(part.rank) + "." + std::to_string(part.index);
  }
  return lines;
}

std::vector<SequenceItem> items(const std::vector<int>& keys, const std::vector<double>& ends_us) {
  std::vector<SequenceItem> result;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    result.push_back(
        {static_cast<std::uint64_t>(keys[i]), static_cast<std::int64_t>(ends_us[i] * 1e3), true});
  }
  return result;
}

}  // namespace

TEST_CASE("every spelling of a collective has a kind", "[collectives]") {
  using K = CollectiveKind;
  const std::pair<const char*, K> names[] = {
      {"allreduce", K::kAllReduce},
      {"allreduce_coalesced", K::kAllReduce},
      {"nccl:all_reduce", K::kAllReduce},
      {"ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", K::kAllReduce},
      {"void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(...)", K::kAllReduce},
      {"_reduce_scatter_base", K::kReduceScatter},
      {"ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", K::kReduceScatter},
      {"_allgather_base", K::kAllGather},
      {"nccl:all_gather_into_tensor_coalesced", K::kAllGather},
      {"all_to_all", K::kAllToAll},
      {"all_to_allv", K::kAllToAllV},
      {"nccl:broadcast", K::kBroadcast},
      {"_broadcast_oop", K::kBroadcast},
      {"ncclDevKernel_Reduce_Sum_f32_RING_LL", K::kReduce},
      {"gather", K::kGather},
      {"scatter", K::kScatter},
      {"nccl:send 0->1", K::kSend},
      {"recv", K::kRecv},
      {"ncclDevKernel_SendRecv(ncclDevComm*)", K::kSendRecv},
      {"all_reduce_barrier", K::kBarrier},
      {"ncclDevKernel_Generic(ncclDevComm*)", K::kUnknown},
      {"gloo:all_reduce", K::kAllReduce},
      {"void deep_ep::internode_ll::dispatch<true, 7168>(void*, int*)", K::kDispatch},
      {"deep_ep/buffer.py(512): low_latency_combine", K::kCombine},
      {"sglang/moe/token_dispatcher/deepep.py(88): combine", K::kCombine},
      {"void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)", K::kUnknown},
  };
  for (const auto& [name, kind] : names) {
    INFO(name);
    CHECK(collective_kind_name(classify_collective(name)) == collective_kind_name(kind));
  }
}

TEST_CASE("a message is whole: gathered output, scattered input", "[collectives]") {
  TraceText t;
  const std::string group = R"(,"Group size":4,"dtype":"BFloat16")";
  const auto args = [&](const char* name, int in, int out) {
    return R"("Collective name":")" + std::string(name) + R"(","In msg nelems":)" +
           std::to_string(in) + R"(,"Out msg nelems":)" + std::to_string(out) + group;
  };
  t.launch("ncclDevKernel_AllGather", 1, 1, 10, 5, 7, 1, args("_allgather_base", 10, 40));
  t.launch("ncclDevKernel_AllGather", 2, 1, 20, 5, 7, 2, args("allgather", 10, 10));
  t.launch("ncclDevKernel_ReduceScatter", 3, 1, 30, 5, 7, 3, args("_reduce_scatter_base", 40, 10));
  t.launch("ncclDevKernel_AllReduce", 4, 1, 40, 5, 7, 4, args("allreduce", 10, 10));
  const auto found = Rank(t).collectives();
  REQUIRE(found.size() == 4);
  CHECK(found[0].bytes == 80);
  CHECK(found[1].bytes == 80);  // what each rank gives, times the ranks
  CHECK(found[2].bytes == 80);
  CHECK(found[3].bytes == 20);
  CHECK(found[3].dtype == "bfloat16");
}

TEST_CASE("a hidden kind comes from the annotation above the launch", "[collectives]") {
  TraceText t;
  t.host("user_annotation", "nccl:all_to_all", 0, 20,
         R"("Input Dims":[[6144]],"Input type":["float"])");
  t.launch("ncclDevKernel_SendRecv(ncclDevComm*)", 5, 1, 30, 10, 7, 1);
  t.launch("ncclDevKernel_Generic(ncclDevComm*)", 40, 1, 60, 10, 7, 2);
  const auto found = Rank(t).collectives();
  REQUIRE(found.size() == 2);
  CHECK(found[0].kind == CollectiveKind::kAllToAll);
  CHECK(found[0].name == "all_to_all");
  CHECK(found[0].bytes == 4 * 6144);
  CHECK(found[1].kind == CollectiveKind::kUnknown);
  CHECK_FALSE(found[1].bytes);
}

TEST_CASE("a coalesced group's kernel serves the calls before it", "[collectives]") {
  TraceText t;
  t.host("cpu_op", "record_param_comms", 0, 2, described("allreduce", 100, kWorld));
  t.host("cpu_op", "record_param_comms", 3, 2, described("allreduce", 50, kWorld));
  t.host("user_annotation", "nccl:coalesced", 6, 10);
  t.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 8, 1, 30, 10, 7, 1);
  const auto found = Rank(t).collectives();
  REQUIRE(found.size() == 1);
  CHECK(found[0].members == 2);
  CHECK(found[0].bytes == 600);
}

TEST_CASE("a batch of sends and receives is matched by pair", "[collectives][match]") {
  const auto rank = [](int own, int peer, double start_us) {
    TraceText t;
    const std::string to = R"(,"Dst Rank":)" + std::to_string(peer);
    const std::string from = R"(,"Src Rank":)" + std::to_string(peer);
    t.host("cpu_op", "record_param_comms", 0, 2, described("send", 100 + own, kWorld + to));
    t.host("cpu_op", "record_param_comms", 3, 2, described("recv", 100 + peer, kWorld + from));
    t.host("user_annotation", "nccl:coalesced", 6, 10);
    t.launch("ncclDevKernel_SendRecv(ncclDevComm*)", 8, 1, start_us, 10, 7, 1);
    return Rank(t);
  };
  std::vector<Rank> ranks;
  ranks.push_back(rank(0, 1, 30));
  ranks.push_back(rank(1, 0, 35));
  const RankCollectives all = match(ranks);
  REQUIRE(all.matches.size() == 2);
  for (std::size_t i = 0; i < all.parts.size(); i += 2) {
    const Collective& a = all.parts[i].call;
    const Collective& b = all.parts[i + 1].call;
    CHECK(a.kind != b.kind);  // a send with a receive
    CHECK(a.bytes == b.bytes);
  }
}

TEST_CASE("kernels without a group take their stream's, else the only one", "[collectives]") {
  TraceText t;
  t.gpu("kernel", "ncclDevKernel_AllReduce_Sum", 1, 1, 20, 77);  // launched before recording
  t.launch("ncclDevKernel_AllReduce_Sum", 2, 1, 10, 5, 20, 1, described("allreduce", 4, kWorld));
  t.launch("ncclDevKernel_AllReduce_Sum", 3, 1, 20, 5, 21, 2);
  const Rank rank(t);
  const CollectiveList list = build_collectives(rank.table, rank.tree);
  REQUIRE(list.collectives.size() == 3);
  CHECK(list.groups[list.collectives[0].group].name == "0");
  CHECK(list.groups[list.collectives[2].group].name.empty());
}

TEST_CASE("sequence numbers match whatever the order of events", "[collectives][match]") {
  const auto rank = [](const std::vector<int>& sequence) {
    TraceText t;
    for (std::size_t i = 0; i < sequence.size(); ++i) {
      const double at = 100.0 * static_cast<double>(i);
      t.launch("ncclDevKernel_AllReduce_Sum", at, 1, at + 10, 5, 20, static_cast<int>(i) + 1,
               described("allreduce", 4, kWorld + R"(,"Seq":)" + std::to_string(sequence[i])));
    }
    return Rank(t);
  };
  std::vector<Rank> ranks;
  ranks.push_back(rank({5, 6, 7}));
  ranks.push_back(rank({6, 7, 8}));
  CHECK(layout(match(ranks)).size() == 4);
  const RankCollectives all = match(ranks);
  int both = 0;
  for (const std::string& line : layout(all)) both += line == "0.1 1.0" || line == "0.2 1.1";
  CHECK(both == 2);
}

TEST_CASE("equal sequences match item by item", "[match]") {
  const auto a = items({1, 2, 1, 1}, {10, 20, 30, 40});
  const auto match = align_sequences(a, a);
  CHECK(match.to_first == std::vector<std::uint32_t>{0, 1, 2, 3});
}

TEST_CASE("a collective that one rank lacks is left over", "[match]") {
  const auto a = items({1, 2, 3, 4, 5}, {10, 20, 30, 40, 50});
  const auto b = items({1, 2, 4, 5}, {1010, 1020, 1040, 1050});
  const auto match = align_sequences(a, b);
  CHECK(match.to_first == std::vector<std::uint32_t>{0, 1, 3, 4});
  CHECK(match.offset_ns == 1'000'000);
}

TEST_CASE("among equal keys the ends decide where the gap is", "[match]") {
  std::vector<int> keys(13, 7);
  std::vector<double> ends{251,    3732,   22115,  57589,  57884,  60472, 78683,
                           217856, 218153, 224486, 249974, 285754, 286049};
  const auto a = items(keys, ends);
  SECTION("the other rank began to record later") {
    const auto b = items({keys.begin() + 1, keys.end()}, {ends.begin() + 1, ends.end()});
    const auto match = align_sequences(a, b);
    for (std::uint32_t j = 0; j < 12; ++j) CHECK(match.to_first[j] == j + 1);
  }
  SECTION("windows of the same length, one collective apart") {
    const auto early = items({keys.begin() + 1, keys.end()}, {ends.begin(), ends.end() - 1});
    const auto late = items({keys.begin() + 1, keys.end()}, {ends.begin() + 1, ends.end()});
    const auto match = align_sequences(early, late);
    CHECK(match.to_first.back() == kNoMatch);
    for (std::uint32_t j = 0; j + 1 < 12; ++j) CHECK(match.to_first[j] == j + 1);
  }
}

TEST_CASE("ends within 100 us of each other agree on an offset", "[match]") {
  // Three of six agree on 1 ms; the others are milliseconds apart.
  const auto offset = [](double third_us) {
    const auto a = items({1, 2, 3, 4, 5, 6, 9}, {1e5, 2e5, 3e5, 4e5, 5e5, 6e5, 7e5});
    const auto b = items({1, 2, 3, 4, 5, 6}, {1e5 + 1000, 2e5 + 1000, 3e5 + third_us, 4e5 + 5000,
                                              5e5 + 9000, 6e5 - 7000});
    return align_sequences(a, b).offset_ns;
  };
  CHECK(offset(1100) == 1'000'000);
  CHECK(offset(1101) == 0);
}

TEST_CASE("equal sequences may scatter by 1 ms", "[match]") {
  const auto offset = [](double scatter_us) {
    const auto a = items({1, 2, 3}, {1e5, 2e5, 3e5});
    const auto b = items({1, 2, 3}, {1e5, 2e5 + scatter_us, 3e5 + 2 * scatter_us});
    return align_sequences(a, b).offset_ns;
  };
  CHECK(offset(1000) == 1'000'000);
  CHECK(offset(1001) == 0);
}

TEST_CASE("ends more than 10 ms apart are of different collectives", "[match]") {
  const auto last = [](double apart_us) {
    const auto a = items({1, 2, 3, 4, 5, 9}, {1e5, 2e5, 3e5, 4e5, 5e5, 6e5});
    const auto b = items({1, 2, 3, 4, 5}, {1e5, 2e5, 3e5, 4e5, 5e5 + apart_us});
    return align_sequences(a, b).to_first.back();
  };
  CHECK(last(10'000) == 4);
  CHECK(last(10'001) == kNoMatch);
}

TEST_CASE("a long run of equal keys with a gap is aligned in no time", "[match]") {
  constexpr int kCount = 20'000;
  std::mt19937 random(3);
  std::vector<SequenceItem> a, b;
  std::int64_t time = 0;
  for (int i = 0; i < kCount; ++i) {
    time += 200'000 + static_cast<std::int64_t>(random() % 100'000);
    a.push_back({1, time, true});
    if (i != kCount / 2) b.push_back({1, time + 5'000'000, true});
  }
  const auto match = align_sequences(a, b);
  int wrong = 0;
  for (int j = 0; j < kCount - 1; ++j) {
    const auto expected = static_cast<std::uint32_t>(j < kCount / 2 ? j : j + 1);
    wrong += match.to_first[static_cast<std::size_t>(j)] != expected;
  }
  CHECK(wrong == 0);
}

TEST_CASE("sequences of very different length are paired in one pass", "[match]") {
  // One lacks the second half, and has a gap of its own: a table of all pairs would take 80 GB.
  std::vector<SequenceItem> a, b;
  for (std::uint64_t i = 0; i < 400'000; ++i) {
    const auto time = static_cast<std::int64_t>(i) * 1'000'000'000;
    a.push_back({i % 7, time, true});
    if (i < 200'000 && i % 1000 != 0) b.push_back({i % 7, time + 5'000'000, true});
  }
  const auto match = align_sequences(a, b);
  std::size_t wrong = 0;
  for (std::size_t j = 0; j < b.size(); ++j) {
    wrong +=
        match.to_first[j] == kNoMatch || a[match.to_first[j]].end_ns != b[j].end_ns - 5'000'000;
  }
  CHECK(wrong == 0);
}

TEST_CASE("a budget that is used up leaves one pass", "[match]") {
  const auto a = items({1, 2, 3, 4, 5}, {10, 20, 30, 40, 50});
  const auto b = items({1, 2, 4, 5}, {10, 20, 40, 50});
  CHECK(align_sequences(a, b, AlignmentBudget{0}).to_first ==
        std::vector<std::uint32_t>{0, 1, 3, 4});
  const auto c = items({1, 3, 2, 4, 5, 6, 7}, {10, 20, 30, 40, 50, 60, 70});
  const auto d = items({1, 2, 3, 4}, {10, 20, 30, 40});  // 2 or 3 could be paired, not both
  CHECK(align_sequences(c, d, AlignmentBudget{0}).to_first ==
        std::vector<std::uint32_t>{0, 2, kNoMatch, kNoMatch});
}

TEST_CASE("ranks that share nothing are merged in time that grows with what they have", "[match]") {
  std::vector<std::vector<SequenceItem>> sequences(400);
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    for (std::int64_t i = 0; i < 500; ++i) sequences[s].push_back({s, 1000 * i, true});
  }
  AlignmentBudget budget{1'000'000};
  const MatchedSlots slots = match_sequences(sequences, budget);
  CHECK(slots.slots() == 400 * 500);
  CHECK(budget.pairs < 1'000'000);
}

TEST_CASE("what no other rank has gets a slot of its own, in order", "[match]") {
  const std::vector<std::vector<SequenceItem>> sequences = {
      items({1, 2, 3, 9}, {10, 20, 30, 90}), items({1, 8, 3}, {10, 15, 30}),
      items({1, 8, 2, 3, 9}, {10, 15, 20, 30, 90})};
  const MatchedSlots slots = match_sequences(sequences);
  REQUIRE(slots.slots() == 5);
  for (std::size_t slot = 0; slot < 5; ++slot) CHECK(slots.at(slot, 2) == slot);
  CHECK(slots.at(1, 1) == 1);
  CHECK(slots.at(1, 0) == kNoMatch);
  CHECK(slots.at(4, 0) == 3);
}

TEST_CASE("every part is in exactly one match", "[match]") {
  std::mt19937 random(11);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::vector<SequenceItem>> sequences(2 + random() % 4);
    for (auto& sequence : sequences) {
      const std::size_t n = random() % 30;
      std::int64_t time = 0;
      for (std::size_t i = 0; i < n; ++i) {
        time += 1'000 + static_cast<std::int64_t>(random() % 1'000'000);
        sequence.push_back({random() % 3, time, random() % 2 == 0});
      }
    }
    const MatchedSlots slots = match_sequences(sequences);
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      std::uint32_t next = 0;  // in order, none twice, none lost
      for (std::size_t slot = 0; slot < slots.slots(); ++slot) {
        const std::uint32_t item = slots.at(slot, s);
        if (item == kNoMatch) continue;
        REQUIRE(item == next++);
      }
      REQUIRE(next == sequences[s].size());
    }
    for (std::size_t slot = 0; slot < slots.slots(); ++slot) {
      std::optional<std::uint64_t> key;
      for (std::size_t s = 0; s < sequences.size(); ++s) {
        if (slots.at(slot, s) == kNoMatch) continue;
        const std::uint64_t own = sequences[s][slots.at(slot, s)].key;
        REQUIRE(own == key.value_or(own));
        key = own;
      }
    }
  }
}

TEST_CASE("offsets are found from common ends, outliers or not", "[clocks]") {
  const std::int64_t offsets[] = {0, 310'000, -7'200'000'000'000, 1'500};
  std::mt19937 random(5);
  std::vector<ClockReading> readings;
  for (std::uint32_t k = 0; k < 60; ++k) {
    const std::int64_t moment = 1'700'000'000'000'000'000 + std::int64_t{k} * 3'000'000;
    for (std::uint32_t c = 0; c < 4; ++c) {
      std::int64_t noise = static_cast<std::int64_t>(random() % 4'000) - 2'000;
      if (random() % 10 == 0) noise += 2'000'000;  // wrongly matched, or delayed
      readings.push_back({k, c, moment + offsets[c] + noise});
    }
  }
  const ClockAlignment found = align_clocks(readings, 4);
  for (std::size_t c = 0; c < 4; ++c) {
    CHECK(std::abs(found.clocks[c].offset_ns - offsets[c]) < 2'000);
    CHECK(found.clocks[c].residual_ns < 5'000);
    CHECK(found.clocks[c].component == 0);
  }
  CHECK_FALSE(found.clocks[0].applied);
  CHECK(found.clocks[1].applied);
  CHECK(found.clocks[2].applied);
  CHECK_FALSE(found.clocks[3].applied);  // below what ends can tell
  CHECK(std::abs(found.to_common(2, 1'700'000'000'000'000'000 + offsets[2]) -
                 1'700'000'000'000'000'000) < 2'000);
}

TEST_CASE("a drift is found where there is time enough", "[clocks]") {
  std::vector<ClockReading> readings;
  for (std::uint32_t k = 0; k < 200; ++k) {
    const std::int64_t moment = std::int64_t{k} * 50'000'000;  // 10 s
    readings.push_back({k, 0, moment});
    readings.push_back({k, 1, moment + 500'000 + moment / 20'000});  // 50 ppm
  }
  const ClockAlignment found = align_clocks(readings, 2);
  CHECK(found.clocks[1].drift == Approx(50e-6).epsilon(0.02));
  for (const std::int64_t moment : {std::int64_t{0}, std::int64_t{9'950'000'000}}) {
    CHECK(std::abs(found.to_common(1, moment + 500'000 + moment / 20'000) - moment) < 2'000);
  }
}

namespace {

/// The second clock's fit from readings every `step_us`; it gains 1 ms per second.
ClockFit fit_with_drift(std::uint32_t count, std::int64_t step_us) {
  std::vector<ClockReading> readings;
  for (std::uint32_t k = 0; k < count; ++k) {
    const std::int64_t moment = std::int64_t{k} * step_us * 1'000;
    readings.push_back({k, 0, moment});
    readings.push_back({k, 1, moment + moment / 1'000});
  }
  return align_clocks(readings, 2).clocks[1];
}

/// The second clock's fit from one reading per entry: how far it is ahead then.
ClockFit fit_of(const std::vector<std::int64_t>& ahead_ns) {
  std::vector<ClockReading> readings;
  for (std::uint32_t k = 0; k < ahead_ns.size(); ++k) {
    readings.push_back({k, 0, std::int64_t{k} * 1'000'000});
    readings.push_back({k, 1, std::int64_t{k} * 1'000'000 + ahead_ns[k]});
  }
  return align_clocks(readings, 2).clocks[1];
}

}  // namespace

TEST_CASE("an offset is shown above 20 us, three times its scatter, or 1 ms by two readings",
          "[clocks]") {
  CHECK(fit_of({20'010, 20'010, 20'010}).applied);
  CHECK_FALSE(fit_of({19'990, 19'990, 19'990}).applied);
  CHECK(fit_of({5'000, 5'000, 5'000}).uncertainty_ns == 20'000);
  CHECK(fit_of({5'000, 5'000}).uncertainty_ns == 1'000'000);
  const ClockFit scattered = fit_of({-10'000, -10'000, 0, 10'000, 10'000});
  CHECK(std::abs(scattered.uncertainty_ns - 30'000) < 300);
}

TEST_CASE("a drift takes twenty readings over a second", "[clocks]") {
  CHECK(fit_with_drift(20, 60'000).drift != 0.0);  // 1.14 s
  CHECK(fit_with_drift(19, 60'000).drift == 0.0);
  CHECK(fit_with_drift(21, 50'000).drift != 0.0);  // 1 s
  CHECK(fit_with_drift(21, 49'900).drift == 0.0);
}

TEST_CASE("moments are thinned out from a million pairs of readings on", "[clocks]") {
  const auto used = [](std::uint32_t moments) {
    std::vector<ClockReading> readings;
    for (std::uint32_t k = 0; k < moments; ++k) {
      for (std::uint32_t c = 0; c < 100; ++c) readings.push_back({k, c, std::int64_t{k} * 1'000});
    }
    return align_clocks(readings, 100).clocks[1].readings;
  };
  CHECK(used(99) == 99);
  CHECK(used(100) == 50);
}

TEST_CASE("clocks are not shifted by more than times can hold", "[clocks]") {
  const auto fit = [](std::int64_t apart) {
    std::vector<ClockReading> readings;
    for (std::uint32_t i = 0; i < 5; ++i) {
      readings.push_back({i, 0, kMaxTimeNs - 1'000 * i});
      readings.push_back({i, 1, kMaxTimeNs - 1'000 * i - apart});
    }
    return align_clocks(readings, 2).clocks[1];
  };
  CHECK(fit(kMaxTimeNs).applied);
  CHECK(fit(kMaxTimeNs).offset_ns == -kMaxTimeNs);
  CHECK_FALSE(fit(kMaxTimeNs + 1'000'000'000).applied);
}

TEST_CASE("clocks that share no moment are different components", "[clocks]") {
  const std::vector<ClockReading> readings = {
      {0, 0, 100}, {0, 1, 100}, {1, 2, 9}, {1, 3, 9}, {2, 4, 50}};
  const ClockAlignment found = align_clocks(readings, 5);
  CHECK(found.clocks[1].component == 0);
  CHECK(found.clocks[3].component == 2);
  CHECK(found.clocks[4].component == 4);
  CHECK(found.clocks[4].readings == 0);
}

TEST_CASE("ranks on different clocks end together and wait apart", "[collectives][clocks]") {
  const auto rank = [](double offset_us, const std::vector<double>& late_us) {
    TraceText t;
    for (std::size_t i = 0; i < late_us.size(); ++i) {
      const double begin = 1'000.0 * static_cast<double>(i) + offset_us + late_us[i];
      t.launch("ncclDevKernel_AllReduce_Sum", begin - 5, 1, begin, 400 - late_us[i], 20,
               static_cast<int>(i) + 1, described("allreduce", 4, kWorld));
    }
    return Rank(t);
  };
  std::vector<Rank> ranks;
  ranks.push_back(rank(10'000, {0, 0, 0, 0}));
  ranks.push_back(rank(50'000, {300, 200, 100, 0}));
  const RankCollectives all = match(ranks);
  REQUIRE(all.matches.size() == 4);
  CHECK(all.clocks.clocks[1].offset_ns == 40'000'000);
  for (std::size_t i = 0; i < 4; ++i) {
    const CollectivePart &a = all.parts[2 * i], &b = all.parts[2 * i + 1];
    CHECK(a.end_ns == b.end_ns);
    CHECK(b.start_ns - a.start_ns == static_cast<std::int64_t>(300 - 100 * i) * 1'000);
  }
}

TEST_CASE("a clock is left alone where an event would end beyond all times",
          "[collectives][clocks]") {
  const auto rank = [](double clock_us, double longest_us) {
    TraceText t;
    for (int i = 0; i < 4; ++i) {
      const double begin = clock_us + 1'000.0 * i;
      t.launch("ncclDevKernel_AllReduce_Sum", begin - 8, 1, begin, 400, 20, i + 1,
               described("allreduce", 4, kWorld));
    }
    return Rank(t.host("user_annotation", "damaged", 1e15, longest_us));
  };
  const auto is_shifted = [&](double longest_us) {
    std::vector<Rank> ranks;
    ranks.push_back(rank(2.29e15, 1'000));
    ranks.push_back(rank(0.29e15, longest_us));
    const RankCollectives all = match(ranks);
    REQUIRE(all.matches.size() == 4);
    CHECK(all.recorded[1].end_ns <= 2 * kMaxTimeNs);
    return all.clocks.clocks[1].applied;
  };
  CHECK(is_shifted(1'000));
  CHECK(is_shifted(1.59e15));
  CHECK_FALSE(is_shifted(1.61e15));
}

namespace {

constexpr const char* kDispatch = "void deep_ep::internode_ll::dispatch<true, 7168>(void*, int*)";
constexpr const char* kCombine = "void deep_ep::internode_ll::combine<7168, 9, 4>(void*, int*)";

/// Replays of a graph of `layers`, each a dispatch, a product and a combine that begin together on
/// all ranks; `combine_us` by replay and layer.
Rank exchanging(int rank, int replays, int layers,
                double (*combine_us)(int rank, int replay, int layer), double clock_us = 0) {
  TraceText t;
  t.top(R"("distributedInfo":{"backend":"nccl","rank":)" + std::to_string(rank) +
        R"(,"world_size":2})");
  for (int replay = 0; replay < replays; ++replay) {
    const double begin = clock_us + 10'000.0 * (replay + 1);
    t.host("cuda_runtime", "cudaGraphLaunch", begin - 20, 10,
           R"("correlation":)" + std::to_string(replay + 1));
    for (int layer = 0; layer < layers; ++layer) {
      const double at = begin + 200.0 * layer;
      t.gpu("kernel", kDispatch, at, 12, 7, replay + 1);
      t.gpu("kernel", "m_grouped_gemm", at + 12, 30, 7, replay + 1);
      t.gpu("kernel", kCombine, at + 50, combine_us(rank, replay, layer), 7, replay + 1);
    }
  }
  return Rank(t);
}

/// The experts of rank 1 are late in layer 1 of every replay: rank 0 waits 40 us there.
double late_experts(int rank, int, int layer) { return rank == 0 && layer == 1 ? 56.0 : 16.0; }

}  // namespace

TEST_CASE(
    "dispatches and combines are matched in their order, the quickest rank tells the transfer",
    "[collectives][match]") {
  std::vector<Rank> ranks;
  ranks.push_back(exchanging(0, 2, 3, late_experts));
  ranks.push_back(exchanging(1, 2, 3, late_experts, 500));
  const RankCollectives all = match(ranks);
  REQUIRE(all.matches.size() == 12);
  for (std::size_t i = 0; i < all.matches.size(); ++i) {
    CAPTURE(i);
    const bool is_combine = i % 2 == 1, is_late = i % 6 == 3;
    CHECK(all.matches[i].kind ==
          (is_combine ? CollectiveKind::kCombine : CollectiveKind::kDispatch));
    CHECK(all.matches[i].split);
    const auto parts = all.parts_of(all.matches[i]);
    REQUIRE(parts.size() == 2);
    CHECK(parts[0].index == i);
    CHECK(parts[1].index == i);
    CHECK(parts[0].wait_ns == (is_late ? 40'000 : 0));
    CHECK(parts[1].wait_ns == 0);
    for (const CollectivePart& part : parts)
      CHECK(part.transfer_ns() == (is_combine ? 16'000 : 12'000));
  }
}

TEST_CASE("an exchange that one rank lacks leaves the others matched", "[collectives][match]") {
  std::vector<Rank> ranks;
  ranks.push_back(exchanging(0, 6, 3, late_experts));
  ranks.push_back(exchanging(1, 5, 3, late_experts));
  const RankCollectives all = match(ranks);
  REQUIRE(all.matches.size() == 36);
  std::size_t met = 0;
  for (const CollectiveMatch& one : all.matches) {
    const auto parts = all.parts_of(one);
    if (parts.size() == 2) {
      ++met;
      CHECK(parts[0].index == parts[1].index);
    }
  }
  CHECK(met == 30);
}

TEST_CASE("one rank tells waits from transfers by three kernels of equal work", "[collectives]") {
  const auto one_late = [](int, int replay, int) { return replay == 1 ? 56.0 : 16.0; };
  const auto transfers = [&](int replays) {
    std::vector<std::int64_t> found;
    for (const Collective& c : exchanging(0, replays, 1, one_late).collectives()) {
      if (c.kind == CollectiveKind::kCombine) found.push_back(c.transfer_ns);
    }
    return found;
  };
  CHECK(transfers(2) == std::vector<std::int64_t>(2, kNoId));
  CHECK(transfers(3) == std::vector<std::int64_t>(3, 16'000));
}

TEST_CASE("nothing to match is no error", "[collectives]") {
  std::vector<Rank> ranks;
  ranks.emplace_back(TraceText().host("cpu_op", "aten::mm", 0, 5));
  ranks.emplace_back(TraceText().launch("gemm", 0, 1, 5, 5, 7, 1));
  const RankCollectives all = match(ranks);
  CHECK(all.matches.empty());
  CHECK(all.parts.empty());
  CHECK(build_rank_collectives({}).matches.empty());
}
