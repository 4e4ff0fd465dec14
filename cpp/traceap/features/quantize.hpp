#pragma once
// Logarithmic quantisation of delays and durations (paper, Eq. 3) with fixed ranges.

#include <cstdint>
#include <span>
#include <vector>

namespace traceap {

struct QuantizeRange {
  double min_us, max_us;
  std::int32_t levels = 256;
};
/// Fixed constants (us), not the minimum and maximum of a data set: that would leak test
/// statistics.
inline constexpr QuantizeRange kDelayRange{1.0, 1e7, 256};
inline constexpr QuantizeRange kDurationRange{0.5, 1e6, 256};

/// id = round((N-1) * log(T/Tmin) / log(Tmax/Tmin)), T clamped to the range first. Throws
/// OptionError unless 0 < min < max and levels >= 2.
std::int32_t quantize_us(double time_us, const QuantizeRange& range);
std::vector<std::int32_t> quantize_ns(std::span<const std::int64_t> times_ns,
                                      const QuantizeRange& range);

}  // namespace traceap
