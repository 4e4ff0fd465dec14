// The ranks wait in collectives for one that comes late again and again.
//
// Only the traces of several ranks show it. Cost: this rank's waiting, on aligned clocks, for ranks
// whose lateness one cause explains. The late rank itself loses nothing here.

#include <algorithm>
#include <string>

#include "traceap/base/sums.hpp"
#include "traceap/detect/queries/collectives.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// The rank may come later than the last but one by its nature (more work, an uneven batch).
constexpr SavingShares kSaving{.basis = SavingBasis::kIdleOrExposed, .low = 0.3, .best = 0.9};
constexpr std::size_t kNamedRanks = 4;

/// The first few ranks that are late without a proven cause, such as "1, 3".
std::string unproven_ranks(const PeerView& peers) {
  std::string text;
  for (std::size_t i = 0; i < std::min(kNamedRanks, peers.unproven.size()); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(peers.unproven[i]);
  }
  return text;
}

/// A cause that has a name bears it, in words as in every table.
std::string words_of_host(IdleCause cause) {
  if (cause == IdleCause::kHostWait) return "host";
  std::string words(idle_cause_name(cause));
  std::replace(words.begin(), words.end(), '_', ' ');
  return words;
}

std::string words_of(const Straggler& straggler) {
  switch (straggler.cause) {
    case LateCause::kCompute:
      return "compute kernels";
    case LateCause::kCommunication:
      return "other collectives";
    case LateCause::kCopies:
      return "copies";
    case LateCause::kInput:
      return "input pipeline";
    case LateCause::kHost:
      break;
  }
  return words_of_host(straggler.host_cause);
}

/// A rank by itself does not show who is late, but it may show that someone is.
Finding judge_lone_rank(const Signals& signals) {
  const std::int64_t waiting_ns =
      total_length_ns(set_clip(waits_of_lone_rank(signals), signals.profiled));
  const bool waits = is_material(signals, waiting_ns);
  if (!waits && signals.table.distributed.world_size.value_or(1) <= 1) return absent();
  if (!waits) return abstain({"traces of the other ranks"});
  Finding finding = abstain({"the other ranks' traces, which would tell who is late"});
  finding.facts.push_back({.name = "waiting", .kind = FactKind::kDuration, .value = waiting_ns});
  return finding;
}

Finding detect(const Signals& signals) {
  const PeerView& peers = signals.peers;
  if (!peers.known) {
    return judge_lone_rank(signals);
  }
  if (!peers.straggler) {
    if (peers.unproven.empty()) return absent();
    return abstain(
        {"what delays rank " + unproven_ranks(peers) + ": no cause explains 80 % of it"});
  }
  Draft draft(kSaving);
  draft.cost = waits_for_late_ranks(signals);
  draft.saving_limit_ns = 0;  // what is gone if the rank comes with the last but one
  for (const PeerPart& part : peers.parts) {
    if (part.wait_ns <= 0) continue;
    draft.evidence.push_back(part.row);
    draft.evidence_weights.push_back(part.wait_ns);
    add_to(*draft.saving_limit_ns, part.gain_ns);
  }
  draft.count("waits", draft.evidence.size());
  draft.text("late rank", std::to_string(peers.straggler->rank));
  draft.text("cause", words_of(*peers.straggler));
  draft.duration("lateness", peers.straggler->lateness_ns);
  draft.share("explained", peers.straggler->explained);
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule straggler{.type = "straggler",
                                .claim = Claim::kRootCause,
                                .subject = Subject::kCollectives,
                                .saving = kSaving,
                                .detect = detect};
}

}  // namespace traceap
