// A control group had used up its share of the processors, and the kernel kept the run from going
// on until the next period.

#include "traceap/detect/queries/process_state.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

constexpr SavingShares kSaving{.basis = SavingBasis::kIdle};

Finding detect(const Signals& signals) {
  const ProcessState state = find_process_state(signals);
  if (!state.has_threads) return without_process_state(signals);
  Draft draft(kSaving);
  draft.cost = idle_inside(signals, state.throttled);
  if (draft.cost.empty()) return absent();
  draft.confidence = 0.9;  // counted for the group as a whole
  if (state.cpu_limit) draft.rate("limit", *state.cpu_limit);
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule cpu_throttled{
    .type = "cpu_throttled", .claim = Claim::kRootCause, .saving = kSaving, .detect = detect};
}

}  // namespace traceap
