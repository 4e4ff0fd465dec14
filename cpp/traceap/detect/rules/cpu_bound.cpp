// The GPU's queue runs empty while the host is busy launching: the host is the bottleneck.
//
// Cost: idle time with the cause "host wait" in steady state, merged over bursts of short kernels.
// Not counted: first calls (start of CUDA, lazy loading), what lies before the first kernel, and
// behind the last of a trace without steps. Waits for the GPU and copies, with the refill of the
// queue behind them, compilation, the allocator and the loader are causes of their own.

#include <algorithm>

#include "traceap/base/sums.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// Two gaps belong to one burst if the GPU work between them is shorter than this: less than any
/// launch costs the host (5 to 10 us), so it vanishes beside the gaps, and the cost stays what is
/// lost rather than what passes.
constexpr std::int64_t kBurstKernelNs = 2'000;
/// A first call is cold if it takes this many times the mean of the later calls of the same name,
/// and at least this long: CUDA's lazy loading takes milliseconds, a warm call microseconds.
constexpr double kColdRatio = 10.0;
constexpr std::int64_t kColdNs = 1'000'000;
constexpr std::int64_t kMinLaterCalls = 3;
/// The host is launching, or at work for the next launch: without a single operator or API call on
/// any thread for this long it does something else (see host_silence).
constexpr std::int64_t kSilenceNs = 10'000'000;
/// Steps of one loop differ, but hardly by a factor of two in what the host makes the GPU wait.
constexpr double kOddStepRatio = 2.0;
/// CUDA graphs or larger batches take away nearly all launch gaps, small fixes some.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdle, .low = 0.2, .best = 0.7};

struct NameTimes {
  Row first = kNoRow;
  std::int64_t later_calls = 0, later_ns = 0;
};

bool is_cold(const EventTable& table, const NameTimes& times) {
  if (times.first == kNoRow || times.later_calls < kMinLaterCalls) return false;
  const double mean = static_cast<double>(times.later_ns) / static_cast<double>(times.later_calls);
  const std::int64_t first_ns = table.dur_ns[times.first];
  return first_ns >= kColdNs && static_cast<double>(first_ns) >= kColdRatio * mean;
}

/// Host time of first calls that were far slower than later ones, on the GPU's clock.
IntervalSet cold_calls(const Signals& signals) {
  const EventTable& table = signals.table;
  std::vector<NameTimes> names(table.strings.size());
  for (Row r = 0; r < table.size(); ++r) {  // by time, over all threads
    if (signals.tree.host_position[r] == kNoRow) continue;
    if (table.kind[r] != EventKind::kCpuOp && !is_api_call(table.kind[r])) continue;
    if (is_synchronisation(signals.api(r))) continue;  // long because the GPU works
    NameTimes& times = names[table.name[r]];
    if (times.first == kNoRow) {
      times.first = r;
    } else {
      ++times.later_calls;
      add_to(times.later_ns, table.dur_ns[r]);
    }
  }
  std::vector<Interval> cold;
  for (const NameTimes& times : names) {
    if (is_cold(table, times)) {
      cold.push_back(signals.on_gpu_clock(interval_of(table, times.first)));
    }
  }
  return make_union(std::move(cold));
}

/// Where steady state can be. The GPU is idle before its first event because the recording began,
/// or because nothing was queued yet: that says nothing of the loop. Behind the last event of a
/// trace without steps the program ends.
Interval steady_bounds(const Signals& signals) {
  const IntervalSet busy = set_clip(signals.gpu.busy, signals.profiled);
  if (busy.empty()) return {signals.profiled.start_ns, signals.profiled.start_ns};
  const bool steps = !signals.tree.steps.empty();
  return {busy.front().start_ns, steps ? signals.profiled.end_ns : busy.back().end_ns};
}

