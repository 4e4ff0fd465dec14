#pragma once
// About 50 numbers per window, and their robust z-scores per trace. docs/scorers.md lists them.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "traceap/analysis/idle/idle.hpp"
#include "traceap/windows/window_set.hpp"

namespace traceap {

/// Row-major [n_windows, n_features] doubles; `zscores` has the same shape.
struct FeatureBlock {
  std::vector<std::string_view> names;
  std::uint32_t window_count = 0;
  std::vector<double> values;
  /// (x - median) / (1.4826 * MAD) over the windows of the trace, clipped to +-10. Where more than
  /// half of the windows are equal the MAD is 0 and 1.2533 * the mean absolute deviation takes its
  /// place; where all are equal the score is 0.
  std::vector<double> zscores;
};

/// Names in column order; views of static storage.
std::span<const std::string_view> window_feature_names();

/// `gpu` and `idle` must cover `windows` (made with the same table and tree, bounds at least as
/// wide). One sweep per feature: O(n log n + windows).
FeatureBlock build_features(const EventTable& table, const EventTree& tree, const GpuIntervals& gpu,
                            const IdleBreakdown& idle, const WindowSet& windows);

/// The z-scores of FeatureBlock for any row-major [row_count, column_count] matrix.
std::vector<double> robust_zscores(std::span<const double> values, std::size_t row_count,
                                   std::size_t column_count);

}  // namespace traceap
