// Iterations that read prompts beside generating tokens take so long that the requests in
// generation stall.
//
// Cost: of each such iteration the time beyond what the iterations take that only generate. A small
// chunk of a prompt that fits beside the decode costs nothing.

#include <algorithm>

#include "traceap/base/statistics.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// The prompts have to be read at some time: smaller chunks spread the work, another GPU takes it.
constexpr SavingShares kSaving{.basis = SavingBasis::kCost, .best = 0.5};
/// So many times the usual iteration is felt as a stall.
constexpr double kStallRatio = 1.5;
constexpr std::size_t kMinDecodes = 3;

Finding detect(const Signals& signals) {
  std::vector<std::int64_t> decodes;
  std::vector<Interval> mixed;
  std::vector<Row> rows;
  std::int64_t end_ns = 0;
  bool first = true;
  for (const ServedIteration& iteration : signals.served.iterations) {
    const std::int64_t start_ns =
        first ? iteration.gpu.start_ns : std::max(end_ns, iteration.gpu.start_ns);
    const Interval own{start_ns, std::max(start_ns, iteration.gpu.end_ns)};
    end_ns = own.end_ns;
    first = false;
    if (iteration.is_decode()) decodes.push_back(own.length_ns());
    if (iteration.phase != IterationPhase::kMixed) continue;
    mixed.push_back(own);
    rows.push_back(evidence_of(signals, iteration));
  }
  if (mixed.empty() || decodes.size() < kMinDecodes) return absent();
  const std::int64_t usual_ns = median_of(decodes);
  Draft draft(kSaving);
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 0; i < mixed.size(); ++i) {
    const auto length_ns = static_cast<double>(mixed[i].length_ns());
    if (length_ns < kStallRatio * static_cast<double>(usual_ns)) continue;
    draft.cost.push_back({mixed[i].start_ns + usual_ns, mixed[i].end_ns});
    draft.evidence.push_back(rows[i]);
    lengths.push_back(mixed[i].length_ns());
  }
  if (lengths.empty()) return absent();
  draft.count("iterations", lengths.size());
  draft.duration("with prompts", median_of(lengths));
  draft.duration("without", usual_ns);
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule prefill_stalls_decode{.type = "prefill_stalls_decode",
                                            .subject = Subject::kServing,
                                            .saving = kSaving,
                                            .detect = detect};
}

}  // namespace traceap
