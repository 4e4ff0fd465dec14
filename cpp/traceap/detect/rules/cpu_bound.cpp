// The GPU's queue runs empty while the host is busy launching: the host is the bottleneck.
//
// Cost: idle time with the cause "host wait" in steady state, merged over bursts of short kernels.
// Not counted: first calls (start of CUDA, lazy loading), what lies before the first kernel, and
// behind the last of a trace without steps. Waits for the GPU and copies, with the refill of the
// queue behind them, compilation, the allocator and the loader are causes of their own.

#include <algorithm>
#include <string>
#include <unordered_map>

#include "traceap/analysis/idle/host_self.hpp"
#include "traceap/base/sums.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/queries/value_reads.hpp"
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
/// Steps of one loop differ, but hardly by a factor of two in what the host makes the GPU wait.
constexpr double kOddStepRatio = 2.0;
/// With two more steps the first can be compared with the others.
constexpr std::size_t kCheckedSteps = 3;
/// CUDA graphs or larger batches take away nearly all launch gaps, small fixes some.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdle, .low = 0.2, .best = 0.7};

/// Work of the host that is named: at most so many, each with this share of the gaps or more, its
/// name cut to what a line holds.
constexpr std::size_t kToldNames = 2;
constexpr double kToldShare = 0.1;
constexpr std::size_t kToldChars = 80;

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
/// or because nothing was queued yet: that says nothing of the loop, unless the other steps are as
/// idle (see without_odd_first_step). Behind the last event of a trace without steps the program
/// ends.
Interval steady_bounds(const Signals& signals) {
  const IntervalSet busy = set_clip(signals.gpu.busy, signals.profiled);
  if (busy.empty()) return {signals.profiled.start_ns, signals.profiled.start_ns};
  const bool steps = !signals.tree.steps.empty();
  const bool first_step_is_checked =
      signals.tree.steps.size() >= kCheckedSteps && !signals.tree.steps_inferred;
  const std::int64_t start_ns =
      first_step_is_checked ? signals.profiled.start_ns : busy.front().start_ns;
  return {start_ns, steps ? signals.profiled.end_ns : busy.back().end_ns};
}

/// The first step of a recording begins with an empty queue, because starting the profiler waits
/// for the GPU. Where two more steps show that the loop is far less idle than that, it is left out.
IntervalSet without_odd_first_step(const Signals& signals, IntervalSet gaps) {
  const auto& steps = signals.tree.steps;
  if (steps.size() < kCheckedSteps) return gaps;
  const Interval first{steps.front().start_ns, steps.front().end_ns};
  const Interval rest{steps[1].start_ns, signals.profiled.end_ns};
  const auto share = [&](Interval bounds) {
    return static_cast<double>(covered_ns(gaps, bounds)) /
           static_cast<double>(std::max<std::int64_t>(bounds.length_ns(), 1));
  };
  if (share(first) <= kOddStepRatio * share(rest)) return gaps;
  return set_difference(gaps, std::span<const Interval>(&first, 1));
}

