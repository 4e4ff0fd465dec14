#pragma once
// Stretches of a trace as a small trace of its own.

#include <optional>

#include "traceap/base/intervals.hpp"
#include "traceap/table/event_table.hpp"
#include "traceap/tree/event_tree.hpp"

namespace traceap {

struct Excerpt {
  EventTable table;
  EventTree tree;
};

/// The rows that lie inside one of `windows` (host clock) with the GPU events that were launched
/// there, in the same order under new numbers. Everything that the tree says about them is as in
/// the whole trace (phases, launches, steps, warm-up); links to rows outside are gone. Tracks and
/// streams keep their numbers. `left_out` is not judged, beside what the whole does not judge.
/// `profiled` is its profiled time; by default that of its steps, else of the windows.
/// O(rows of the trace * log(windows)).
Excerpt take_excerpt(const EventTable& table, const EventTree& tree, const IntervalSet& windows,
                     const IntervalSet& left_out = {}, std::optional<Interval> profiled = {});

}  // namespace traceap
