// Ranks pause in turn, and each time all others wait: garbage collection, a checkpoint, logging.
//
// A pause is a wait for the last rank that is far longer than the others: 1 ms at least and five
// times the median. No rank is late on the whole, so nobody is a straggler; the pauses add up all
// the same. Cost: the pauses that this rank waits for. Two ranks or more have to cause them, and
// none of these most of it.

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "traceap/base/statistics.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// The jitter of steps that are alike is a part of their usual waits; a collection of Python's
/// garbage takes tens of milliseconds.
constexpr std::int64_t kMinPauseNs = 1'000'000;
constexpr std::int64_t kTimesUsual = 5;
constexpr std::size_t kMinPauses = 2;
/// Above this share it is one rank's affair.
constexpr double kMostOfOne = 0.6;
/// Pausing together leaves one pause in place of as many as there are ranks.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdleOrExposed, .low = 0.3, .best = 0.7};

struct Pauses {
  std::vector<const PeerPart*> parts;
  std::map<std::int64_t, std::int64_t> ns_by_rank;  ///< by the rank that came last
  std::int64_t total_ns = 0;

  bool rotate() const {
    if (parts.size() < kMinPauses || ns_by_rank.size() < 2) return false;
    std::int64_t most_ns = 0;
    for (const auto& [rank, ns] : ns_by_rank) most_ns = std::max(most_ns, ns);
    return static_cast<double>(most_ns) <= kMostOfOne * static_cast<double>(total_ns);
  }
};

Pauses find_pauses(const Signals& signals) {
  std::vector<std::int64_t> waits;
  for (const PeerPart& part : signals.peers.parts) waits.push_back(part.wait_any_ns);
  const std::int64_t least_ns = std::max(kMinPauseNs, kTimesUsual * median_of(waits));
  Pauses pauses;
  for (const PeerPart& part : signals.peers.parts) {
    if (part.wait_any_ns < least_ns || part.last_rank == kNoId) continue;
    pauses.parts.push_back(&part);
    pauses.ns_by_rank[part.last_rank] += part.wait_any_ns;
    pauses.total_ns += part.wait_any_ns;
  }
  return pauses;
}

Finding detect(const Signals& signals) {
  if (!signals.peers.known) {
    if (signals.table.distributed.world_size.value_or(1) <= 1) return absent();
    return abstain({"traces of the other ranks"});
  }
  const Pauses pauses = find_pauses(signals);
  if (!pauses.rotate()) return absent();
  Draft draft(kSaving);
  for (const PeerPart* part : pauses.parts) {
    const std::int64_t start_ns = signals.table.ts_ns[part->row];
    draft.cost.push_back({start_ns, start_ns + part->wait_any_ns});
    draft.evidence.push_back(part->row);
    draft.evidence_weights.push_back(part->wait_any_ns);
  }
  std::string ranks;
  for (const auto& [rank, ns] : pauses.ns_by_rank) {
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  }
  draft.count("pauses", pauses.parts.size());
  draft.text("ranks that pause", ranks);
  draft.confidence = 0.8;
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule rotating_pauses{.type = "rotating_pauses",
                                      .claim = Claim::kRootCause,
                                      .subject = Subject::kCollectives,
                                      .saving = kSaving,
                                      .detect = detect};
}

}  // namespace traceap
