#pragma once
// Exposed communication for which computation does not wait: its next kernel was not launched yet.

#include "traceap/analysis/idle/timeline.hpp"

namespace traceap {

/// Note [Unawaited collectives]: where a collective runs and no kernel computes, either the next
/// kernel waits for its result, or the host is late and the collective only happens to run. The
/// next kernel's launch tells: where it was launched before the collective ended, and began behind
/// that, it was held back. Where it was launched later, and the gap in the computation began before
/// its launch, the host was late. Had it been early, it may still have waited for what had ended by
/// then; it would not for a collective that runs on beyond its begin, nor for one behind whose
/// launch nothing made a stream of computation wait: no cudaStreamWaitEvent followed by other work
/// than a collective, and no call of the host that waited for its end.
struct Unawaited {
  IntervalSet sure;      ///< the host was late, whatever the collectives did
  IntervalSet possible;  ///< the host was late; the kernel may have needed the result
};

/// Disjoint parts of communication minus compute and copies. Nothing where the next kernel's launch
/// is not in the file. O(n log n) in events.
Unawaited find_unawaited(const EventTable& table, const EventTree& tree, const GpuIntervals& gpu);

}  // namespace traceap
