// The run was ready to go on and had no processor: other processes of the machine, or more threads
// than processors. A recording of ours says so; an event alone never does.

#include "traceap/detect/queries/process_state.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

constexpr SavingShares kSaving{.basis = SavingBasis::kIdle};

/// When workers of a loader had no processor while the run waited for them.
IntervalSet waits_for_workers(const Signals& signals, const ProcessState& state) {
  if (state.workers_starved.empty()) return {};
  return set_intersection(idle_with_cause(signals, {IdleCause::kDataLoading}),
                          state.workers_starved);
}

Finding detect(const Signals& signals) {
  const ProcessState state = find_process_state(signals);
  if (!state.has_threads) return without_process_state(signals);
  Draft draft(kSaving);
  const IntervalSet of_workers = waits_for_workers(signals, state);
  draft.cost = idle_inside(signals, set_union(state.starved, of_workers));
  if (draft.cost.empty()) return absent();
  draft.confidence = 0.95;  // counted by the kernel
  if (state.cores && state.most_runnable > *state.cores) {
    draft.count("runnable", state.most_runnable);
    draft.count("processors", *state.cores);
  }
  if (state.steal_ns > 0) draft.duration("stolen", state.steal_ns);
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule cpu_starvation{
    .type = "cpu_starvation", .claim = Claim::kRootCause, .saving = kSaving, .detect = detect};
}

}  // namespace traceap
