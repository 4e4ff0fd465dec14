#pragma once
// What the traces of other ranks say of each rank, for the rules.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "traceap/analysis/collectives/lateness.hpp"

namespace traceap {

/// One collective of this rank as the other ranks' traces show it.
struct PeerPart {
  Row row;
  std::int64_t wait_ns = 0;  ///< it waited at the start for a rank that keeps the others waiting
  std::int64_t gain_ns = 0;  ///< of that, what is gone if that rank comes with the last but one
  std::int64_t wait_any_ns = 0;    ///< waited for whichever rank came last
  std::int64_t imbalance_ns = 0;   ///< transfer that even parts of an all-to-all would save
  std::int64_t last_rank = kNoId;  ///< number of the rank that came last; kNoId if not comparable
};

struct Straggler {
  std::int64_t rank;  ///< its number
  LateCause cause;
  IdleCause host_cause = IdleCause::kHostWait;  ///< of kHost: see RankLateness
  std::int64_t lateness_ns;                     ///< summed over collectives
  double explained;                             ///< share of it that the cause explains
};

/// What only the traces of several ranks can tell.
struct PeerView {
  bool known = false;                  ///< traces of other ranks were compared with this one
  std::vector<PeerPart> parts;         ///< by row
  std::optional<Straggler> straggler;  ///< the latest of those that keep the others waiting
  std::vector<std::int64_t> unproven;  ///< numbers of ranks that are late without a proven cause
  std::optional<double> imbalance;     ///< largest over mean of all-to-alls; if sizes are known
  const PeerPart* find(Row row) const;
};

/// One for each rank. O(parts log parts); `ranks` as they were matched.
std::vector<PeerView> build_peer_views(const RankCollectives& all,
                                       std::span<const RankLateness> lateness,
                                       std::span<const RankInput> ranks);

}  // namespace traceap
