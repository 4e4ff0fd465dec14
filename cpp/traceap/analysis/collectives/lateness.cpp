// Note [Lateness and its cause]: between two collectives of the same ranks all of them are level at
// the common end of the first, if they wait for it: a rank that computes beside a collective (DDP
// reduces gradients while the backward goes on) stays as far behind as it was. From there to its
// own start at the second, each rank spends a segment of time, which is split exactly: compute
// kernels, then other collectives, then copies, then idle time by cause. A rank is late by its
// start minus the median start of the others, and the excess of a cause is what the rank spent on
// it beyond the others' median. So work that all ranks do alike drops out, and a stall early in the
// segment is found although something else came last. Only when the excess of one cause explains at
// least 80 % of the lateness is that cause named (traceml's rule); otherwise the rank is late and
// its cause is not proven. A host that is late has a cause of its own where one cause of idle time
// makes up more than half of its excess, such as the allocator.

#include "traceap/analysis/collectives/lateness.hpp"

#include <algorithm>
#include <map>

#include "traceap/analysis/idle/timeline.hpp"
#include "traceap/base/statistics.hpp"
#include "traceap/base/sums.hpp"

namespace traceap {
namespace {

/// What a rank does, by late cause, and beside that its idle time by its own cause.
constexpr std::size_t kActivityCount = std::size_t{kLateCauseCount} + kIdleCauseCount;
using NsByActivity = std::array<std::int64_t, kActivityCount>;
using CoverByActivity = std::array<CoverIndex, kActivityCount>;

constexpr std::size_t place_of(IdleCause cause) {
  return kLateCauseCount + static_cast<std::size_t>(cause);
}
/// Causes of a host that is late which say more than that it is.
constexpr std::array kHostCauses{IdleCause::kSynchronization, IdleCause::kCompilation,
                                 IdleCause::kAllocator, IdleCause::kLaunchLatency,
                                 IdleCause::kProfiler};

LateCause cause_of_idle(IdleCause cause) {
  switch (cause) {
    case IdleCause::kDataLoading:
      return LateCause::kInput;
    case IdleCause::kWithinGraph:
      return LateCause::kCompute;
    case IdleCause::kMemoryCopy:
      return LateCause::kCopies;
    case IdleCause::kCommunicationWait:
      return LateCause::kCommunication;
    default:
      return LateCause::kHost;
  }
}

/// What a rank does at each moment: by late cause disjoint sets that together cover all recorded
/// time.
CoverByActivity activity_of(const RankInput& rank) {
  const GpuIntervals gpu = build_gpu_intervals(*rank.table, *rank.tree);
  std::array<IntervalSet, kActivityCount> sets;
  const auto of = [&](LateCause cause) -> IntervalSet& {
    return sets[static_cast<std::size_t>(cause)];
  };
  const Interval recorded = recorded_bounds(*rank.table);
  for (const IdleInterval& idle : explain_idle(*rank.table, *rank.tree, gpu, recorded).intervals) {
    of(cause_of_idle(idle.cause)).push_back(idle.interval);
    sets[place_of(idle.cause)].push_back(idle.interval);
  }
  const IntervalSet copies = set_difference(gpu.memcpy, gpu.compute);
  const auto add = [&](LateCause cause, const IntervalSet& work) {
    of(cause) = set_union(of(cause), work);
  };
  add(LateCause::kCompute, gpu.compute);
  add(LateCause::kCommunication, set_difference(gpu.communication, gpu.compute));
  add(LateCause::kCopies, set_difference(copies, gpu.communication));
  CoverByActivity activity;
  for (std::size_t c = 0; c < sets.size(); ++c) activity[c] = CoverIndex(sets[c]);
  return activity;
}

/// Of each value: the median of the others, rounded down.
std::vector<std::int64_t> others_medians(const std::vector<std::int64_t>& values) {
  std::vector<std::int64_t> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t others = values.size() - 1;
  std::vector<std::int64_t> medians;
  for (const std::int64_t value : values) {
    const auto own = static_cast<std::size_t>(
        std::lower_bound(sorted.begin(), sorted.end(), value) - sorted.begin());
    const auto other = [&](std::size_t k) { return sorted[k < own ? k : k + 1]; };
    const std::int64_t low = other((others - 1) / 2), high = other(others / 2);
    medians.push_back(low + (high - low) / 2);
  }
  return medians;
}

/// A rank's way to its part in a collective: from when its ranks were level to its own start.
struct Segment {
  std::uint32_t part;
  std::int64_t since_ns, until_ns;  ///< common clock
};

class LatenessMeter {
 public:
  LatenessMeter(const RankCollectives& all, std::span<const RankInput> ranks)
      : all_(all), ranks_(ranks), found_(ranks.size()), excess_(ranks.size()) {}

