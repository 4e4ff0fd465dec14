#pragma once
// GPU time of each host row, and each instant of GPU time owned by exactly one event.

#include <cstdint>
#include <span>
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
  /// Of a host row: exclusive_ns of the GPU events that it owns. With those of the events that
  /// nobody owns it sums to the busy time.
  std::vector<std::int64_t> owned_exclusive_ns;
  std::vector<std::uint32_t> own_gpu_events, subtree_gpu_events;
  /// Of a host row: calls that launched GPU events which it owns; each call counts once.
  std::vector<std::uint32_t> own_launches;
  /// Of a forward op: subtree_gpu_ns of the backward ops that go back to it. The engine's frame,
  /// the node and the op inside it all go back to the same op: the outermost counts.
  std::vector<std::int64_t> backward_gpu_ns;
  /// Of a host row: backward_gpu_ns of itself and of all that is below it.
  std::vector<std::int64_t> subtree_backward_gpu_ns;
  /// Of a complete host row: time in which it is the innermost row of its thread; where two
  /// overlap, the later one has the time. Sums over a thread to the union of its rows
  /// (visit_self_time says how exactly).
  std::vector<std::int64_t> self_host_ns;
  /// Of a host row: 1 if a row of the same kind and name encloses it. Sums of anything that
  /// includes the rows below must leave these out.
  std::vector<std::uint8_t> is_repeated;
  /// Of a GPU event: the row that owns it; kNoRow for orphans and for host rows.
  std::vector<Row> owner;
};

/// O(n log n), whatever the depth of the call stacks.
GpuCosts build_gpu_costs(const EventTable& table, const EventTree& tree);

/// Per row: the innermost row for which `marked` holds, at or above it; kNoRow if there is none.
/// O(n).
std::vector<Row> innermost_marked(const EventTree& tree, std::span<const std::uint8_t> marked);

/// Union in ns of the GPU events of each group; `group_of` follows tree.gpu_rows, and what is not
/// in [0, groups) belongs to none. O(GPU events).
std::vector<std::int64_t> group_gpu_union(const EventTable& table, const EventTree& tree,
                                          std::span<const std::int32_t> group_of,
                                          std::size_t groups);

}  // namespace traceap
