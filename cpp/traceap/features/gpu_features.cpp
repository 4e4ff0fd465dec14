// Features that count and measure GPU events by the window of their start.

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <vector>

#include "traceap/analysis/collectives/metadata.hpp"
#include "traceap/analysis/idle/host_activity.hpp"
#include "traceap/base/statistics.hpp"
#include "traceap/features/feature_columns.hpp"

namespace traceap {
namespace {

/// Shorter kernels cost the host about as much as they give the device: a launch call takes 5 to
/// 10 us, and TraceLens calls a kernel below 10 us short.
constexpr std::int64_t kSmallKernelNs = 10'000;

/// Message by kernel, of the collectives whose message was recorded.
using MessageBytes = std::unordered_map<Row, std::int64_t>;
MessageBytes message_bytes(const EventTable& table, const EventTree& tree) {
  MessageBytes found;
  for (const Collective& collective : build_collectives(table, tree).collectives) {
    if (collective.bytes) found.emplace(collective.row, *collective.bytes);
  }
  return found;
}

class GpuFeatures {
 public:
  GpuFeatures(const EventTable& table, const EventTree& tree, const WindowSet& windows,
              FeatureMatrix& matrix)
      : table_(table),
        tree_(tree),
        windows_(windows),
        matrix_(matrix),
        bytes_(table, "bytes"),
        message_bytes_(message_bytes(table, tree)),
        last_window_of_stream_(tree.streams.size(), kNoRow) {}

  void add_window(std::uint32_t w) {
    kernel_ns_.clear();
    delay_ns_.clear();
    collective_ns_.clear();
    collective_bytes_.clear();
    std::int64_t copied[6] = {};
    std::uint32_t small = 0;
    for (const Row r : windows_.rows_of(w)) {
      if (!table_.is_gpu_event(r)) continue;
      count_stream(r, w);
      add_delay(r);
      switch (tree_.gpu_class[r]) {
        case GpuClass::kMemcpy:
          add_copy(r, w, copied);
          break;
        case GpuClass::kCommunication:
          add_collective(r);
          break;
        default:
          break;
      }
      if (table_.kind[r] != EventKind::kKernel) continue;
      kernel_ns_.push_back(table_.dur_ns[r]);
      if (table_.dur_ns[r] < kSmallKernelNs) ++small;
    }
    for (const Row r : windows_.overlapping.empty() ? std::span<const Row>() : overlapping(w)) {
      if (table_.is_gpu_event(r)) count_stream(r, w);
    }
    write(w, small, copied);
  }

 private:
  std::span<const Row> overlapping(std::uint32_t w) const {
    return {windows_.overlapping.data() + windows_.overlapping_offsets[w],
            windows_.overlapping.data() + windows_.overlapping_offsets[w + 1]};
  }

  void count_stream(Row r, std::uint32_t w) {
    const std::uint32_t stream = tree_.stream_of[r];
    if (stream >= last_window_of_stream_.size() || last_window_of_stream_[stream] == w) return;
    last_window_of_stream_[stream] = w;
    ++matrix_.at(w, kStreamCount);
  }

  void add_delay(Row r) {
    const std::int64_t delay = launch_delay_ns(table_, tree_, r);
    if (delay != kNoId) delay_ns_.push_back(delay);
  }

  void add_copy(Row r, std::uint32_t w, std::int64_t (&copied)[6]) {
    ++matrix_.at(w, kCopyCount);
    const std::int64_t bytes = std::max<std::int64_t>(0, bytes_.integer(r).value_or(0));
    std::int64_t& sum = copied[copy_column(tree_.copy_of(r)) - kCopyBytesHtoDPageable];
    sum = bytes > INT64_MAX - sum ? INT64_MAX : sum + bytes;
  }

  static int copy_column(CopyKind copy) {
    const bool pageable = copy.memory == HostMemory::kPageable;
    if (is_between_devices(copy.direction)) return kCopyBytesDtoD;
    if (!is_host_device(copy.direction) || !(pageable || copy.memory == HostMemory::kPinned)) {
      return kCopyBytesOther;
    }
    if (copy.direction == CopyDirection::kHostToDevice) {
      return pageable ? kCopyBytesHtoDPageable : kCopyBytesHtoDPinned;
    }
    return pageable ? kCopyBytesDtoHPageable : kCopyBytesDtoHPinned;
  }

  void add_collective(Row r) {
    collective_ns_.push_back(table_.dur_ns[r]);
    const auto message = message_bytes_.find(r);
    if (message != message_bytes_.end()) {
      collective_bytes_.push_back(static_cast<double>(message->second));
    }
  }

  void write(std::uint32_t w, std::uint32_t small, const std::int64_t (&copied)[6]) {
    matrix_.at(w, kKernelCount) = static_cast<double>(kernel_ns_.size());
    if (!kernel_ns_.empty()) {
      matrix_.at(w, kSmallKernelShare) = small / static_cast<double>(kernel_ns_.size());
      matrix_.at(w, kKernelMedianUs) = quantile_of(kernel_ns_, 0.5) / 1000;
    }
    matrix_.at(w, kLaunchDelayP10Us) = quantile_of(delay_ns_, 0.1) / 1000;
    matrix_.at(w, kLaunchDelayP50Us) = quantile_of(delay_ns_, 0.5) / 1000;
    matrix_.at(w, kLaunchDelayP90Us) = quantile_of(delay_ns_, 0.9) / 1000;
    for (int i = 0; i < 6; ++i) {
      matrix_.at(w, kCopyBytesHtoDPageable + i) = std::log2(1.0 + static_cast<double>(copied[i]));
    }
    matrix_.at(w, kCollectiveCount) = static_cast<double>(collective_ns_.size());
    matrix_.at(w, kCollectiveMedianUs) = quantile_of(collective_ns_, 0.5) / 1000;
    if (!collective_bytes_.empty()) {
      matrix_.at(w, kCollectiveMedianBytes) = std::log2(1.0 + median_of(collective_bytes_));
    }
  }

  const EventTable& table_;
  const EventTree& tree_;
  const WindowSet& windows_;
  FeatureMatrix& matrix_;
  ArgReader bytes_;
  MessageBytes message_bytes_;
  std::vector<std::uint32_t> last_window_of_stream_;
  std::vector<std::int64_t> kernel_ns_, delay_ns_, collective_ns_;
  std::vector<double> collective_bytes_;
};

}  // namespace

void add_gpu_event_features(const EventTable& table, const EventTree& tree,
                            const WindowSet& windows, FeatureMatrix& matrix) {
  GpuFeatures features(table, tree, windows, matrix);
  for (std::uint32_t w = 0; w < windows.count(); ++w) features.add_window(w);
}

}  // namespace traceap
