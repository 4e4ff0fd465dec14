#pragma once
// The collectives of several ranks, matched with each other, and the ranks' clocks aligned.
//
// Note [Waiting and transfer]: no rank's part in an all-reduce moves data before the last rank has
// come, so a part of duration d that began w before the last one waited w and transferred d - w.
// With w bounded by d, wait + transfer = duration holds exactly for every part, and transfer is the
// common end minus the latest start wherever the rank was still there by then. (On a public DLRM
// set 96 % of the time in NCCL kernels is waiting.) Starts are compared on clocks that were aligned
// by the *ends* of collectives, so lateness is never taken for a clock offset.
//
// Note [Kernels that wait inside]: ranks exchange tokens with the ranks of their experts, and
// reduce small messages, by kernels that write into each other's memory and wait there: a transfer,
// and a wait until the last rank has sent. The transfer of a dispatch or combine is the shortest
// duration among the ranks that meet, which the last one to come has. Where kernels of equal work
// repeat on a rank (replays of one graph, iterations of as many tokens), it is the shortest of
// these too (Collective::transfer_ns). So the trace of one rank tells the two apart, no clocks are
// compared, and a rank whose experts get more tokens makes the others wait. Again wait + transfer =
// duration.

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "traceap/analysis/collectives/clock_alignment.hpp"
#include "traceap/analysis/collectives/metadata.hpp"
#include "traceap/base/intervals.hpp"

namespace traceap {

struct RankInput {
  const EventTable* table;
  const EventTree* tree;
  std::int64_t rank;  ///< global rank; kNoId if the trace does not say
};
/// Number of a rank: the global one, its place where the trace does not say.
inline std::int64_t number_of(std::span<const RankInput> ranks, std::size_t index) {
  const std::int64_t rank = ranks[index].rank;
  return rank == kNoId ? static_cast<std::int64_t>(index) : rank;
}

/// One rank's part in a matched collective.
struct CollectivePart {
  std::uint32_t match;  ///< parts of one collective share it; matches are numbered by time
  std::uint32_t rank;   ///< index in the input
  std::uint32_t index;  ///< of the collective among those of its rank, by start
  std::int64_t start_ns = 0, end_ns = 0;  ///< common clock
  std::int64_t exposed_ns = 0;            ///< the rank ran no compute kernel meanwhile
  std::int64_t wait_ns = 0;    ///< for the last rank; 0 where nothing tells it from the transfer
  std::int64_t bytes = kNoId;  ///< those of the call; kNoId where unknown
  Collective call{};           ///< its `group` is an index in RankCollectives::groups

  std::int64_t duration_ns() const { return end_ns - start_ns; }
  /// See Note [Waiting and transfer].
  std::int64_t transfer_ns() const { return duration_ns() - wait_ns; }
};

inline constexpr std::uint32_t kNoRank = std::numeric_limits<std::uint32_t>::max();

/// One collective of the job.
struct CollectiveMatch {
  std::uint32_t first, count;           ///< its parts
  std::uint32_t group;                  ///< index in RankCollectives::groups
  CollectiveKind kind;                  ///< by the ranks that know it; send_recv for a matched pair
  bool comparable;                      ///< several ranks whose clocks can be compared
  bool split;                           ///< waits are told from transfers
  bool synchronising;                   ///< no rank leaves before every rank has come
  std::int64_t latest_start_ns;         ///< when the last rank came, common clock
  std::uint32_t latest_rank = kNoRank;  ///< index of that rank; kNoRank if not comparable
};

struct RankCollectives {
  std::vector<ProcessGroup> groups;      ///< of all ranks
  std::vector<CollectivePart> parts;     ///< by match, then rank
  std::vector<CollectiveMatch> matches;  ///< by time
  ClockAlignment clocks;
  std::vector<Interval> recorded;  ///< by rank: what its file covers, common clock

  std::span<const CollectivePart> parts_of(const CollectiveMatch& match) const {
    return std::span(parts).subspan(match.first, match.count);
  }
};

/// First start and last end of what has a time and a duration, on the table's own clock; empty
/// without such an event.
Interval recorded_bounds(const EventTable& table);

/// Matches by process group and sequence number where the trace has it ("Seq"), else by order with
/// mismatches found by edit distance (matching.hpp); sends with receives by pair.
RankCollectives build_rank_collectives(std::span<const RankInput> ranks);

}  // namespace traceap
