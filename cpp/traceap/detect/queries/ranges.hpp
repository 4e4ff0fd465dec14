#pragma once
// Host ranges and threads, and what was launched from inside them.

#include <cstdint>
#include <utility>
#include <vector>

#include "traceap/detect/finding.hpp"

namespace traceap {

/// Per track: does it launch kernels or copies? Other threads' waiting stops no work.
std::vector<std::uint8_t> launching_tracks(const Signals& signals);
/// Per row: does an operator enclose it (itself excluded)? One pass.
std::vector<std::uint8_t> rows_inside_operators(const Signals& signals);
/// Did a backward pass run? Then the trace is of training.
bool has_backward(const Signals& signals);

/// Per row: the outermost enclosing host row (itself included) for which `is_range` holds; kNoRow
/// if none. One pass, whatever the nesting.
template <class Predicate>  // bool(Row)
std::vector<Row> outermost_ranges(const Signals& signals, Predicate&& is_range) {
  const EventTable& table = signals.table;
  std::vector<Row> outer(table.size(), kNoRow);
  for (Row r = 0; r < table.size(); ++r) {  // parents precede children
    if (!is_host(table.kind[r]) || !table.is_complete(r)) continue;
    const Row parent = signals.tree.parent[r];
    if (parent != kNoRow && outer[parent] != kNoRow) {
      outer[r] = outer[parent];
    } else if (is_range(r)) {
      outer[r] = r;
    }
  }
  return outer;
}
/// Rows that are their own outermost range.
std::vector<Row> range_rows(const std::vector<Row>& outer);

/// GPU rows launched from inside each range: kernels, copies and memsets by range, in row order of
/// the ranges, then by start.
struct RangeLaunches {
  Row range;
  std::vector<Row> gpu_rows;
};
std::vector<RangeLaunches> launches_by_range(const Signals& signals, const std::vector<Row>& outer);
/// First start to last end of GPU rows; empty for none.
Interval extent_of(const EventTable& table, const std::vector<Row>& gpu_rows);

}  // namespace traceap
