// Robust z-scores. The only file that sees xtensor, which is slow to compile.

#include <algorithm>
#include <cmath>
#include <xtensor/xadapt.hpp>
#include <xtensor/xmath.hpp>
#include <xtensor/xsort.hpp>
#include <xtensor/xtensor.hpp>
#include <xtensor/xview.hpp>

#include "traceap/base/error.hpp"
#include "traceap/features/window_features.hpp"

namespace traceap {
namespace {

constexpr double kMadToSigma = 1.4826;      // 1 / quantile(0.75) of the normal distribution
constexpr double kMeanDevToSigma = 1.2533;  // sqrt(pi / 2)
constexpr double kLimit = 10.0;             // a scale near zero must not drown everything else

double spread(const xt::xtensor<double, 1>& deviations) {
  const double mad = xt::median(deviations);
  if (mad > 0) return kMadToSigma * mad;
  return kMeanDevToSigma * xt::mean(deviations)();
}

}  // namespace

std::vector<double> robust_zscores(std::span<const double> values, std::size_t row_count,
                                   std::size_t column_count) {
  if (values.size() != row_count * column_count) {
    throw SchemaError("a matrix of " + std::to_string(row_count) + " x " +
                      std::to_string(column_count) + " does not have " +
                      std::to_string(values.size()) + " values");
  }
  std::vector<double> scores(values.size(), 0.0);
  if (values.empty()) return scores;
  const std::vector<std::size_t> shape{row_count, column_count};
  const auto matrix = xt::adapt(values.data(), values.size(), xt::no_ownership(), shape);
  auto out = xt::adapt(scores.data(), scores.size(), xt::no_ownership(), shape);
  for (std::size_t c = 0; c < column_count; ++c) {
    const xt::xtensor<double, 1> column = xt::view(matrix, xt::all(), c);
    const double centre = xt::median(column);
    const xt::xtensor<double, 1> deviations = xt::abs(column - centre);
    const double scale = spread(deviations);
    if (!(scale > 0) || !std::isfinite(scale)) continue;
    xt::view(out, xt::all(), c) = xt::clip((column - centre) / scale, -kLimit, kLimit);
  }
  return scores;
}

}  // namespace traceap
