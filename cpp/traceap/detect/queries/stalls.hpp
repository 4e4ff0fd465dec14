#pragma once
// GPU idle time that something on the host explains: stalls behind calls, silence.

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "traceap/detect/finding.hpp"
#include "traceap/detect/queries/names.hpp"

namespace traceap {

/// From the start of a call that blocks the host to the first GPU event after its end: the queue
/// ran dry, and the host had to refill it. GPU idle in there is what the call costs. To the end of
/// the call only where that event comes more than kRefillReachNs later, since the host did
/// something else first, and where no GPU work ran during the call: the queue was dry before.
Interval stall_window(const Signals& signals, Interval host_call);
/// GPU idle inside any of the intervals.
IntervalSet idle_inside(const Signals& signals, std::vector<Interval> intervals);
/// The same without the idle time that data loading, compilation or the profiler explain, and
/// without what waits for work outside the file, nor what lies before the first GPU event: what the
/// GPU did there was not recorded.
IntervalSet unexplained_idle_inside(const Signals& signals, std::vector<Interval> intervals);
/// Note [Usual gap]: where the host is late before most kernels, it would have been late before the
/// one behind a wait, too. The usual gap is the mean over the GPU events behind no stall of the
/// idle time before each in which it waits for the host, up to 100 us; a mean below 5 us, as where
/// the host is ahead, counts as none. The last part of each stall, of that length, belongs to
/// cpu_bound.
std::int64_t usual_gap_ns(const Signals& signals, const IntervalSet& stalls);
/// Stalls without their usual gaps, and these alone.
IntervalSet without_usual_gaps(const Signals& signals, const IntervalSet& stalls);
IntervalSet usual_gaps_of(const Signals& signals, const IntervalSet& stalls);
/// GPU idle that has one of these causes.
IntervalSet idle_with_cause(const Signals& signals, std::initializer_list<IdleCause> causes);
/// What of fetches (GPU clock) the GPU waits for: idle whose cause is data loading. Other idle
/// passes meanwhile as well, such as the gaps between kernels that are queued. Where the run
/// computes on the host, and where no GPU is recorded, all of it.
IntervalSet idle_of_fetches(const Signals& signals, std::vector<Interval> fetches);

/// Which host rows are work of their own, rather than ranges around code: API calls and operators.
/// Annotations and frames are ranges. Torch before 1.12 writes annotations as operators: in a trace
/// without any annotation an operator's name has to look like one, or nothing lies inside it.
class WorkRows {
 public:
  explicit WorkRows(const Signals& signals);
  bool operator()(Row host_row) const;

 private:
  const Signals& signals_;
  LazyNames<> is_operator_;
  bool has_annotations_;
};

/// GPU idle in stretches of at least `min_length_ns` during which no thread ran an operator or an
/// API call: see WorkRows.
IntervalSet silent_idle(const Signals& signals, std::int64_t min_length_ns);

}  // namespace traceap