/// The first step of a recording begins with an empty queue, because starting the profiler waits
/// for the GPU. Where two more steps show that the loop is far less idle than that, it is left out.
IntervalSet without_odd_first_step(const Signals& signals, IntervalSet gaps) {
  const auto& steps = signals.tree.steps;
  if (steps.size() < 3) return gaps;
  const Interval first{steps.front().start_ns, steps.front().end_ns};
  const Interval rest{steps[1].start_ns, signals.profiled.end_ns};
  const auto share = [&](Interval bounds) {
    return static_cast<double>(covered_ns(gaps, bounds)) /
           static_cast<double>(std::max<std::int64_t>(bounds.length_ns(), 1));
  };
  if (share(first) <= kOddStepRatio * share(rest)) return gaps;
  return set_difference(gaps, std::span<const Interval>(&first, 1));
}

/// Joins gaps that only work shorter than kBurstKernelNs separates.
std::vector<Interval> merge_bursts(const IntervalSet& gaps) {
  std::vector<Interval> bursts;
  for (const Interval& gap : gaps) {
    if (!bursts.empty() && gap.start_ns - bursts.back().end_ns <= kBurstKernelNs) {
      bursts.back().end_ns = gap.end_ns;
    } else {
      bursts.push_back(gap);
    }
  }
  return bursts;
}

/// The operator that launches what ends the gap says more than a range around the whole step.
Row telling_row(const Signals& signals, const IdleInterval& idle) {
  const auto is_operator = [&](Row r) {
    return r != kNoRow && signals.table.kind[r] == EventKind::kCpuOp &&
           is_operator_name(signals.table.name_of(r));
  };
  if (is_operator(idle.explained_by) || idle.next_gpu_row == kNoRow) return idle.explained_by;
  const Row op = signals.tree.op[idle.next_gpu_row];
  return is_operator(op) ? op : idle.explained_by;
}

/// Share of kernels that ran for less time than the call that launched them.
double short_kernel_share(const Signals& signals) {
  std::int64_t linked = 0, shorter = 0;
  for (Row r : signals.tree.linked_gpu_rows) {
    const Row launch = signals.tree.launch[r];
    if (launch == kNoRow || signals.table.kind[r] != EventKind::kKernel) continue;
    ++linked;
    if (signals.table.dur_ns[r] < signals.table.dur_ns[launch]) ++shorter;
  }
  return linked == 0 ? 0.0 : static_cast<double>(shorter) / static_cast<double>(linked);
}

Finding detect(const Signals& signals) {
  if (!signals.has_gpu) return abstain({"GPU events"});
  const std::int64_t idle_ns = total_length_ns(signals.gpu_idle);
  const bool host_seen = signals.has_host_ops || !signals.api_rows.empty();
  if (!host_seen || signals.tree.linked_gpu_rows.empty()) {
    if (!is_material(signals, idle_ns)) return absent();
    return abstain({host_seen ? "launch calls of GPU events" : "host events"});
  }
  Draft draft(kSaving);
  std::vector<Interval> waits;
  for (const IdleInterval& idle : signals.idle.intervals) {
    if (idle.cause != IdleCause::kHostWait) continue;
    waits.push_back(idle.interval);
    if (const Row row = telling_row(signals, idle); row != kNoRow) {
      draft.evidence.push_back(row);
      draft.evidence_weights.push_back(idle.interval.length_ns());
    }
  }
  IntervalSet gaps = set_clip(make_union(std::move(waits)), steady_bounds(signals));
  gaps = set_difference(gaps, cold_calls(signals));
  gaps = set_difference(gaps, silent_idle(signals, kSilenceNs));
  gaps = without_odd_first_step(signals, std::move(gaps));
  draft.cost = merge_bursts(gaps);
  // Without steps the profile may hold more than the loop.
  draft.confidence = signals.tree.steps.empty() ? 0.7 : 0.9;
  draft.count("gaps", gaps.size());
  draft.duration("GPU idle in them", total_length_ns(gaps));
  draft.share("kernels shorter than their launch", short_kernel_share(signals));
  // Launch calls alone tell that the queue was empty, not what kept the host from launching.
  return finish_told_by_operators(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule cpu_bound{.type = "cpu_bound",
                                .paper_place = 5,
                                .claim = Claim::kLeftOver,
                                .saving = kSaving,
                                .detect = detect};
}

}  // namespace traceap