  std::vector<RankLateness> measure(double material_share) {
    for (const CollectiveMatch& match : all_.matches) add_waits(match);
    find_segments();
    add_excess();
    const std::vector<std::int64_t> awaited_ns = awaited_by_rank();
    for (std::size_t r = 0; r < ranks_.size(); ++r) judge(r, awaited_ns[r], material_share);
    return std::move(found_);
  }

 private:
  static bool tells_arrivals(const CollectiveMatch& match) {
    return match.comparable && match.synchronising;
  }

  /// Where a rank's recording can't be trusted, nobody is late.
  bool is_judged(const CollectiveMatch& match) const {
    const auto parts = all_.parts_of(match);
    return std::none_of(parts.begin(), parts.end(), [&](const CollectivePart& part) {
      const RankInput& rank = ranks_[part.rank];
      const Interval own{rank.table->ts_ns[part.call.row], rank.table->end_ns(part.call.row)};
      return 2 * covered_ns(rank.tree->recording.not_judged, own) > own.length_ns();
    });
  }

  bool is_usable(const CollectiveMatch& match) const {
    return tells_arrivals(match) && is_judged(match);
  }

  void add_waits(const CollectiveMatch& match) {
    if (!is_usable(match)) return;
    ++found_[match.latest_rank].times_last;
    std::vector<std::uint32_t> met;
    for (const CollectivePart& part : all_.parts_of(match)) {
      add_to(found_[part.rank].wait_ns, part.wait_ns);
      ++found_[part.rank].compared;
      met.push_back(part.rank);
    }
    std::vector<std::int64_t>& waits = waits_of_group_[std::move(met)];
    waits.resize(match.count);
    std::size_t place = 0;
    for (const CollectivePart& part : all_.parts_of(match)) add_to(waits[place++], part.wait_ns);
  }

  /// By rank: what its partners waited beyond what it waited itself. A rank is compared with those
  /// it shares a group with, group by group: a late rank's partners wait for it, and it waits less
  /// than the median of them does.
  std::vector<std::int64_t> awaited_by_rank() const {
    std::vector<std::int64_t> awaited_ns(ranks_.size());
    for (const auto& [group, waits] : waits_of_group_) {
      if (group.size() < 2) continue;
      const std::vector<std::int64_t> usual = others_medians(waits);
      for (std::size_t i = 0; i < group.size(); ++i) {
        add_to(awaited_ns[group[i]], usual[i] - waits[i]);
      }
    }
    return awaited_ns;
  }

  std::vector<std::vector<std::uint32_t>> parts_by_rank() const {
    std::vector<std::vector<std::uint32_t>> parts(ranks_.size());
    for (std::uint32_t i = 0; i < all_.parts.size(); ++i) parts[all_.parts[i].rank].push_back(i);
    return parts;
  }

