// The training process loads its batches itself while the GPU waits.
//
// Signal: torch's own range around the loader's __next__. Cost: the GPU idle in that range of which
// loading is the cause, so a loader whose work is hidden under queued kernels costs nothing. The
// multi-process loader is another type (worker_starvation). A run that computes on the host waits
// for all of it.

#include <algorithm>

#include "traceap/base/sums.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/process_state.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// With workers a fetch is a hand-over of a ready batch. Kineto's twin recordings of one ResNet-50
/// run (num_workers 0 and 4) spend 273-416 ms and under 10 ms in six fetches: at least 96 % goes
/// away when the workers keep up. Half of it is the careful figure where they hardly do.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdle, .low = 0.5, .best = 0.95};

/// Between two operators Python is silent for microseconds; making a batch takes a millisecond at
/// least where it matters.
constexpr std::int64_t kMinSilenceNs = 1'000'000;

/// enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__, torchdata's stateful twin too.
bool is_single_process_fetch(std::string_view name) {
  return contains(name, "DataLoader") && contains(name, "SingleProcess") &&
         contains(name, "__next__");
}
bool is_multi_process_fetch(std::string_view name) {
  return contains(name, "DataLoader") && contains(name, "MultiProcessing") &&
         contains(name, "__next__");
}

/// GPU idle while nothing was recorded on the host: where a loader that leaves no range (a
/// generator, another library) could hide. With steps only up to a step's first GPU event.
std::int64_t hiding_place_ns(const Signals& signals) {
  const EventTable& table = signals.table;
  const IntervalSet silent = silent_idle(signals, kMinSilenceNs);
  if (signals.tree.steps.empty()) return total_length_ns(silent);
  std::int64_t total = 0;
  for (const Step& step : signals.tree.steps) {
    const Row first = first_row_from(table, signals.tree.gpu_rows, step.start_ns);
    const std::int64_t end =
        first == kNoRow ? step.end_ns : std::min(step.end_ns, table.ts_ns[first]);
    add_to(total, covered_ns(silent, {step.start_ns, std::max(end, step.start_ns)}));
  }
  return total;
}

Finding judge_without_range(const Signals& signals, bool multi_process_loader) {
  if (multi_process_loader) return absent();
  if (!signals.has_host_ops) {
    if (!is_material(signals, total_length_ns(signals.gpu_idle))) return absent();
    return abstain({"host operators and annotations"});
  }
  if (has_python_frames(signals) || !is_material(signals, hiding_place_ns(signals)))
    return absent();
  if (!signals.has_gpu) return abstain({"DataLoader range", "GPU events"});
  return abstain({"DataLoader range"});
}

Finding detect(const Signals& signals) {
  const EventTable& table = signals.table;
  const LazyNames single(table, is_single_process_fetch);
  const LazyNames multi(table, is_multi_process_fetch);
  std::vector<Row> fetches = host_rows_named(table, signals.tree, single);
  // A loader on a thread beside the one that trains does not hold the training up.
  const bool main_known = !signals.tree.steps.empty() && !signals.tree.steps_inferred;
  std::erase_if(fetches, [&](Row r) {
    return !in_profile(signals, r) || (main_known && table.track[r] != signals.tree.main_track);
  });
  if (fetches.empty()) {
    return judge_without_range(signals, !host_rows_named(table, signals.tree, multi).empty());
  }
  std::vector<Interval> loading;
  for (Row r : fetches) loading.push_back(signals.on_gpu_clock(interval_of(table, r)));
  const IntervalSet spans = set_clip(make_union(loading), signals.profiled);
  const std::int64_t loading_ns = total_length_ns(spans);
  if (!signals.has_gpu && !signals.on_host) {
    if (!is_material(signals, loading_ns)) return absent();
    return abstain({"GPU events"});
  }
  Draft draft(kSaving);
  draft.cost = idle_of_fetches(signals, std::move(loading));
  const std::int64_t meanwhile_ns = total_length_ns(draft.cost);
  draft.cost = with_lost_lead(signals, std::move(draft.cost), fetches);
  draft.cost = set_difference(draft.cost, find_process_state(signals).explained());
  draft.evidence = fetches;
  draft.confidence = 0.97;  // torch writes the range itself
  draft.count("fetches", fetches.size());
  draft.duration("loader time", loading_ns);
  if (signals.has_gpu) draft.duration("GPU idle meanwhile", meanwhile_ns);
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule single_process_data_loading{
    .type = "single_process_data_loading", .paper_place = 1, .saving = kSaving, .detect = detect};
}

}  // namespace traceap
