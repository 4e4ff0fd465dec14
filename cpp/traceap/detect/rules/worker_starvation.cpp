// The loader's worker processes deliver late: the training process sits in __next__ of a
// multi-process DataLoader while the GPU has nothing to do, or where the run computes on the host.

#include <algorithm>

#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/process_state.hpp"
#include "traceap/detect/queries/ranges.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

constexpr SavingShares kSaving{.basis = SavingBasis::kIdle};

/// Taking a finished batch off the queue costs some hundred microseconds (unpickling of handles);
/// a fetch during which the GPU idled longer than this came late.
constexpr std::int64_t kLateNs = 1'000'000;

bool is_multi_process_fetch(std::string_view name) {
  return contains(name, "enumerate(DataLoader)") && contains(name, "__next__") &&
         !contains(name, "SingleProcess");
}

struct Fetch {
  Row row;
  Interval interval;  ///< GPU clock
  std::int64_t idle_ns;
};

std::vector<Fetch> find_fetches(const Signals& signals) {
  const EventTable& table = signals.table;
  const LazyNames is_fetch(table, is_multi_process_fetch);
  const auto outer = outermost_ranges(signals, [&](Row r) {
    return (table.kind[r] == EventKind::kUserAnnotation || table.kind[r] == EventKind::kCpuOp) &&
           is_fetch(r);
  });
  std::vector<Fetch> fetches;
  const CoverIndex idle(signals.gpu_idle);  // fetches of several threads may lie over each other
  for (Row r : range_rows(outer)) {
    const Interval interval = signals.on_gpu_clock(interval_of(table, r));
    fetches.push_back({r, interval, idle.covered_ns(interval)});
  }
  return fetches;
}

/// A slow first fetch with prompt ones behind it is the start of the workers, which a profile that
/// begins with an epoch always shows. Where another one takes the host half as long, and the GPU
/// still has work meanwhile, the loader is slow.
bool only_first_is_late(const std::vector<Fetch>& fetches) {
  const std::int64_t slow_ns =
      fetches.empty() ? 0 : std::max(kLateNs, fetches.front().interval.length_ns() / 2);
  return fetches.size() >= 3 && fetches.front().idle_ns >= kLateNs &&
         std::none_of(fetches.begin() + 1, fetches.end(), [&](const Fetch& f) {
           return f.idle_ns >= kLateNs || f.interval.length_ns() >= slow_ns;
         });
}

Finding detect(const Signals& signals) {
  if (!signals.has_host_ops) return abstain({"host operators"});
  std::vector<Fetch> fetches = find_fetches(signals);
  if (fetches.empty() || only_first_is_late(fetches)) return absent();
  Draft draft(kSaving);
  std::vector<Interval> intervals;
  std::vector<Row> rows;
  std::size_t late = 0;
  std::int64_t longest_ns = 0;
  for (const Fetch& fetch : fetches) {
    intervals.push_back(fetch.interval);
    rows.push_back(fetch.row);
    if (fetch.idle_ns < kLateNs) continue;
    ++late;
    longest_ns = std::max(longest_ns, fetch.idle_ns);
    draft.evidence.push_back(fetch.row);
  }
  draft.cost = with_lost_lead(signals, idle_of_fetches(signals, std::move(intervals)), rows);
  const ProcessState state = find_process_state(signals);
  draft.cost = set_difference(draft.cost, set_union(state.explained(), state.workers_starved));
  if (!signals.has_gpu && !signals.on_host) {
    draft.missing_signals.emplace_back("GPU events: the host's wait is counted as lost");
    draft.confidence = 0.6;  // the GPU may have had work queued
  }
  draft.count("fetches", fetches.size());
  if (late > 0) {
    draft.count("late fetches", late);
    draft.duration("longest wait", longest_ns);
  }
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule worker_starvation{
    .type = "worker_starvation", .saving = kSaving, .detect = detect};
}

}  // namespace traceap
