#include "traceap/detect/queries/served.hpp"

#include <algorithm>
#include <string>

#include "traceap/base/interrupt.hpp"
#include "traceap/detect/finding.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/ranges.hpp"
#include "traceap/detect/queries/stalls.hpp"

namespace traceap {
namespace {

IterationPhase phase_of(Role role) {
  switch (role) {
    case Role::kPrefill:
      return IterationPhase::kPrefill;
    case Role::kDecode:
      return IterationPhase::kDecode;
    case Role::kDiffusion:
      return IterationPhase::kDiffusion;
    default:
      return IterationPhase::kUnmarked;
  }
}

/// Is it an engine that serves tokens? Plain inference shows itself by its operators alone.
bool serves_tokens(const EventTable& table, const Workload& workload) {
  const bool told = workload.role == Role::kPrefill || workload.role == Role::kDecode ||
                    workload.role == Role::kMixed;
  return told || (workload.role == Role::kInference && workload.role_row != kNoRow &&
                  !table.name_of(workload.role_row).starts_with("aten::"));
}

/// Adds what each iteration ran: what was called within its range.
void add_work(const EventTable& table, const EventTree& tree,
              std::vector<ServedIteration>& iterations) {
  std::vector<std::vector<Row>> replays(iterations.size());
  for (const Row row : tree.gpu_rows) {
    poll_interrupt();
    const Row call = tree.launch[row];
    if (call == kNoRow) continue;
    const auto behind = std::partition_point(
        iterations.begin(), iterations.end(),
        [&](const ServedIteration& i) { return i.host.start_ns <= table.ts_ns[call]; });
    if (behind == iterations.begin()) continue;
    ServedIteration& iteration = *std::prev(behind);
    if (table.ts_ns[call] > iteration.host.end_ns) continue;
    const Interval own = interval_of(table, row);
    iteration.gpu =
        iteration.gpu_rows.empty()
            ? own
            : Interval{iteration.gpu.start_ns, std::max(iteration.gpu.end_ns, own.end_ns)};
    iteration.gpu_rows.push_back(row);
    if (tree.api[call] != ApiClass::kGraphLaunch) {
      iteration.kernels += table.kind[row] == EventKind::kKernel;
      continue;
    }
    auto& calls = replays[static_cast<std::size_t>(std::prev(behind) - iterations.begin())];
    if (calls.empty() || calls.back() != call) calls.push_back(call);
  }
  for (std::size_t i = 0; i < iterations.size(); ++i) {
    std::sort(replays[i].begin(), replays[i].end());
    iterations[i].graphs = static_cast<std::size_t>(
        std::unique(replays[i].begin(), replays[i].end()) - replays[i].begin());
  }
}

}  // namespace

Served find_served(const EventTable& table, const EventTree& tree) {
  Served served;
  const Role role = tree.workload.role;
  if (role == Role::kTraining || tree.gpu_rows.empty()) return served;
  const IterationSpans found = find_iteration_spans(table, tree);
  served.marked = found.source == IterationSource::kAnnotations;
  if (found.source == IterationSource::kTrace ||
      !(served.marked || serves_tokens(table, tree.workload)))
    return served;
  served.track = served.marked ? table.track[found.rows.front()] : tree.main_track;
  for (std::size_t i = 0; i < found.spans.size(); ++i) {
    ServedIteration iteration{
        .mark = std::nullopt, .phase = phase_of(role), .host = found.spans[i]};
    if (served.marked) {
      iteration.row = found.rows[i];
      iteration.mark = read_iteration_name(table.name_of(iteration.row));
      iteration.phase = iteration.mark->phase;
    }
    served.iterations.push_back(std::move(iteration));
  }
  add_work(table, tree, served.iterations);
  std::erase_if(served.iterations, [](const ServedIteration& i) { return i.gpu_rows.empty(); });
  return served;
}

std::vector<Bubble> find_bubbles(const Signals& signals) {
  const std::vector<ServedIteration>& iterations = signals.served.iterations;
  const IntervalSet causes = idle_with_cause(
      signals, {IdleCause::kHostWait, IdleCause::kSynchronization, IdleCause::kMemoryCopy});
  std::vector<Bubble> bubbles;
  std::int64_t end_ns = 0;
  for (std::size_t i = 0; i < iterations.size(); ++i) {
    const Interval gpu = iterations[i].gpu;
    if (i > 0 && end_ns < gpu.start_ns) {
      Bubble bubble{.iteration = i, .bounds = {end_ns, gpu.start_ns}, .idle = {}, .of_host = {}};
      bubble.idle = set_clip(signals.gpu_idle, bubble.bounds);
      bubble.of_host = set_clip(causes, bubble.bounds);
      if (!bubble.idle.empty()) bubbles.push_back(std::move(bubble));
    }
    end_ns = i > 0 ? std::max(end_ns, gpu.end_ns) : gpu.end_ns;
  }
  return bubbles;
}

namespace {

/// Does the call that makes the copy hold the host until it is done?
bool is_awaited(const Signals& signals, const Copy& copy) {
  return copy.sync != kNoRow || copy.kind.memory == HostMemory::kPageable ||
         signals.api(copy.launch) == ApiClass::kCopy;
}

/// Awaited copies to the host by the thread that launches the iterations.
std::vector<const Copy*> awaited_reads(const Signals& signals) {
  std::vector<const Copy*> reads;
  for (const Copy& copy : signals.copies) {
    if (copy.kind.direction != CopyDirection::kDeviceToHost || copy.launch == kNoRow) continue;
    if (signals.table.track[copy.launch] != signals.served.track) continue;
    if (is_awaited(signals, copy)) reads.push_back(&copy);
  }
  return reads;
}

bool belongs_to_reading(ServingWork work) {
  return work == ServingWork::kSampling || work == ServingWork::kTransfer ||
         work == ServingWork::kLaunch || work == ServingWork::kSynchronization;
}
bool is_without_name(ServingWork work) {
  return work == ServingWork::kNotRecorded || work == ServingWork::kOtherHostWork;
}

/// Do the requests of an iteration go on in the next one, so that nobody waits for clients?
bool goes_on(const ServedIteration& before, const ServedIteration& iteration) {
  if (!iteration.is_decode() || !before.generates()) return false;
  if (!iteration.mark || !before.mark) return false;
  const auto now = iteration.mark->requests, then = before.mark->requests;
  return !now || !then || *now <= *then;
}

bool is_draft_name(std::string_view name) {
  const std::size_t function = name.rfind("): ");  // of "file.py(3): function"
  if (function != std::string_view::npos) name.remove_prefix(function);
  const std::string lower = to_lower(name);
  return contains_any(lower, {"draft", "propose"}) && !contains(lower, "verify");
}

}  // namespace

std::vector<BubbleCost> cost_of_bubbles(const Signals& signals) {
  const std::vector<ServedIteration>& iterations = signals.served.iterations;
  const IntervalSet drafting = make_union(find_drafts(signals).windows);
  const IntervalSet computing = set_union(signals.gpu.compute, signals.gpu.communication);
  std::vector<BubbleCost> costs;
  std::vector<Interval> stretches;
  for (Bubble& bubble : find_bubbles(signals)) {
    if (!iterations[bubble.iteration].generates()) continue;
    bubble.of_host = set_difference(bubble.of_host, drafting);
    stretches.insert(stretches.end(), bubble.of_host.begin(), bubble.of_host.end());
    costs.push_back({.bubble = std::move(bubble), .host_work = {}, .reading = {}, .reads = {}});
  }
  const std::vector<ServingPiece> pieces =
      split_by_serving_work(signals.table, signals.tree, signals.served.track, stretches);
  const std::vector<const Copy*> reads = awaited_reads(signals);
  std::int64_t reading_ns = 0, other_ns = 0;
  auto piece = pieces.begin();
  for (BubbleCost& cost : costs) {
    const Interval bounds = cost.bubble.bounds;
    std::vector<Interval> reading;
    for (const Copy* copy : reads) {
      const std::int64_t returned_ns = signals.on_gpu_clock(copy->host).end_ns;
      if (returned_ns <= bounds.start_ns || returned_ns >= bounds.end_ns) continue;
      cost.reads.push_back(copy->sync != kNoRow ? copy->sync : copy->launch);
      reading.push_back(interval_of(signals.table, copy->row));
    }
    const bool waits_for_scheduler =
        goes_on(iterations[cost.bubble.iteration - 1], iterations[cost.bubble.iteration]);
    std::int64_t named_reading_ns = 0, unnamed_ns = 0, named_ns = 0;
    for (; piece != pieces.end() && piece->interval.start_ns < bounds.end_ns; ++piece) {
      if (piece->work == ServingWork::kWaiting && !waits_for_scheduler) continue;
      std::int64_t& sum = is_without_name(piece->work)      ? unnamed_ns
                          : belongs_to_reading(piece->work) ? named_reading_ns
                                                            : named_ns;
      sum += piece->interval.length_ns();
      cost.host_work.push_back(*piece);
      reading.push_back(piece->interval);
    }
    const bool reads_tokens = !cost.reads.empty();
    const bool refills = reads_tokens && unnamed_ns <= kRefillBoundNs;
    reading_ns += (reads_tokens ? named_reading_ns : 0) + (refills ? unnamed_ns : 0);
    other_ns += named_ns + (reads_tokens ? 0 : named_reading_ns) + (refills ? 0 : unnamed_ns);
    cost.reading = set_difference(make_union(std::move(reading)), computing);
  }
  for (BubbleCost& cost : costs) {
    if (reading_ns > other_ns && !cost.reads.empty()) {
      cost.host_work.clear();
    } else {
      cost.reading.clear();
      cost.reads.clear();
    }
  }
  return costs;
}

Drafts find_drafts(const Signals& signals) {
  Drafts drafts;
  if (signals.served.iterations.empty()) return drafts;
  const LazyNames is_draft(signals.table, is_draft_name);
  const std::vector<Row> outer = outermost_ranges(signals, [&](Row r) {
    return signals.table.track[r] == signals.served.track && !is_api_call(signals.table.kind[r]) &&
           is_draft(r);
  });
  for (const RangeLaunches& draft : launches_by_range(signals, outer)) {
    drafts.ranges.push_back(draft.range);
    drafts.windows.push_back(signals.on_gpu_clock(interval_of(signals.table, draft.range)));
    if (!draft.gpu_rows.empty()) {
      drafts.windows.push_back(extent_of(signals.table, draft.gpu_rows));
    }
  }
  drafts.idle = set_intersection(
      make_union(drafts.windows),
      idle_with_cause(signals, {IdleCause::kHostWait, IdleCause::kSynchronization,
                                IdleCause::kMemoryCopy, IdleCause::kLaunchLatency}));
  return drafts;
}

Row evidence_of(const Signals& signals, const ServedIteration& iteration) {
  return iteration.row != kNoRow ? iteration.row : signals.tree.launch[iteration.gpu_rows.front()];
}

}  // namespace traceap
