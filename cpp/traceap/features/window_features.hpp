#pragma once
// About 48 numbers per window, and their robust z-scores per trace. docs/features.md lists them.

#include <cstdint>
#include <string_view>
#include <vector>

#include "traceap/analysis/idle.hpp"
#include "traceap/windows/window_set.hpp"

namespace traceap {

/// Row-major [n_windows, n_features] doubles; `zscores` has the same shape.
struct FeatureBlock {
  std::vector<std::string_view> names;
  std::uint32_t window_count = 0;
  std::vector<double> values;
  std::vector<double> zscores;   ///< (x - median) / (1.4826 * MAD) per trace, 0 where MAD is 0, clipped to +-10
};

FeatureBlock build_features(const EventTable& table, const EventTree& tree,
                            const GpuIntervals& gpu, const IdleBreakdown& idle,
                            const WindowSet& windows);

}  // namespace traceap
