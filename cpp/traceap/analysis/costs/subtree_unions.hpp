#pragma once
// GPU time below every host row, whatever the depth of the call stacks.

#include <cstdint>
#include <span>
#include <vector>

#include "traceap/tree/event_tree.hpp"

namespace traceap {

/// A GPU event and the host row that it counts for.
struct PlacedInterval {
  Row host_row;
  Interval interval;
};

/// Per index in tree.host_rows: length of the union of the intervals in the subtree of that row.
/// `placed` is ordered by start. O(n + k log(k + n)) for n host rows and k intervals; see Note
/// [Unions over subtrees].
std::vector<std::int64_t> subtree_union_ns(const EventTree& tree,
                                           std::span<const PlacedInterval> placed);

}  // namespace traceap
