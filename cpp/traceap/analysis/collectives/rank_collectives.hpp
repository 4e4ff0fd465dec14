#pragma once
// The collectives of several ranks, matched with each other, and the ranks' clocks aligned.

#include <cstdint>
#include <string>
#include <vector>

#include "traceap/analysis/collectives/clock_alignment.hpp"
#include "traceap/analysis/collectives/metadata.hpp"

namespace traceap {

struct RankInput {
  const EventTable* table;
  const EventTree* tree;
  std::int64_t rank;  ///< global rank; kNoId if the trace does not say
};

/// One rank's part in a matched collective.
struct CollectivePart {
  std::uint32_t match;  ///< parts of one collective share it; matches are numbered by time
  std::uint32_t rank;   ///< index in the input
  std::uint32_t index;  ///< in that rank's CollectiveList
  std::int64_t start_ns, end_ns;  ///< common clock
  std::int64_t exposed_ns;        ///< the rank ran no compute kernel meanwhile
};

struct RankCollectives {
  std::vector<CollectiveList> lists;  ///< by rank; their `group` is an index in `groups` below
  std::vector<ProcessGroup> groups;   ///< of all ranks
  std::vector<CollectivePart> parts;  ///< by match, then rank
  std::uint32_t matches = 0;
  ClockAlignment clocks;
};

/// Matches by process group and sequence number where the trace has it ("Seq"), else by order with
/// mismatches found by edit distance (matching.hpp); sends with receives by pair.
RankCollectives build_rank_collectives(const std::vector<RankInput>& ranks);

}  // namespace traceap
