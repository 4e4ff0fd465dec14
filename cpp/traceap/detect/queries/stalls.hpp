#pragma once
// GPU idle time that something on the host explains: stalls behind calls, silence.

#include <cstdint>
#include <vector>

#include "traceap/detect/finding.hpp"

namespace traceap {

/// A host that is free launches its next kernel within some tens of microseconds; with the profiler
/// and Python on top, 1 ms is still some fifty operations. A longer pause has another cause.
inline constexpr std::int64_t kRefillReachNs = 1'000'000;
/// From the start of a call that blocks the host to the first GPU event after its end, at most
/// kRefillReachNs after it. GPU idle in there is what the call costs: the queue ran dry, and the
/// host had to refill it.
Interval stall_window(const Signals& signals, Interval host_call);
/// GPU idle inside any of the intervals.
IntervalSet idle_inside(const Signals& signals, std::vector<Interval> intervals);
/// The same without the idle time that data loading, compilation or the profiler explain.
IntervalSet unexplained_idle_inside(const Signals& signals, std::vector<Interval> intervals);

/// GPU idle in stretches of at least `min_length_ns` during which no thread ran an operator or an
/// API call. Ranges around code (annotations, frames, legacy ranges written as operators) don't
/// count as work, unless nothing was recorded inside one.
IntervalSet silent_idle(const Signals& signals, std::int64_t min_length_ns);

}  // namespace traceap
