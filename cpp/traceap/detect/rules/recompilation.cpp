// torch.compile compiles again in steady state: shapes, guards or modules changed.

#include <algorithm>

#include "traceap/detect/queries/compile.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

constexpr SavingShares kSaving{.basis = SavingBasis::kIdle};

Finding detect(const Signals& signals) {
  if (!signals.has_host_ops) return abstain({"host operators"});
  const CompileRanges ranges = find_compile_ranges(signals);
  if (ranges.again.empty()) {
    // Since PyTorch 2.1 every phase of compilation has its range; older traces of compiled code
    // show none, and no trace shows what a compiler outside of PyTorch does.
    return absent(has_compiled_code(signals) ? 0.7 : 0.95);
  }
  Draft draft(kSaving);
  std::vector<Interval> intervals;
  std::int64_t longest_ns = 0;
  for (Row r : ranges.again) {
    intervals.push_back(signals.on_gpu_clock(interval_of(signals.table, r)));
    longest_ns = std::max(longest_ns, signals.table.dur_ns[r]);
  }
  draft.cost = with_lost_lead(signals, idle_inside(signals, std::move(intervals)), ranges.again);
  draft.evidence = ranges.again;
  draft.count("compilations", ranges.again.size());
  draft.duration("longest", longest_ns);
  if (!signals.has_gpu) {
    draft.missing_signals.emplace_back("GPU events: host time is counted as lost");
    draft.confidence = 0.7;  // the GPU may have had work queued
  }
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule recompilation{.type = "recompilation",
                                    .subject = Subject::kCompiledCode,
                                    .saving = kSaving,
                                    .detect = detect};
}

}  // namespace traceap
