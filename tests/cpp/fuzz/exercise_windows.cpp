#include <algorithm>
#include <cmath>

#include "exercises.hpp"
#include "traceap/base/error.hpp"
#include "traceap/features/quantize.hpp"
#include "traceap/features/window_features.hpp"
#include "traceap/windows/window_set.hpp"

namespace traceap::fuzz {
namespace {

void check_windows(const Rank& rank, const WindowSet& windows) {
  check(std::is_sorted(windows.bounds_ns.begin(), windows.bounds_ns.end()), "windows by time");
  check_offsets(windows.offsets, windows.count(), windows.rows.size());
  check_offsets(windows.overlapping_offsets, windows.count(), windows.overlapping.size());
  for (const Row row : windows.rows) check(row < rank.size(), "a window's row");
}

void check_features(const Rank& rank, const WindowSet& windows) {
  const GpuIntervals gpu = build_gpu_intervals(rank.table, rank.tree);
  const IdleBreakdown idle = explain_idle(rank.table, rank.tree, gpu,
                                          {windows.bounds_ns.front(), windows.bounds_ns.back()});
  const FeatureBlock block = build_features(rank.table, rank.tree, gpu, idle, windows);
  check(block.values.size() == block.names.size() * windows.count(), "a value for each feature");
  check(block.zscores.size() == block.values.size(), "a score for each value");
  for (const double value : block.values) check(std::isfinite(value), "a feature is a number");
  for (const double score : block.zscores) check(std::abs(score) <= 10, "a score is clipped");
}

}  // namespace

void exercise_windows(const Rank& rank, Choices& choices) {
  WindowOptions options;
  options.count = static_cast<std::uint32_t>(1 + choices.below(5));
  options.host_rows = choices.flag();
  if (choices.flag()) options.length_ns = choices.number() % 1'000'000 * 1'000;
  try {
    const WindowSet windows = build_windows(rank.table, rank.tree, options);
    check_windows(rank, windows);
    if (windows.count() <= 64) check_features(rank, windows);
  } catch (const OptionError&) {  // windows without number
  }
  for (const std::int32_t id : quantize_ns(rank.table.dur_ns, kDurationRange)) {
    check(id >= 0 && id < kDurationRange.levels, "a quantised duration");
  }
}

}  // namespace traceap::fuzz