  /// By part: does the rank compute for less than half of the transfer?
  std::vector<bool> find_waiting() const {
    std::vector<bool> waits(all_.parts.size());
    const auto parts = parts_by_rank();
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (parts[r].empty()) continue;
      const CoverIndex compute(build_gpu_intervals(*ranks_[r].table, *ranks_[r].tree).compute);
      for (const std::uint32_t i : parts[r]) {
        const std::int64_t end_ns = all_.parts[i].end_ns + all_.clocks.shift_ns(all_.parts[i].rank);
        const std::int64_t transfer_ns = all_.parts[i].transfer_ns();
        waits[i] = 2 * compute.covered_ns({end_ns - transfer_ns, end_ns}) <= transfer_ns;
      }
    }
    return waits;
  }

  /// Segments of one match stand beside each other.
  void find_segments() {
    const std::vector<bool> waits = find_waiting();
    std::map<std::vector<std::uint32_t>, std::vector<std::int64_t>> level;  // by ranks that meet
    for (const CollectiveMatch& match : all_.matches) {
      if (!tells_arrivals(match)) continue;
      std::vector<std::uint32_t> met;
      std::vector<std::int64_t> ends_ns;
      bool all_wait = true;
      for (std::uint32_t i = match.first; i < match.first + match.count; ++i) {
        met.push_back(all_.parts[i].rank);
        ends_ns.push_back(all_.parts[i].end_ns);
        all_wait = all_wait && waits[i];
      }
      // With two kernels of one rank in one match arrivals have no meaning.
      if (std::adjacent_find(met.begin(), met.end()) != met.end()) continue;
      const auto known = level.find(met);
      const std::int64_t begun_ns = known == level.end() ? recorded_since_ns(met) : 0;
      const bool judged = is_judged(match);
      for (std::uint32_t k = 0; judged && k < match.count; ++k) {
        const std::int64_t since_ns = known == level.end() ? begun_ns : known->second[k];
        // What lies before all ranks were recorded can't be attributed, so it does not count.
        const std::int64_t start_ns = all_.parts[match.first + k].start_ns;
        segments_.push_back({match.first + k, since_ns, std::max(start_ns, since_ns)});
      }
      if (all_wait) level.insert_or_assign(std::move(met), std::move(ends_ns));
    }
  }

  std::int64_t recorded_since_ns(const std::vector<std::uint32_t>& ranks) const {
    std::int64_t since_ns = all_.recorded[ranks.front()].start_ns;
    for (const std::uint32_t r : ranks) {
      since_ns = std::max(since_ns, all_.recorded[r].start_ns);
    }
    return since_ns;
  }

  const CollectivePart& part_of(const Segment& segment) const { return all_.parts[segment.part]; }

