#pragma once
// Order statistics of numbers at hand. All reorder the values that they are given.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <type_traits>

namespace traceap {

namespace detail {
/// Ascending; NaN behind all numbers.
template <typename T>
bool less_nan_last(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return std::isnan(b) ? !std::isnan(a) : a < b;
  return a < b;
}
}  // namespace detail

/// The median, of an even number of values the upper one; 0 of none. O(n).
template <typename Values>
auto median_of(Values&& values) {
  const std::span all(values);
  using T = std::remove_cvref_t<decltype(all.front())>;
  if (all.empty()) return T{0};
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  std::nth_element(all.begin(), middle, all.end(), detail::less_nan_last<T>);
  return *middle;
}

/// The q-quantile (q in [0, 1]), linear between neighbours: definition 7 of Hyndman and Fan, as
/// numpy.quantile; 0 of none. O(n).
template <typename Values>
double quantile_of(Values&& values, double q) {
  const std::span all(values);
  using T = std::remove_cvref_t<decltype(all.front())>;
  if (all.empty()) return 0;
  const double place = q * static_cast<double>(all.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(below);
  std::nth_element(all.begin(), middle, all.end(), detail::less_nan_last<T>);
  const double weight = place - static_cast<double>(below), low = static_cast<double>(*middle);
  if (weight == 0) return low;
  const auto above = std::min_element(middle + 1, all.end(), detail::less_nan_last<T>);
  return low + weight * (static_cast<double>(*above) - low);
}

}  // namespace traceap
