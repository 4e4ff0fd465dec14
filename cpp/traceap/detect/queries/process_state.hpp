#pragma once
// What a recording says of the process beside its events: whether its threads had a processor,
// and when Python collected garbage (python/torchtraceap/record/process_state.py writes it).

#include <cstdint>
#include <optional>
#include <vector>

#include "traceap/detect/finding.hpp"

namespace traceap {

/// All on the GPU's clock, inside of the profiled time.
struct ProcessState {
  /// Is it known how long threads waited for a processor?
  bool has_threads = false;
  /// A thread that the run waits for (`awaited_tracks`) was ready to run, and had no processor.
  IntervalSet starved;
  /// It was kept from running by the limit of its control group.
  IntervalSet throttled;
  /// Processes that it started, such as those of a loader, had no processor: their mean.
  IntervalSet workers_starved;
  IntervalSet collecting;
  std::vector<Row> collections;       ///< as rows, by start
  std::int64_t ran_ns = 0;            ///< processor time of the thread that carries the steps
  std::int64_t sampled_ns = 0;        ///< time between its first and last sample
  std::optional<std::int64_t> cores;  ///< that the process may use
  std::optional<double> cpu_limit;    ///< of its control group, in processors
  std::int64_t most_runnable = 0;     ///< threads of the machine that ran or waited to
  std::int64_t steal_ns = 0;          ///< taken by the host of a virtual machine, all processors

  /// When the program could not run, whatever it wanted to do.
  IntervalSet kept_from_running() const { return set_union(starved, throttled); }
  IntervalSet explained() const { return set_union(kept_from_running(), collecting); }
};
/// O(events). Samples are placed as exactly as they lie: each wait within the time between two, in
/// silence of the host where there is some.
ProcessState find_process_state(const Signals& signals);

/// When no thread runs an operator, an API call, a loader or a compiler, on the GPU's clock.
IntervalSet host_silence_of(const Signals& signals);
/// The finding where nothing of it was recorded: unknown if the host falls silent for so long that
/// it could matter, else none that applies.
Finding without_process_state(const Signals& signals);

}  // namespace traceap
