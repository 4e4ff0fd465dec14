#pragma once
// What a stream had queued, over time: launched by the host, not yet begun on the GPU.

#include <cstdint>
#include <vector>

#include "traceap/table/event_table.hpp"
#include "traceap/tree/event_tree.hpp"

namespace traceap {

/// The queues of all streams, one entry per change, by stream and time. A launch call adds one to
/// each stream that it puts work on, at its start; the first of its GPU events on that stream takes
/// it away, at its start. So a graph replay counts once for a stream, however many kernels it has.
struct LaunchQueue {
  std::vector<std::uint32_t> offsets;  ///< per index of tree.streams, +1: into the columns below
  std::vector<std::int64_t> time_ns;   ///< host clock
  std::vector<std::int32_t> length;    ///< from then on; never negative
  std::vector<Row> row;                ///< the launch call (+1) or the GPU event (-1)
  /// Per index of tree.gpu_rows: what its launch found queued, itself not counted; -1 for orphans.
  std::vector<std::int32_t> found;
};

/// GPU times are moved to the host's clock by tree.launch_delay_correction_ns; an event that begins
/// before its call all the same leaves the queue as the call enters it. Where both happen at once,
/// launches come first. After HTA's queue length (its unit, one per correlated pair, is the same
/// but for graphs). O(k log k) for k linked GPU events.
LaunchQueue build_launch_queue(const EventTable& table, const EventTree& tree);

}  // namespace traceap
