// Features seen from the host's threads.

#include <algorithm>
#include <array>
#include <vector>

#include "traceap/analysis/idle/host_activity.hpp"
#include "traceap/base/interrupt.hpp"
#include "traceap/features/feature_columns.hpp"

namespace traceap {
namespace {

class HostFeatures {
 public:
  HostFeatures(const EventTable& table, const EventTree& tree, const WindowSet& windows,
               FeatureMatrix& matrix)
      : table_(table),
        tree_(tree),
        windows_(windows),
        matrix_(matrix),
        activity_(table, tree),
        walk_(windows),
        busy_(windows, matrix, kHostBusyShare),
        synchronization_(windows, matrix, kSynchronizationShare),
        blocking_copy_(windows, matrix, kBlockingCopyShare),
        allocator_(windows, matrix, kAllocatorShare),
        data_loading_(windows, matrix, kDataLoadingShare),
        compilation_(windows, matrix, kCompilationShare),
        phases_{CoverColumn(windows, matrix, kPhaseInputShare),
                CoverColumn(windows, matrix, kPhaseForwardShare),
                CoverColumn(windows, matrix, kPhaseBackwardShare),
                CoverColumn(windows, matrix, kPhaseOptimizerShare)} {}

  void add_all() {
    const std::vector<std::uint8_t> feeds = feeding_tracks(table_, tree_);
    for (Row r = 0; r < table_.size(); ++r) {
      poll_interrupt();
      if (!is_host(table_.kind[r]) || !table_.is_complete(r) || !feeds[table_.track[r]]) continue;
      add_row(r);
    }
    add_queue_depth();
    add_region_transitions();
  }

 private:
  void add_row(Row r) {
    const std::int64_t start = table_.ts_ns[r], end = table_.end_ns(r);
    const EventKind kind = table_.kind[r];
    const HostActivity activity = activity_(r);
    // Legacy traces write steps and loader ranges as operators.
    const bool is_range =
        activity == HostActivity::kMarker || activity == HostActivity::kDataLoading;
    if (is_api_call(kind) || (kind == EventKind::kCpuOp && !is_range)) busy_.add(start, end);
    if (tree_.phase[r] != Phase::kOther) {
      phases_[static_cast<std::size_t>(tree_.phase[r]) - 1].add(start, end);
    }
    const std::uint32_t window = is_api_call(kind) ? walk_.find(start) : windows_.count();
    if (window < windows_.count() && !tree_.launched_by(r).empty()) {
      ++matrix_.at(window, kLaunchCount);
    }
    switch (activity) {
      case HostActivity::kSynchronize:
        return synchronization_.add(start, end);
      case HostActivity::kSyncCopy:
        return blocking_copy_.add(start, end);
      case HostActivity::kAsyncCopy:
        if (is_blocking_copy(table_, tree_, r)) blocking_copy_.add(start, end);
        return;
      case HostActivity::kAllocator:
        if (window < windows_.count()) ++matrix_.at(window, kAllocatorCount);
        return allocator_.add(start, end);
      case HostActivity::kDataLoading:
        return data_loading_.add(start, end);
      case HostActivity::kCompilation:
        return compilation_.add(start, end);
      default:
        return;
    }
  }

  /// A launch is in the queue from its call's start until the first of its events starts.
  void add_queue_depth() {
    std::vector<std::int64_t> entered, left;
    std::vector<bool> seen(table_.size());
    for (const Row r : tree_.gpu_rows) {
      poll_interrupt();
      const Row launch = tree_.launch[r];
      if (launch == kNoRow || seen[launch]) continue;
      seen[launch] = true;
      const std::int64_t at = table_.ts_ns[launch] - tree_.launch_delay_correction_ns;
      if (at >= table_.ts_ns[r]) continue;
      entered.push_back(at);
      left.push_back(table_.ts_ns[r]);  // in order: GPU events are visited by start
    }
    std::sort(entered.begin(), entered.end());
    std::size_t in = 0, out = 0;
    for (std::uint32_t w = 0; w < windows_.count(); ++w) {
      sweep_window(w, entered, left, in, out);
    }
  }

