// The parts of an all-to-all differ, so that its fullest rank sets the time of all.
//
// Cost: of each transfer (waiting apart) the share 1 - mean / max of what ranks receive, which even
// parts would save where bandwidth decides. Needs the split sizes of several ranks.

#include <algorithm>

#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// Even parts need work moved between ranks, and latency stays.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdleOrExposed, .best = 0.5};
bool has_uneven_all_to_all(const Signals& signals) {
  const auto list = build_collectives(signals.table, signals.tree);
  return std::any_of(list.collectives.begin(), list.collectives.end(),
                     [](const Collective& c) { return c.kind == CollectiveKind::kAllToAllV; });
}

Finding detect(const Signals& signals) {
  if (signals.gpu.communication.empty() || !has_uneven_all_to_all(signals)) return absent();
  if (!signals.peers.known) return abstain({"traces of the other ranks"});
  if (!signals.peers.imbalance) return abstain({"split sizes of the all-to-alls"});
  Draft draft(kSaving);
  std::int64_t uneven = 0;
  for (const PeerPart& part : signals.peers.parts) {
    if (part.imbalance_ns <= 0) continue;
    const std::int64_t end_ns = signals.table.end_ns(part.row);
    draft.cost.push_back({end_ns - part.imbalance_ns, end_ns});
    draft.evidence.push_back(part.row);
    draft.evidence_weights.push_back(part.imbalance_ns);
    ++uneven;
  }
  draft.cost = set_difference(make_union(std::move(draft.cost)), signals.gpu.compute);
  draft.count("exchanges", uneven);
  draft.rate("imbalance", *signals.peers.imbalance);
  draft.confidence = 0.7;  // whether bandwidth decides is assumed
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule collective_imbalance{.type = "collective_imbalance",
                                           .subject = Subject::kCollectives,
                                           .saving = kSaving,
                                           .detect = detect};
}

}  // namespace traceap
