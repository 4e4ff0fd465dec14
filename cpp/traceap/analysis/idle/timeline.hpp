#pragma once
// GPU time split by INTERFACE's definitions, by interval union over sorted intervals.

#include <cstdint>
#include <string>
#include <vector>

#include "traceap/base/intervals.hpp"
#include "traceap/table/event_table.hpp"
#include "traceap/tree/event_tree.hpp"

namespace traceap {

/// All in ns. compute + exposed_communication + exposed_memcpy + idle = span, exactly. What the
/// recording can't be trusted for (tree/recording.hpp) is part of none.
struct Timeline {
  std::int64_t span_ns = 0, busy_ns = 0, idle_ns = 0, compute_ns = 0, communication_ns = 0,
               memcpy_ns = 0, exposed_communication_ns = 0, exposed_memcpy_ns = 0;
  friend bool operator==(const Timeline&, const Timeline&) = default;
};

/// Unions of GPU events by class; what a Timeline and every detector start from.
/// Invariants: busy is the union of the other three; not_judged overlaps none of them.
struct GpuIntervals {
  IntervalSet busy, compute, communication, memcpy;
  IntervalSet not_judged;  ///< Recording::not_judged: neither busy nor idle
  /// First start to last end of the events, those of no length included; empty (start = end = 0)
  /// without events, or where the sets were made by hand: then busy says it.
  Interval span{0, 0};
};

struct TimelineOptions {
  bool linked_only = false;  ///< leave orphans out
  std::int32_t device = -1;  ///< only this device; -1 = all merged into one union
  /// Keep what the recording can't be trusted for: sums over events are of all that is recorded.
  bool keep_not_judged = false;
};

struct DeviceTimeline {
  std::int32_t device;  ///< -1: the events that name no device
  Timeline timeline;
};

/// O(GPU events): tree.gpu_rows is sorted already.
GpuIntervals build_gpu_intervals(const EventTable& table, const EventTree& tree,
                                 const TimelineOptions& options = {});
/// Over the span of `gpu` itself (first start to last end). All zeros without GPU events.
Timeline compute_timeline(const GpuIntervals& gpu);
/// Clipped to `bounds`; span is the length of `bounds` (0 if they are reversed), without what is
/// not judged.
/// O(log n + intervals inside the bounds).
Timeline compute_timeline(const GpuIntervals& gpu, Interval bounds);
/// One for each device that ran something, by device, each over its own span.
/// O(n log n) in GPU events, however many devices there are.
std::vector<DeviceTimeline> compute_device_timelines(const EventTable& table, const EventTree& tree,
                                                     bool linked_only = false);
/// Sums every field.
Timeline operator+(const Timeline& a, const Timeline& b);

}  // namespace traceap
