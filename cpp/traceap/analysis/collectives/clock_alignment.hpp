#pragma once
// Offsets between the clocks of ranks, from moments that are the same for several of them.

#include <cstdint>
#include <vector>

namespace traceap {

/// One rank's reading of a common moment, such as the end of an all-reduce.
struct ClockReading {
  std::uint32_t moment;  ///< readings of one moment share it; in increasing order
  std::uint32_t clock;
  std::int64_t time_ns;
};

struct ClockFit {
  /// Subtract offset_ns + drift * (time - epoch_ns) from a time of this clock: time of the first
  /// clock of its component.
  std::int64_t offset_ns = 0;
  double drift = 0.0;               ///< ns per ns; 0 unless the readings show one
  std::int64_t residual_ns = 0;     ///< median absolute deviation of its readings from the fit
  std::int64_t uncertainty_ns = 0;  ///< an offset below this is none
  std::uint32_t readings = 0;       ///< moments shared with other clocks
  std::uint32_t component = 0;      ///< clocks of different components share no moment
  bool applied = false;             ///< offset (and drift) above the uncertainty
};

struct ClockAlignment {
  std::vector<ClockFit> clocks;
  std::int64_t epoch_ns = 0;
  /// A time of one clock on the common one; unchanged where nothing was applied.
  std::int64_t to_common(std::uint32_t clock, std::int64_t time_ns) const;
  /// What is taken off the times of a clock, but for a drift.
  std::int64_t shift_ns(std::uint32_t clock) const {
    return clocks[clock].applied ? clocks[clock].offset_ns : 0;
  }
};

/// Least absolute deviations: minimises the sum over readings of |time - moment - offset(clock)| by
/// iteratively reweighted least squares, the unknown moments eliminated. Uses at most some thousand
/// moments, spread evenly. A drift is fitted where a clock has twenty readings over a second or
/// more, and kept where it moves the clock by more than the uncertainty.
ClockAlignment align_clocks(const std::vector<ClockReading>& readings, std::size_t clocks);

}  // namespace traceap
