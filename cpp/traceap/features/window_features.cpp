#include "traceap/features/window_features.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "traceap/features/feature_columns.hpp"

namespace traceap {
namespace {

constexpr std::array<std::string_view, kFeatureCount> kFeatureNames{
    "busy_share",
    "compute_share",
    "communication_share",
    "memcpy_share",
    "exposed_communication_share",
    "exposed_memcpy_share",
    "communication_overlap_ratio",
    "idle_data_loading_share",
    "idle_host_wait_share",
    "idle_synchronization_share",
    "idle_memory_copy_share",
    "idle_communication_wait_share",
    "idle_compilation_share",
    "idle_allocator_share",
    "idle_launch_latency_share",
    "idle_profiler_share",
    "idle_unknown_share",
    "idle_longest_share",
    "queue_depth_mean",
    "queue_depth_max",
    "queue_depth_min",
    "launch_count",
    "kernel_count",
    "copy_count",
    "small_kernel_share",
    "kernel_median_us",
    "launch_delay_p10_us",
    "launch_delay_p50_us",
    "launch_delay_p90_us",
    "host_busy_share",
    "synchronization_share",
    "blocking_copy_share",
    "allocator_share",
    "allocator_count",
    "data_loading_share",
    "compilation_share",
    "copy_bytes_htod_pageable_log2",
    "copy_bytes_htod_pinned_log2",
    "copy_bytes_dtoh_pageable_log2",
    "copy_bytes_dtoh_pinned_log2",
    "copy_bytes_dtod_log2",
    "copy_bytes_other_log2",
    "collective_count",
    "collective_median_bytes_log2",
    "collective_median_us",
    "stream_count",
    "compiled_region_transitions",
    "phase_input_share",
    "phase_forward_share",
    "phase_backward_share",
    "phase_optimizer_share",
    "step_position",
    "window_length_log10_us",
};

/// Columns that hold ns covered until divide_by_length turns them into shares.
constexpr std::array kCoverColumns{kBusyShare,
                                   kComputeShare,
                                   kCommunicationShare,
                                   kMemcpyShare,
                                   kExposedCommunicationShare,
                                   kExposedMemcpyShare,
                                   kIdleLongestShare,
                                   kHostBusyShare,
                                   kSynchronizationShare,
                                   kBlockingCopyShare,
                                   kAllocatorShare,
                                   kDataLoadingShare,
                                   kCompilationShare,
                                   kPhaseInputShare,
                                   kPhaseForwardShare,
                                   kPhaseBackwardShare,
                                   kPhaseOptimizerShare};

void add_cover(const IntervalSet& set, const WindowSet& windows, FeatureMatrix& matrix,
               int feature) {
  CoverColumn column(windows, matrix, feature);
  for (const Interval& i : set) column.add(i.start_ns, i.end_ns);
}

void add_timeline_features(const GpuIntervals& gpu, const WindowSet& windows,
                           FeatureMatrix& matrix) {
  const IntervalSet compute_or_communication = set_union(gpu.compute, gpu.communication);
  add_cover(gpu.busy, windows, matrix, kBusyShare);
  add_cover(gpu.compute, windows, matrix, kComputeShare);
  add_cover(gpu.communication, windows, matrix, kCommunicationShare);
  add_cover(gpu.memcpy, windows, matrix, kMemcpyShare);
  add_cover(set_difference(gpu.communication, gpu.compute), windows, matrix,
            kExposedCommunicationShare);
  add_cover(set_difference(gpu.memcpy, compute_or_communication), windows, matrix,
            kExposedMemcpyShare);
  for (std::uint32_t w = 0; w < windows.count(); ++w) {
    const double all = matrix.at(w, kCommunicationShare);
    if (all <= 0) continue;
    matrix.at(w, kCommunicationOverlapRatio) = 1 - matrix.at(w, kExposedCommunicationShare) / all;
  }
}

/// Longest part of one GPU idle interval (whatever its causes) inside each window.
void add_longest_idle(const GpuIntervals& gpu, const WindowSet& windows, FeatureMatrix& matrix) {
  const Interval all{windows.bounds_ns.front(), windows.bounds_ns.back()};
  std::uint32_t first = 0;
  const IntervalSet gaps = set_difference(set_complement(gpu.busy, all), gpu.not_judged);
  for (const Interval& idle : gaps) {
    while (windows.bounds_ns[first + 1] <= idle.start_ns) ++first;
    for (std::uint32_t w = first; w < windows.count() && windows.bounds_ns[w] < idle.end_ns; ++w) {
      const std::int64_t from = std::max(idle.start_ns, windows.bounds_ns[w]);
      const std::int64_t to = std::min(idle.end_ns, windows.bounds_ns[w + 1]);
      double& longest = matrix.at(w, kIdleLongestShare);
      longest = std::max(longest, static_cast<double>(to - from));
    }
  }
}

void add_idle_features(const IdleBreakdown& idle, const WindowSet& windows, FeatureMatrix& matrix) {
  std::vector<CoverColumn> columns;
  for (int cause = 0; cause < kScoredIdleCauseCount; ++cause) {
    columns.emplace_back(windows, matrix, kIdleShareFirst + cause);
  }
  for (const IdleInterval& i : idle.intervals) {
    columns[static_cast<std::size_t>(scored_idle_cause(i.cause))].add(i.interval.start_ns,
                                                                      i.interval.end_ns);
  }
}

void divide_by_length(const WindowSet& windows, FeatureMatrix& matrix) {
  for (std::uint32_t w = 0; w < windows.count(); ++w) {
    const auto length_ns = static_cast<double>(windows.bounds(w).length_ns());
    if (length_ns <= 0) continue;  // nothing was covered
    for (const Feature f : kCoverColumns) matrix.at(w, f) /= length_ns;
    for (int c = 0; c < kScoredIdleCauseCount; ++c) matrix.at(w, kIdleShareFirst + c) /= length_ns;
  }
}

void add_place_features(const EventTree& tree, const WindowSet& windows, FeatureMatrix& matrix) {
  std::size_t s = 0;
  for (std::uint32_t w = 0; w < windows.count(); ++w) {
    const Interval bounds = windows.bounds(w);
    matrix.at(w, kWindowLength) =
        std::log10(std::max(1e-3, static_cast<double>(bounds.length_ns()) / 1000.0));
    const std::int64_t middle = bounds.start_ns + bounds.length_ns() / 2;
    while (s < tree.steps.size() && tree.steps[s].end_ns <= middle) ++s;
    if (s == tree.steps.size() || tree.steps[s].start_ns > middle) continue;
    const Step& step = tree.steps[s];
    matrix.at(w, kStepPosition) = static_cast<double>(middle - step.start_ns) /
                                  static_cast<double>(step.end_ns - step.start_ns);
  }
}

}  // namespace

std::span<const std::string_view> window_feature_names() { return kFeatureNames; }

FeatureBlock build_features(const EventTable& table, const EventTree& tree, const GpuIntervals& gpu,
                            const IdleBreakdown& idle, const WindowSet& windows) {
  FeatureBlock block;
  block.names.assign(kFeatureNames.begin(), kFeatureNames.end());
  block.window_count = windows.count();
  FeatureMatrix matrix(block.window_count);
  add_timeline_features(gpu, windows, matrix);
  add_idle_features(idle, windows, matrix);
  add_longest_idle(gpu, windows, matrix);
  add_host_features(table, tree, windows, matrix);
  add_gpu_event_features(table, tree, windows, matrix);
  add_place_features(tree, windows, matrix);
  divide_by_length(windows, matrix);
  block.values = matrix.take();
  block.zscores = robust_zscores(block.values, block.window_count, kFeatureCount);
  return block;
}

}  // namespace traceap
