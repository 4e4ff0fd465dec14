#pragma once
// GPU time of each host row, and each instant of GPU time owned by exactly one event.

#include <cstdint>
#include <vector>

#include "traceap/table/event_table.hpp"
#include "traceap/tree/event_tree.hpp"

namespace traceap {

/// Columns with one entry per row of the table, all in ns or counts.
struct GpuCosts {
  /// Of a GPU event: the part of its time that counts for it alone. Compute hides communication,
  /// which hides copies; among events of one class the one that started first has the time until it
  /// ends. So sums by class are the timeline's compute, exposed communication and exposed memcpy,
  /// and all of them together are its busy time, exactly.
  std::vector<std::int64_t> exclusive_ns;
  /// Of a host row: union of the GPU events that it owns. A GPU event is owned by the innermost
  /// op above its launch (by its External id without one), else by its launch.
  std::vector<std::int64_t> own_gpu_ns;
  /// Of a host row: union of the GPU events launched by it or by anything below it.
  std::vector<std::int64_t> subtree_gpu_ns;
  std::vector<std::uint32_t> own_gpu_events, subtree_gpu_events;
  /// Of a complete host row: its time without that of its children.
  std::vector<std::int64_t> self_host_ns;
  /// Of a GPU event: the row that owns it; kNoRow for orphans and for host rows.
  std::vector<Row> owner;
};

/// O(GPU events * depth of their launch + n).
GpuCosts build_gpu_costs(const EventTable& table, const EventTree& tree);

}  // namespace traceap
