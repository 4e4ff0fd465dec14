// A serving engine launches the kernels of a decode iteration one by one, and the GPU waits for the
// launches.
//
// Cost: inside of such iterations, idle time in which the GPU waits for the host. Where the
// launches are ahead of the GPU a graph would save next to nothing, and it costs nothing.

#include "traceap/detect/queries/compile.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// A graph takes away nearly all gaps between launches.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdle, .low = 0.3, .best = 0.9};
/// Fewer kernels are what engines run around a graph.
constexpr std::size_t kMinKernels = 32;

Finding detect(const Signals& signals) {
  if (signals.served.iterations.empty()) return absent();
  std::vector<Interval> captures;
  for (const GraphCapture& capture : find_graph_captures(signals.table, signals.tree)) {
    captures.push_back(capture.host);
  }
  const CoverIndex captured(make_union(std::move(captures)));
  Draft draft(kSaving);
  std::vector<Interval> spans;
  std::size_t kernels = 0, decodes = 0;
  for (const ServedIteration& iteration : signals.served.iterations) {
    if (!iteration.is_decode()) continue;
    ++decodes;
    if (iteration.graphs > 0 || iteration.kernels < kMinKernels) continue;
    if (captured.covered_ns(iteration.host) > 0) continue;
    spans.push_back(iteration.gpu);
    kernels += iteration.kernels;
    draft.evidence.push_back(evidence_of(signals, iteration));
  }
  if (spans.size() < 2) return absent();  // the first may warm up
  draft.count("iterations", spans.size());
  draft.count("of", decodes);
  draft.count("kernels", kernels / spans.size());
  draft.cost = set_difference(set_intersection(idle_with_cause(signals, {IdleCause::kHostWait}),
                                               make_union(std::move(spans))),
                              make_union(find_drafts(signals).windows));
  draft.confidence = signals.served.marked ? 0.9 : 0.7;
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule graph_not_used{.type = "graph_not_used",
                                     .claim = Claim::kSpecific,
                                     .subject = Subject::kServing,
                                     .saving = kSaving,
                                     .detect = detect};
}

}  // namespace traceap