  /// What each segment was spent on.
  std::vector<NsByActivity> spent_by_cause() const {
    std::vector<NsByActivity> spent(segments_.size());
    std::vector<std::vector<std::size_t>> by_rank(ranks_.size());
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      by_rank[part_of(segments_[s]).rank].push_back(s);
    }
    for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
      if (by_rank[r].empty()) continue;
      const CoverByActivity activity = activity_of(ranks_[r]);
      const std::int64_t shift_ns = all_.clocks.shift_ns(r);
      for (const std::size_t s : by_rank[r]) {
        const Interval own{segments_[s].since_ns + shift_ns, segments_[s].until_ns + shift_ns};
        for (std::size_t c = 0; c < activity.size(); ++c) spent[s][c] = activity[c].covered_ns(own);
      }
    }
    return spent;
  }

  void add_excess() {
    const std::vector<NsByActivity> spent = spent_by_cause();
    for (std::size_t begin = 0; begin < segments_.size();) {
      const std::size_t end = begin + all_.matches[part_of(segments_[begin]).match].count;
      add_excess_of(begin, end, spent);
      begin = end;
    }
  }

  /// Of the segments of one match.
  void add_excess_of(std::size_t begin, std::size_t end, const std::vector<NsByActivity>& spent) {
    std::vector<std::int64_t> values(end - begin);
    const auto fill = [&](auto value_of) {
      for (std::size_t s = begin; s < end; ++s) values[s - begin] = value_of(s);
      return others_medians(values);
    };
    const auto starts = fill([&](std::size_t s) { return segments_[s].until_ns; });
    const auto is_behind = [&](std::size_t s) { return segments_[s].until_ns > starts[s - begin]; };
    for (std::size_t s = begin; s < end; ++s) {
      if (!is_behind(s)) continue;
      add_to(found_[part_of(segments_[s]).rank].lateness_ns,
             segments_[s].until_ns - starts[s - begin]);
    }
    for (std::size_t c = 0; c < kActivityCount; ++c) {
      const auto usual = fill([&](std::size_t s) { return spent[s][c]; });
      for (std::size_t s = begin; s < end; ++s) {
        if (!is_behind(s)) continue;
        add_to(excess_[part_of(segments_[s]).rank][c], spent[s][c] - usual[s - begin]);
      }
    }
  }

  /// The one that explains more than half of what the host was late.
  static IdleCause host_cause_of(const NsByActivity& excess, std::int64_t host_ns) {
    const auto most = std::max_element(
        kHostCauses.begin(), kHostCauses.end(),
        [&](IdleCause a, IdleCause b) { return excess[place_of(a)] < excess[place_of(b)]; });
    return excess[place_of(*most)] > host_ns / 2 ? *most : IdleCause::kHostWait;
  }

  void judge(std::size_t r, std::int64_t awaited_ns, double material_share) {
    RankLateness& rank = found_[r];
    std::copy_n(excess_[r].begin(), kLateCauseCount, rank.excess_ns.begin());
    const auto most = std::max_element(rank.excess_ns.begin(), rank.excess_ns.end());
    rank.cause = static_cast<LateCause>(most - rank.excess_ns.begin());
    if (rank.lateness_ns > 0) {
      const double share = static_cast<double>(*most) / static_cast<double>(rank.lateness_ns);
      rank.cause_share = std::clamp(share, 0.0, 1.0);
    }
    if (rank.cause == LateCause::kHost) rank.host_cause = host_cause_of(excess_[r], *most);
    if (rank.compared == 0) return;
    const std::int64_t late_ns = std::min(awaited_ns, rank.lateness_ns);
    const auto profiled_ns = static_cast<double>(ranks_[r].tree->profiled.length_ns());
    const bool is_late = profiled_ns > 0 && late_ns > 0 &&
                         static_cast<double>(late_ns) >= material_share * profiled_ns;
    const bool is_proven = rank.cause_share >= kProvenShare;
    rank.verdict = !is_late    ? RankVerdict::kOnTime
                   : is_proven ? RankVerdict::kStraggler
                               : RankVerdict::kLate;
  }

  const RankCollectives& all_;
  std::span<const RankInput> ranks_;
  std::vector<RankLateness> found_;
  std::vector<NsByActivity> excess_;  ///< by rank: see RankLateness::excess_ns
  std::vector<Segment> segments_;
  /// By the ranks that met, in the order of a match's parts: what each waited there.
  std::map<std::vector<std::uint32_t>, std::vector<std::int64_t>> waits_of_group_;
};

}  // namespace

std::string_view late_cause_name(LateCause cause) {
  static constexpr std::array<std::string_view, kLateCauseCount> kNames{"compute", "communication",
                                                                        "copies", "input", "host"};
  return kNames[static_cast<std::size_t>(cause)];
}

std::string_view rank_verdict_name(RankVerdict verdict) {
  static constexpr std::array<std::string_view, kRankVerdictCount> kNames{
      "unknown", "on time", "late, cause not proven", "straggler"};
  return kNames[static_cast<std::size_t>(verdict)];
}

std::vector<RankLateness> measure_lateness(const RankCollectives& all,
                                           std::span<const RankInput> ranks,
                                           double material_share) {
  return LatenessMeter(all, ranks).measure(material_share);
}

}  // namespace traceap