/// Do too few steps have their records to tell whether the first is odd, and is the cost its own?
bool hangs_on_first_step(const Signals& signals, const IntervalSet& gaps) {
  const auto& steps = signals.tree.steps;
  if (steps.empty() || steps.size() >= kCheckedSteps || !lacks_records(signals)) return false;
  const Interval first{steps.front().start_ns, steps.front().end_ns};
  return !is_material(signals, total_length_ns(gaps) - covered_ns(gaps, first));
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

/// Ranges, Python frames and what else bears a name of its own, such as the look-up of a compiled
/// region's guards: what the host did in the gaps, beside operators and calls.
bool is_named_work(const Signals& signals, Row row) {
  const EventKind kind = signals.table.kind[row];
  if (kind == EventKind::kPythonFunction) return true;
  if (kind != EventKind::kUserAnnotation && kind != EventKind::kCpuOp) return false;
  const std::uint32_t step = signals.tree.step[row];
  const bool marks_step = step != kNoStep && signals.tree.steps[step].row == row;
  return !marks_step && !is_operator_name(signals.table.name_of(row));
}

/// What of the gaps the main thread spent in work of each name.
struct NamedWork {
  StringId name = kNoString;
  Row row = kNoRow;  ///< where it took longest
  std::int64_t row_ns = 0, total_ns = 0;
};

/// By name, the longest first.
std::vector<NamedWork> named_work_in(const Signals& signals, const IntervalSet& gaps) {
  if (signals.tree.main_track == kNoTrack || gaps.empty()) return {};
  const CoverIndex inside(gaps);
  std::unordered_map<StringId, NamedWork> by_name;
  std::unordered_map<Row, std::int64_t> by_row;
  visit_self_time(signals.table, signals.tree, signals.tree.main_track,
                  [&](Row row, Interval piece) {
                    const std::int64_t ns = inside.covered_ns(signals.on_gpu_clock(piece));
                    if (ns > 0) by_row[row] += ns;
                  });
  for (const auto& [row, ns] : by_row) {
    if (!is_named_work(signals, row)) continue;
    NamedWork& work = by_name[signals.table.name[row]];
    work.name = signals.table.name[row];
    work.total_ns += ns;
    if (ns > work.row_ns || (ns == work.row_ns && row < work.row)) {
      work.row_ns = ns;
      work.row = row;
    }
  }
  std::vector<NamedWork> sorted;
  for (const auto& [name, work] : by_name) sorted.push_back(work);
  std::sort(sorted.begin(), sorted.end(), [&](const NamedWork& a, const NamedWork& b) {
    if (a.total_ns != b.total_ns) return a.total_ns > b.total_ns;
    return signals.table.strings[a.name] < signals.table.strings[b.name];
  });
  return sorted;
}

/// Names what the host did for most of the gaps. Returns how long it did something with a name.
std::int64_t tell_named_work(const Signals& signals, const IntervalSet& gaps, Draft& draft) {
  const std::vector<NamedWork> works = named_work_in(signals, gaps);
  const std::int64_t gaps_ns = total_length_ns(gaps);
  std::int64_t named_ns = 0;
  for (std::size_t i = 0; i < works.size(); ++i) {
    named_ns += works[i].total_ns;
    const auto share = static_cast<double>(works[i].total_ns) / static_cast<double>(gaps_ns);
    if (i >= kToldNames || share < kToldShare) continue;
    const std::string name(signals.table.strings[works[i].name].substr(0, kToldChars));
    if (i == 0) {
      draft.text("host work", name);
      draft.duration("time of host work", works[i].total_ns);
    } else {
      draft.text("more host work", name);
      draft.duration("time of more host work", works[i].total_ns);
    }
    draft.evidence.push_back(works[i].row);
    draft.evidence_weights.push_back(works[i].total_ns);
  }
  return named_ns;
}

Finding detect(const Signals& signals) {
  if (!signals.has_gpu) return abstain({"GPU events"});
  const std::int64_t all_idle_ns = total_length_ns(signals.gpu_idle);
  const bool host_seen = signals.has_host_ops || !signals.api_rows.empty();
  if (!host_seen || signals.tree.linked_gpu_rows.empty()) {
    if (!is_material(signals, all_idle_ns)) return absent();
    return abstain({host_seen ? "launch calls of GPU events" : "host events"});
  }
  Draft draft(kSaving);
  std::vector<Interval> waits;
  for (const IdleInterval& wait : signals.idle.intervals) {
    if (wait.cause != IdleCause::kHostWait) continue;
    waits.push_back(wait.interval);
    if (const Row row = telling_row(signals, wait); row != kNoRow) {
      draft.evidence.push_back(row);
      draft.evidence_weights.push_back(wait.interval.length_ns());
    }
  }
  // Behind a wait a host that is always late is late as well: see Note [Usual gap].
  const ReadCost reads = cost_of_reads(signals, signals.value_reads.reads);
  const IntervalSet idle =
      set_union(make_union(std::move(waits)), usual_gaps_of(reads.stalls, reads.usual_gap_ns));
  IntervalSet gaps = set_clip(idle, steady_bounds(signals));
  gaps = set_difference(gaps, cold_calls(signals));
  gaps = set_difference(gaps, long_silences(signals));
  gaps = without_odd_first_step(signals, std::move(gaps));
  if (is_material(signals, total_length_ns(gaps)) && hangs_on_first_step(signals, gaps)) {
    return abstain({"GPU records of the launches"});
  }
  draft.cost = merge_bursts(gaps);
  // Without steps the profile may hold more than the loop.
  draft.confidence = signals.tree.steps.empty() ? 0.7 : 0.9;
  draft.count("gaps", gaps.size());
  draft.duration("GPU idle in them", total_length_ns(gaps));
  draft.share("kernels shorter than their launch", short_kernel_share(signals));
  // Launch calls alone tell that the queue was empty, not what kept the host from launching.
  const std::int64_t named_ns = tell_named_work(signals, idle, draft);
  if (2 * named_ns >= total_length_ns(idle)) {
    if (!signals.has_operators) {
      draft.missing_signals.emplace_back("host operators");
      draft.confidence = 0.7;  // they may be at work inside of these frames and ranges
    }
    return finish_finding(signals, std::move(draft));
  }
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
