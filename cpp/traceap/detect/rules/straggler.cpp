// The ranks wait in collectives for one that comes late again and again.
//
// Only the traces of several ranks show it. Cost: this rank's waiting, on aligned clocks, for ranks
// whose lateness one cause explains. The late rank itself loses nothing here.

#include "traceap/detect/queries/collectives.hpp"
#include "traceap/detect/queries/support.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

constexpr std::string_view kType = "straggler";
/// The rank may come later than the last but one by its nature (more work, an uneven batch).
constexpr double kLowShare = 0.3, kBestShare = 0.9;

}  // namespace

Finding detect_straggler(const Signals& signals) {
  const PeerView& peers = signals.peers;
  if (!peers.known) {
    if (signals.table.distributed.world_size.value_or(1) <= 1) return absent(kType);
    return abstain(kType, {"traces of the other ranks"});
  }
  if (!peers.has_straggler) {
    if (peers.unproven.empty()) return absent(kType);
    return abstain(kType,
                   {"what delays rank " + peers.unproven + ": no cause explains 80 % of it"});
  }
  Draft draft(kType);
  draft.cost = waits_for_late_ranks(signals);
  std::int64_t gain_ns = 0;
  for (const PeerPart& part : peers.parts) {
    if (part.wait_ns <= 0) continue;
    draft.evidence.push_back(part.row);
    draft.evidence_weights.push_back(part.wait_ns);
    gain_ns += part.gain_ns;
  }
  draft.fact("waits", static_cast<std::int64_t>(draft.evidence.size()));
  draft.fact("late rank", peers.late_rank);
  draft.fact("cause", peers.cause);
  draft.fact("lateness", peers.lateness);
  draft.fact("explained", peers.explained);
  draft.confidence = 0.9;
  Finding finding = finish_finding(signals, std::move(draft));
  finding.saving_high_ns = std::min(finding.saving_high_ns, gain_ns);
  const auto high = static_cast<double>(finding.saving_high_ns);
  finding.saving_low_ns = static_cast<std::int64_t>(kLowShare * high);
  finding.saving_best_ns = static_cast<std::int64_t>(kBestShare * high);
  return finding;
}

}  // namespace traceap
