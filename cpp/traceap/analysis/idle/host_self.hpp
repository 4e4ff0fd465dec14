#pragma once
// What each host thread did at each moment: the innermost open row has the time.

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "traceap/analysis/idle/idle.hpp"
#include "traceap/base/interrupt.hpp"
#include "traceap/table/event_table.hpp"
#include "traceap/tree/event_tree.hpp"

namespace traceap {

/// Calls visit(row, piece) for each piece of time in which `row` is the innermost open row of
/// `track`. Pieces come in order of time, never overlap and never are empty; together they are the
/// union of the thread's rows, but for what a row sticks out of its parent (no more than the
/// tolerance of nesting) after the next row has begun. O(rows of the track).
template <typename Visit>
void visit_self_time(const EventTable& table, const EventTree& tree, TrackId track,
                     const Visit& visit) {
  std::vector<Row> open;
  std::int64_t now_ns = kNoId;
  const auto spend_until = [&](Row row, std::int64_t end_ns) {
    if (end_ns > now_ns) {
      visit(row, Interval{now_ns, end_ns});
      now_ns = end_ns;
    }
  };
  const std::uint32_t begin = tree.host_offsets[track], end = tree.host_offsets[track + 1];
  for (std::uint32_t position = begin; position < end; ++position) {
    poll_interrupt();
    const Row row = tree.host_rows[position];
    const std::int64_t start_ns = table.ts_ns[row];
    // A row that still runs is closed here by one that overlaps it and ends later.
    for (; !open.empty() && open.back() != tree.parent[row]; open.pop_back()) {
      spend_until(open.back(), std::min(table.end_ns(open.back()), start_ns));
    }
    if (!open.empty()) spend_until(open.back(), start_ns);
    now_ns = std::max(now_ns, start_ns);
    open.push_back(row);
  }
  for (; !open.empty(); open.pop_back()) spend_until(open.back(), table.end_ns(open.back()));
}

/// ns by cause of idleness.
using NsByCause = std::array<std::int64_t, kIdleCauseCount>;

/// What a host thread did within the bounds, and while the GPU was idle.
struct HostThread {
  TrackId track;
  std::int64_t busy_ns = 0;          ///< union of its rows
  NsByCause busy_idle_ns{};          ///< the part of it in which the GPU was idle
  std::int64_t blocked_idle_ns = 0;  ///< of that: in calls that wait for the GPU or a collective
  NsByCause silent_idle_ns{};        ///< GPU idle, and no row of the thread is open
};

/// For each thread, busy_idle + silent_idle = idle time, by cause, exactly; summed over the groups,
/// idle_self_ns is the sum of busy_idle over the threads.
struct HostIdle {
  std::vector<HostThread> threads;      ///< in the order of tree.host_tracks
  std::vector<std::int64_t> self_ns;    ///< [groups + 1]: self time within the bounds
  std::vector<NsByCause> idle_self_ns;  ///< [groups + 1]: the part of it in which the GPU was idle
};

/// Self time of host rows by group, within `bounds` (GPU clock) and within the idle intervals.
/// `group_of` has an entry per row of the table: a group in [0, groups); a row with another entry
/// counts to the group of the row around it, and without one to the last entry of the result.
/// O(n + threads * log(idle intervals) + pieces * log(intervals skipped)).
HostIdle build_host_idle(const EventTable& table, const EventTree& tree, const IdleBreakdown& idle,
                         Interval bounds, std::span<const std::int32_t> group_of,
                         std::size_t groups);

}  // namespace traceap
