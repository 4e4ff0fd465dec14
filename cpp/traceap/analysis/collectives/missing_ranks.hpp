#pragma once
// Which ranks of a process group have no part in a matched collective.

#include <cstdint>
#include <span>
#include <vector>

#include "traceap/analysis/collectives/rank_collectives.hpp"

namespace traceap {

/// By group: numbers of the ranks in it, as recorded, else of all that use it.
std::vector<std::vector<std::int64_t>> expected_ranks(const RankCollectives& all,
                                                      std::span<const RankInput> ranks);

/// In a large job there are few distinct lists, and each is long.
struct MissingRanks {
  std::vector<std::uint32_t> list_of;            ///< by match: index in `lists`
  std::vector<std::vector<std::int64_t>> lists;  ///< numbers of ranks; the first one is empty
};
/// Of each match the ranks of its group (for send and recv: of its pair) without a part in it.
MissingRanks find_missing_ranks(const RankCollectives& all, std::span<const RankInput> ranks);

}  // namespace traceap
