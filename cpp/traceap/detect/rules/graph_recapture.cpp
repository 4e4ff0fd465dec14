// CUDA graphs are recorded anew in call after call, instead of being replayed.
//
// While a graph is recorded nothing of what is launched runs, and instantiating it takes longer
// than a step of eager launches would. Cost: GPU idle time from the begin of each recording to the
// end of its instantiation, in steady state.

#include <algorithm>

#include "traceap/detect/queries/compile.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

constexpr SavingShares kSaving{.basis = SavingBasis::kIdle};

Finding detect(const Signals& signals) {
  if (!signals.has_gpu) return abstain({"GPU events"});
  if (signals.api_rows.empty()) return abstain({"runtime calls"});
  const GraphCaptures captures = find_graph_captures(signals);
  if (captures.again.empty()) return absent();
  Draft draft(kSaving);
  std::vector<Interval> intervals;
  std::int64_t longest_ns = 0;
  for (const GraphCapture& capture : captures.again) {
    intervals.push_back(signals.on_gpu_clock(capture.host));
    draft.evidence.push_back(capture.begin);
    draft.evidence_weights.push_back(capture.host.length_ns());
    longest_ns = std::max(longest_ns, capture.host.length_ns());
  }
  draft.cost = idle_inside(signals, std::move(intervals));
  draft.confidence = captures.sure ? 0.9 : 0.7;
  draft.count("recordings", captures.again.size());
  add_per_step_fact(signals, draft, "per step", captures.again.size());
  draft.duration("longest", longest_ns);
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule graph_recapture{.type = "graph_recapture",
                                      .claim = Claim::kSpecific,
                                      .subject = Subject::kGraphs,
                                      .saving = kSaving,
                                      .detect = detect};
}

}  // namespace traceap
