// The program prints, logs or writes files between its steps, and goes on when that is done.
//
// Signal: Python frames of print, logging, progress bars, trackers, and of files that are written,
// flushed or synced. Cost: these frames while the GPU idles, without what they wait for it; where
// the run computes on the host all of them.

#include <algorithm>

#include "traceap/base/interrupt.hpp"
#include "traceap/detect/queries/host_work.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/ranges.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// Logging every Nth step leaves little of it, and a thread of its own nothing on the path.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdle, .low = 0.5, .best = 0.9};
/// Between two operators the host is silent for microseconds; what is written meanwhile takes
/// longer.
constexpr std::int64_t kMinSilenceNs = 1'000'000;
/// Once is no loop.
constexpr std::size_t kMinRepeats = 2;

/// Python's own ways to write text, and those of the usual trackers. Checkpoints write their file
/// in C++ (PyTorchFileWriter), which none of these names is.
bool is_logging_frame(std::string_view name) {
  if (name.starts_with("<built-in ")) {
    return is_any(name, {"<built-in function print>", "<built-in function fsync>"}) ||
           contains_any(
               name, {"method write of _io.", "method flush of _io.", "method writelines of _io."});
  }
  return contains_any(name, {"logging/__init__.py(", "torch/utils/tensorboard/", "tensorboardX/",
                             "tqdm/std.py(", "wandb/sdk/", "mlflow/", "loguru/_logger.py(",
                             "rich/console.py(", "rich/progress.py("});
}
/// A frame in which a checkpoint is written, however it reaches its file.
bool is_checkpoint_frame(std::string_view name) {
  return contains_any(name, {"torch/serialization.py(", "torch/distributed/checkpoint/",
                             "safetensors/", "pickle.py("});
}
/// A progress bar is around its loop: only what it writes counts, not the turns of the loop.
bool is_around_loop(std::string_view name) {
  return contains(name, "tqdm/std.py(") && contains(name, "): __iter__");
}

/// Without frames writing is silence like any other.
Finding judge_without_frames(const Signals& signals) {
  const IntervalSet silent = unexplained_idle_inside(signals, silent_idle(signals, kMinSilenceNs));
  if (!is_material(signals, total_length_ns(silent))) return absent(0.6);
  return abstain({"Python frames (with_stack)"});
}

/// Outermost frames that write, of threads that the run waits for, by start.
std::vector<Row> logging_rows(const Signals& signals) {
  const EventTable& table = signals.table;
  const LazyNames logging(table, is_logging_frame), checkpoint(table, is_checkpoint_frame),
      around(table, is_around_loop);
  const auto is_frame = [&](Row r) { return table.kind[r] == EventKind::kPythonFunction; };
  const std::vector<Row> checkpoints =
      outermost_ranges(signals, [&](Row r) { return is_frame(r) && checkpoint(r); });
  const std::vector<std::uint8_t> awaited = awaited_tracks(signals);
  std::vector<Row> rows = range_rows(
      outermost_ranges(signals, [&](Row r) { return is_frame(r) && logging(r) && !around(r); }));
  std::erase_if(rows, [&](Row r) {
    return checkpoints[r] != kNoRow || awaited[table.track[r]] == 0 || !in_profile(signals, r);
  });
  return rows;
}

/// Waits for the GPU inside the rows: host_sync_in_loop has them.
IntervalSet waits_inside(const Signals& signals, const std::vector<Row>& rows) {
  std::vector<Interval> waits;
  for (const Row r : rows) {
    for (const Row inner : subtree_rows(signals.tree, r)) {
      poll_interrupt();
      const ApiClass api = signals.api(inner);
      if (is_synchronisation(api) || is_copy_call(api)) {
        waits.push_back(signals.on_gpu_clock(interval_of(signals.table, inner)));
      }
    }
  }
  return make_union(std::move(waits));
}

Finding detect(const Signals& signals) {
  if (!signals.has_gpu && !signals.on_host) return abstain({"GPU events"});
  if (!has_python_frames(signals)) return judge_without_frames(signals);
  std::vector<Row> rows = logging_rows(signals);
  if (rows.size() < kMinRepeats) return absent();
  Draft draft(kSaving);
  draft.cost = set_difference(unexplained_idle_inside(signals, intervals_of(signals, rows)),
                              waits_inside(signals, rows));
  draft.count("writes", rows.size());
  add_per_step_fact(signals, draft, "per step", rows.size());
  draft.text("calls", most_frequent_names(signals.table, rows, 2));
  draft.evidence = std::move(rows);
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule synchronous_logging{
    .type = "synchronous_logging", .claim = Claim::kSpecific, .saving = kSaving, .detect = detect};
}

}  // namespace traceap
