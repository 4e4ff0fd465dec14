// A compiled function checks its guards before each call, and the GPU has nothing to do meanwhile.
//
// TorchDynamo looks up which compiled version fits the arguments, the globals and the modules that
// the code read when it was compiled. Cost: idle time of the GPU inside these look-ups. One that is
// hidden behind queued work costs nothing.

#include <string>

#include "traceap/base/interrupt.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// Skipping the guards takes away all of a look-up but some microseconds; fewer guards, a part.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdle, .low = 0.2, .best = 0.8};

Finding detect(const Signals& signals) {
  if (!signals.has_gpu) return abstain({"GPU events"});
  if (!signals.has_host_ops) return abstain({"host operators"});
  Draft draft(kSaving);
  std::vector<Interval> lookups;
  const LazyNames is_lookup(signals.table, [](std::string_view name) {
    return name.starts_with("TorchDynamo Cache Lookup");
  });
  for (const Row row : signals.tree.host_rows) {
    poll_interrupt();
    if (!is_lookup(row) || !in_profile(signals, row)) continue;
    lookups.push_back(signals.on_gpu_clock(interval_of(signals.table, row)));
    draft.evidence.push_back(row);
  }
  draft.count("look-ups", lookups.size());
  add_per_step_fact(signals, draft, "per step", lookups.size());
  draft.cost = set_intersection(make_union(std::move(lookups)),
                                idle_with_cause(signals, {IdleCause::kHostWait}));
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule guard_evaluation{.type = "guard_evaluation",
                                       .claim = Claim::kSpecific,
                                       .subject = Subject::kCompiledCode,
                                       .saving = kSaving,
                                       .detect = detect};
}

}  // namespace traceap
