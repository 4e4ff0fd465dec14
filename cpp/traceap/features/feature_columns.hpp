#pragma once
// The columns of the feature matrix and the accumulators that fill them. Private to features/.

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "traceap/analysis/idle/idle.hpp"
#include "traceap/base/intervals.hpp"
#include "traceap/windows/window_set.hpp"

namespace traceap {

/// Idle causes that the scorers know: they were trained when a gap within a CUDA graph counted as
/// launch latency, and it still does for them.
inline constexpr int kScoredIdleCauseCount = static_cast<int>(IdleCause::kUnknown) + 1;
constexpr IdleCause scored_idle_cause(IdleCause cause) {
  return cause == IdleCause::kWithinGraph ? IdleCause::kLaunchLatency : cause;
}

/// Column numbers; kFeatureNames in window_features.cpp has the same order.
enum Feature : std::uint8_t {
  kBusyShare = 0,
  kComputeShare,
  kCommunicationShare,
  kMemcpyShare,
  kExposedCommunicationShare,
  kExposedMemcpyShare,
  kCommunicationOverlapRatio,
  kIdleShareFirst,  // one per scored IdleCause
  kIdleLongestShare = kIdleShareFirst + kScoredIdleCauseCount,
  kQueueDepthMean,
  kQueueDepthMax,
  kQueueDepthMin,
  kLaunchCount,
  kKernelCount,
  kCopyCount,
  kSmallKernelShare,
  kKernelMedianUs,
  kLaunchDelayP10Us,
  kLaunchDelayP50Us,
  kLaunchDelayP90Us,
  kHostBusyShare,
  kSynchronizationShare,
  kBlockingCopyShare,
  kAllocatorShare,
  kAllocatorCount,
  kDataLoadingShare,
  kCompilationShare,
  kCopyBytesHtoDPageable,  // log2(1 + bytes), like the next five
  kCopyBytesHtoDPinned,
  kCopyBytesDtoHPageable,
  kCopyBytesDtoHPinned,
  kCopyBytesDtoD,
  kCopyBytesOther,
  kCollectiveCount,
  kCollectiveMedianBytes,
  kCollectiveMedianUs,
  kStreamCount,
  kCompiledRegionTransitions,
  kPhaseInputShare,
  kPhaseForwardShare,
  kPhaseBackwardShare,
  kPhaseOptimizerShare,
  kStepPosition,
  kWindowLength,
  kFeatureCount
};

/// Row-major [windows, kFeatureCount].
class FeatureMatrix {
 public:
  explicit FeatureMatrix(std::uint32_t window_count)
      : values_(std::size_t{window_count} * kFeatureCount, 0.0) {}
  double& at(std::uint32_t window, int feature) {
    return values_[std::size_t{window} * kFeatureCount + static_cast<std::size_t>(feature)];
  }
  std::vector<double> take() { return std::move(values_); }

 private:
  std::vector<double> values_;
};

/// Finds the window of times that come in order. Amortised O(1).
class WindowWalk {
 public:
  explicit WindowWalk(const WindowSet& windows) : edges_(windows.bounds_ns) {}
  /// Window of `time_ns`, or windows.count() if it lies outside. The end bound belongs to the last.
  std::uint32_t find(std::int64_t time_ns) {
    const auto count = static_cast<std::uint32_t>(edges_.size() - 1);
    if (time_ns < edges_.front() || time_ns > edges_.back()) return count;
    while (window_ + 1 < count && edges_[window_ + 1] <= time_ns) ++window_;
    return window_;
  }

 private:
  const std::vector<std::int64_t>& edges_;
  std::uint32_t window_ = 0;
};

/// Adds the time covered by intervals that come by start, overlapping or not, to one column in ns.
/// What is covered twice counts once. Amortised O(1) per interval and window.
class CoverColumn {
 public:
  CoverColumn(const WindowSet& windows, FeatureMatrix& matrix, int feature)
      : edges_(windows.bounds_ns),
        matrix_(matrix),
        feature_(feature),
        covered_to_(edges_.front()) {}

  void add(std::int64_t start_ns, std::int64_t end_ns) {
    start_ns = std::max(start_ns, covered_to_);
    end_ns = std::min(end_ns, edges_.back());
    if (end_ns <= start_ns) return;
    covered_to_ = end_ns;
    const auto count = static_cast<std::uint32_t>(edges_.size() - 1);
    while (window_ + 1 < count && edges_[window_ + 1] <= start_ns) ++window_;
    for (std::uint32_t w = window_; w < count && edges_[w] < end_ns; ++w) {
      const std::int64_t from = std::max(start_ns, edges_[w]);
      const std::int64_t to = std::min(end_ns, edges_[w + 1]);
      matrix_.at(w, feature_) += static_cast<double>(to - from);
    }
  }

 private:
  const std::vector<std::int64_t>& edges_;
  FeatureMatrix& matrix_;
  int feature_;
  std::int64_t covered_to_;
  std::uint32_t window_ = 0;
};

/// Per track: does it feed the GPU, or is it the main thread? Others (the loader's pin thread,
/// collective watchdogs) wait and copy without holding anything up.
std::vector<std::uint8_t> feeding_tracks(const EventTable& table, const EventTree& tree);
/// Per row: the outermost compiled region around a host row (itself for one), or kNoRow. Empty
/// where nothing is compiled.
std::vector<Row> compiled_regions(const EventTable& table, const EventTree& tree);

/// Columns seen from the host: what its threads did, queue, compiled regions, phases. Times covered
/// are left in ns.
void add_host_features(const EventTable& table, const EventTree& tree, const WindowSet& windows,
                       FeatureMatrix& matrix);
/// Columns that count and measure GPU events by the window of their start.
void add_gpu_event_features(const EventTable& table, const EventTree& tree,
                            const WindowSet& windows, FeatureMatrix& matrix);

}  // namespace traceap