  void sweep_window(std::uint32_t w, const std::vector<std::int64_t>& entered,
                    const std::vector<std::int64_t>& left, std::size_t& in, std::size_t& out) {
    const Interval bounds = windows_.bounds(w);
    const auto apply_until = [&](std::int64_t time_ns) {
      while (in < entered.size() && entered[in] <= time_ns) ++in;
      while (out < left.size() && left[out] <= time_ns) ++out;
    };
    std::int64_t now = bounds.start_ns;
    apply_until(now);
    double lowest = static_cast<double>(in - out), highest = lowest, area = 0;
    while (now < bounds.end_ns) {
      std::int64_t next = bounds.end_ns;
      if (in < entered.size()) next = std::min(next, entered[in]);
      if (out < left.size()) next = std::min(next, left[out]);
      const auto depth = static_cast<double>(in - out);
      lowest = std::min(lowest, depth);
      highest = std::max(highest, depth);
      area += depth * static_cast<double>(next - now);
      now = next;
      if (now < bounds.end_ns) apply_until(now);
    }
    matrix_.at(w, kQueueDepthMin) = lowest;
    matrix_.at(w, kQueueDepthMax) = highest;
    if (bounds.length_ns() > 0) {
      matrix_.at(w, kQueueDepthMean) = area / static_cast<double>(bounds.length_ns());
    }
  }

  /// Changes of the compiled region, eager code included, from one launch call of a thread to its
  /// next.
  void add_region_transitions() {
    const std::vector<Row> region = compiled_regions(table_, tree_);
    if (region.empty()) return;
    std::vector<Row> last(table_.tracks.size(), kNoRow);
    std::vector<std::uint8_t> launched(table_.tracks.size(), 0);
    WindowWalk walk(windows_);
    for (Row r = 0; r < table_.size(); ++r) {
      if (!is_host(table_.kind[r]) || tree_.launched_by(r).empty()) continue;
      const TrackId track = table_.track[r];
      const std::uint32_t window = walk.find(table_.ts_ns[r]);
      if (launched[track] && last[track] != region[r] && window < windows_.count()) {
        ++matrix_.at(window, kCompiledRegionTransitions);
      }
      launched[track] = 1;
      last[track] = region[r];
    }
  }

  const EventTable& table_;
  const EventTree& tree_;
  const WindowSet& windows_;
  FeatureMatrix& matrix_;
  HostActivities activity_;
  WindowWalk walk_;
  CoverColumn busy_, synchronization_, blocking_copy_, allocator_, data_loading_, compilation_;
  std::array<CoverColumn, 4> phases_;  ///< by Phase, kOther left out
};

}  // namespace

std::vector<std::uint8_t> feeding_tracks(const EventTable& table, const EventTree& tree) {
  std::vector<std::uint8_t> feeds(table.tracks.size(), 0);
  if (tree.main_track != kNoTrack) feeds[tree.main_track] = 1;
  for (const Row r : tree.gpu_rows) {
    poll_interrupt();
    if (tree.launch[r] != kNoRow) feeds[table.track[tree.launch[r]]] = 1;
  }
  return feeds;
}

std::vector<Row> compiled_regions(const EventTable& table, const EventTree& tree) {
  const HostActivities activity(table, tree);
  std::vector<Row> region;
  for (Row r = 0; r < table.size(); ++r) {  // parents precede children
    poll_interrupt();
    if (!is_host(table.kind[r])) continue;
    const Row parent = tree.parent[r];
    if (!region.empty() && parent != kNoRow && region[parent] != kNoRow) {
      region[r] = region[parent];
    } else if (activity(r) == HostActivity::kCompiledRegion) {
      if (region.empty()) region.assign(table.size(), kNoRow);
      region[r] = r;
    }
  }
  return region;
}

void add_host_features(const EventTable& table, const EventTree& tree, const WindowSet& windows,
                       FeatureMatrix& matrix) {
  HostFeatures(table, tree, windows, matrix).add_all();
}

}  // namespace traceap
