// The parts of an all-to-all differ, so that its fullest rank sets the time of all.
//
// Cost: of each transfer (waiting apart) the share 1 - mean / max of what ranks receive, which even
// parts would save where bandwidth decides. Needs the split sizes of several ranks.

#include <algorithm>

#include "traceap/detect/queries/collectives.hpp"
#include "traceap/detect/queries/support.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

constexpr std::string_view kType = "collective_imbalance";

bool has_uneven_all_to_all(const Signals& signals) {
  const auto list = build_collectives(signals.table, signals.tree);
  return std::any_of(list.collectives.begin(), list.collectives.end(),
                     [](const Collective& c) { return c.kind == CollectiveKind::kAllToAllV; });
}

}  // namespace

Finding detect_collective_imbalance(const Signals& signals) {
  if (signals.gpu.communication.empty() || !has_uneven_all_to_all(signals)) return absent(kType);
  if (!signals.peers.known) return abstain(kType, {"traces of the other ranks"});
  if (signals.peers.imbalance.empty()) return abstain(kType, {"split sizes of the all-to-alls"});
  Draft draft(kType);
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
  draft.fact("exchanges", uneven);
  draft.fact("imbalance", signals.peers.imbalance);
  draft.confidence = 0.7;
  draft.saving = {SavingBasis::kIdleOrExposed, 0.0, 0.5};
  return finish_finding(signals, std::move(draft));
}

}  // namespace traceap
