#pragma once
// Which rank keeps the others waiting, and because of what.

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "traceap/analysis/collectives/rank_collectives.hpp"
#include "traceap/analysis/idle/idle.hpp"

namespace traceap {

/// What a rank does between two collectives.
enum class LateCause : std::uint8_t {
  kCompute = 0,    ///< compute kernels
  kCommunication,  ///< other collectives
  kCopies,
  kInput,  ///< idle: the host makes, or waits for, the next batch
  kHost,   ///< idle otherwise: see RankLateness::host_cause
};
inline constexpr int kLateCauseCount = static_cast<int>(LateCause::kHost) + 1;
/// snake_case, such as "compute".
std::string_view late_cause_name(LateCause cause);

enum class RankVerdict : std::uint8_t {
  kUnknown = 0,  ///< its arrivals could not be compared with any other rank's
  kOnTime,
  kLate,       ///< no cause explains enough of it
  kStraggler,  ///< one cause does
};
inline constexpr int kRankVerdictCount = static_cast<int>(RankVerdict::kStraggler) + 1;
/// In words, such as "late, cause not proven".
std::string_view rank_verdict_name(RankVerdict verdict);

/// traceml's bound: below it the cause of a late rank is not named.
inline constexpr double kProvenShare = 0.8;

struct RankLateness {
  std::int64_t wait_ns = 0;      ///< waited in collectives for later ranks
  std::int64_t compared = 0;     ///< collectives in which arrivals could be compared
  std::int64_t times_last = 0;   ///< ... in which it came last
  std::int64_t lateness_ns = 0;  ///< start behind the median of the others, summed
  /// By cause: time beyond the others' median, in the segments that ended in a late arrival.
  std::array<std::int64_t, kLateCauseCount> excess_ns{};
  RankVerdict verdict = RankVerdict::kUnknown;
  LateCause cause = LateCause::kCompute;  ///< the one with the largest excess
  double cause_share = 0.0;               ///< of the lateness, what that cause explains; in [0, 1]
  /// Of the excess of kHost, what most of it is: the cause of the idle time; kHostWait where none
  /// explains more than half.
  IdleCause host_cause = IdleCause::kHostWait;
};

/// One for each rank, from its arrivals at all collectives that synchronise their ranks. Late is a
/// rank that makes the others wait, and is late itself, for `material_share` of its profiled time.
/// O(parts * causes * log events). `ranks` as they were matched.
std::vector<RankLateness> measure_lateness(const RankCollectives& all,
                                           std::span<const RankInput> ranks, double material_share);

}  // namespace traceap
