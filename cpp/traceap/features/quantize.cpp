#include "traceap/features/quantize.hpp"

#include <cmath>

#include "traceap/base/error.hpp"

namespace traceap {
namespace {

void check(const QuantizeRange& range) {
  const bool usable = range.min_us > 0 && range.max_us > range.min_us && range.levels >= 2 &&
                      std::isfinite(range.max_us);
  if (!usable) throw OptionError("a quantization range needs 0 < min < max and two levels or more");
}

/// Codes per unit of log time.
double code_scale(const QuantizeRange& range) {
  return (range.levels - 1) / std::log(range.max_us / range.min_us);
}

std::int32_t code_of(double time_us, const QuantizeRange& range, double scale) {
  if (!(time_us > range.min_us)) return 0;  // NaN too
  if (time_us >= range.max_us) return range.levels - 1;
  return static_cast<std::int32_t>(std::lround(scale * std::log(time_us / range.min_us)));
}

}  // namespace

std::int32_t quantize_us(double time_us, const QuantizeRange& range) {
  check(range);
  return code_of(time_us, range, code_scale(range));
}

std::vector<std::int32_t> quantize_ns(std::span<const std::int64_t> times_ns,
                                      const QuantizeRange& range) {
  check(range);
  const double scale = code_scale(range);
  std::vector<std::int32_t> codes;
  codes.reserve(times_ns.size());
  for (const std::int64_t ns : times_ns) {
    codes.push_back(code_of(static_cast<double>(ns) / 1000.0, range, scale));
  }
  return codes;
}

}  // namespace traceap
