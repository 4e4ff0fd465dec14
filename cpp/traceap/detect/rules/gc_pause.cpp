// Python's collector looks for garbage while the GPU has nothing to do, or in a run that computes
// on the host: no other code of the process runs meanwhile.

#include <algorithm>

#include "traceap/detect/queries/process_state.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

constexpr SavingShares kSaving{.basis = SavingBasis::kIdle, .low = 0.5, .best = 0.9};

Finding detect(const Signals& signals) {
  const ProcessState state = find_process_state(signals);
  if (state.collections.empty()) {
    return state.has_threads ? absent() : without_process_state(signals);
  }
  Draft draft(kSaving);
  std::vector<Interval> holds;
  std::int64_t longest_ns = 0;
  const ArgReader generation(signals.table, "generation");
  std::int64_t full = 0;
  for (const Row r : state.collections) {
    holds.push_back(interval_of(signals.table, r));
    longest_ns = std::max(longest_ns, signals.table.dur_ns[r]);
    if (generation.integer(r).value_or(0) >= 2) ++full;
  }
  // Without a processor nothing is collected.
  draft.cost = set_difference(idle_inside(signals, state.collecting), state.kept_from_running());
  if (signals.has_gpu)
    draft.cost = with_lost_lead(signals, std::move(draft.cost), std::move(holds));
  draft.evidence = state.collections;
  draft.confidence = 0.95;  // Python itself says when it collects
  draft.count("collections", state.collections.size());
  if (full > 0) draft.count("full collections", full);
  draft.duration("longest", longest_ns);
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule gc_pause{
    .type = "gc_pause", .claim = Claim::kRootCause, .saving = kSaving, .detect = detect};
}

}  // namespace traceap
