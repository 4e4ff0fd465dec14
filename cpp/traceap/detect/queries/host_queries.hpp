#pragma once
// Questions that several rules ask about API calls, copies and the host's stacks.

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "traceap/base/ids.hpp"
#include "traceap/base/intervals.hpp"
#include "traceap/base/text.hpp"
#include "traceap/table/event_table.hpp"
#include "traceap/tree/event_tree.hpp"

namespace traceap {

struct Copy {
  Row row;
  CopyKind kind;
  std::optional<std::int64_t> bytes;  ///< args.bytes, if it can be a size
  Row launch;                         ///< the API call; kNoRow for orphans
  /// While the host sat in the copy: its API call, to the end of the synchronisation that waits for
  /// it. Empty (start = end) without a launch.
  Interval host;
  Row sync;  ///< that synchronisation; kNoRow if none
};
/// Every GPU event of class memcpy, by start. O(n).
std::vector<Copy> build_copies(const EventTable& table, const EventTree& tree);

/// The row after `row` on the same thread that has the same parent, or kNoRow. O(1).
Row next_sibling(const EventTable& table, const EventTree& tree, Row row);
/// First GPU row in `sorted_rows` (by start) that starts at or after `time_ns`; kNoRow if none.
Row first_row_from(const EventTable& table, std::span<const Row> sorted_rows, std::int64_t time_ns);

inline Interval interval_of(const EventTable& table, Row row) {
  return {table.ts_ns[row], table.end_ns(row)};
}

}  // namespace traceap
