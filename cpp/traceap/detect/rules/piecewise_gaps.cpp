// A serving engine replays many small CUDA graphs in each iteration, and the GPU waits between
// them.
//
// Cost: inside of such iterations, idle time between the work of different launches. Gaps within
// one graph are the device's own. Pieces that are launched ahead leave hardly any.

#include <algorithm>

#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// One graph for the whole iteration has no launch in between.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdle, .low = 0.3, .best = 0.9};
/// Engines replay one graph for the model, and a few around it. A draft model has one for each of
/// its tokens.
constexpr std::size_t kMinPieces = 4;
constexpr std::size_t kMinPiecesOfDrafts = 16;

Finding detect(const Signals& signals) {
  if (signals.served.iterations.empty()) return absent();
  Draft draft(kSaving);
  std::vector<Interval> spans;
  std::size_t graphs = 0;
  for (const ServedIteration& iteration : signals.served.iterations) {
    const bool drafts = iteration.phase == IterationPhase::kSpeculative;
    if (iteration.graphs < (drafts ? kMinPiecesOfDrafts : kMinPieces)) continue;
    spans.push_back(iteration.gpu);
    graphs += iteration.graphs;
    draft.evidence.push_back(evidence_of(signals, iteration));
  }
  if (spans.empty()) return absent();
  const std::size_t iterations = spans.size();
  draft.cost = set_difference(
      set_intersection(idle_with_cause(signals, {IdleCause::kHostWait, IdleCause::kLaunchLatency}),
                       make_union(std::move(spans))),
      make_union(find_drafts(signals).windows));
  draft.count("iterations", iterations);
  draft.count("graphs", graphs / iterations);
  draft.count("gaps", draft.cost.size());
  draft.confidence = signals.served.marked ? 0.9 : 0.7;
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule piecewise_gaps{.type = "piecewise_gaps",
                                     .claim = Claim::kSpecific,
                                     .subject = Subject::kServing,
                                     .saving = kSaving,
                                     .detect = detect};
}

}  // namespace traceap
