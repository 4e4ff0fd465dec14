#pragma once
// A replay back as times of events.

#include <cstdint>
#include <span>
#include <vector>

#include "traceap/simulation/execution_graph.hpp"
#include "traceap/table/event_table.hpp"

namespace traceap {

struct RowTimes {
  std::vector<std::int64_t> ts_ns, dur_ns;  ///< by row; 0 where the event has none
};

/// When the events of a rank happen in a replay, on its own clock. See Note [Rows without points].
/// `replayed_ns`: by point. `gpu_shift_ns`: added to the times of GPU tracks. Without an edit, with
/// residuals and without a shift these are the table's own times. Throws SchemaError for a rank
/// that the graph does not have, or another number of points or rows. O(n log n).
RowTimes row_times(const ExecutionGraph& graph, std::uint32_t rank, const EventTable& table,
                   std::span<const std::int64_t> replayed_ns, std::int64_t gpu_shift_ns = 0);

}  // namespace traceap
