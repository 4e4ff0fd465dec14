#pragma once
// Host stacks by the rules of TraceLens, for tables that must equal theirs.

#include <cstdint>
#include <vector>

#include "traceap/table/event_table.hpp"

namespace traceap {

struct CompatNestingOptions {
  /// Do Python frames nest as well? Theirs do only where recomputation is looked for.
  bool python_frames = false;
};

/// Rows that their tree keeps. Where ours finds a place for every event, theirs drops those that
/// end a microsecond or more after the range in which they start.
struct CompatNesting {
  std::vector<Row> rows;                   ///< kept rows grouped by track, each group a pre-order
  std::vector<std::uint32_t> subtree_end;  ///< per index in `rows`: one past its last descendant's
  std::vector<Row> parent;  ///< per row of the table; kNoRow for roots and rows that are not kept
};

/// Microseconds of an exact time as the nearest double, as a reader of the decimal text has it.
double compat_us(std::int64_t ns);

/// Source: TraceLens at 171dd747, Trace2Tree/trace_to_tree.py, `build_host_call_stack_tree`.
/// Ends are doubles of microseconds, start plus duration, rounded as theirs are. O(n).
CompatNesting build_compat_nesting(const EventTable& table,
                                   const CompatNestingOptions& options = {});

}  // namespace traceap
