#pragma once
// GPU idle time that something on the host explains: stalls behind calls, silence.

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

#include "traceap/detect/finding.hpp"
#include "traceap/detect/queries/names.hpp"

namespace traceap {

/// Is GPU work without its launch, or a launch without its work?
bool lacks_records(const Signals& signals);
/// From the start of a call that blocks the host to the first GPU event after its end: the queue
/// ran dry, and the host had to refill it. GPU idle in there is what the call costs. To the end of
/// the call only where that event comes more than kRefillReachNs later, since the host did
/// something else first, and where no GPU work ran during the call: the queue was dry before.
Interval stall_window(const Signals& signals, Interval host_call);
/// What of the intervals is in `Signals::host_idle`.
IntervalSet idle_inside(const Signals& signals, std::vector<Interval> intervals);
/// The same without the idle time that data loading, compilation or the profiler explain, and
/// without what waits for work outside the file, nor what lies before the first GPU event: what the
/// GPU did there was not recorded.
IntervalSet unexplained_idle_inside(const Signals& signals, std::vector<Interval> intervals);
/// Note [Lost lead]: a host that is ahead of the GPU by some time loses that lead where something
/// holds it so long, and what it launches next comes late until the lead is won back. Without the
/// hold it would have come earlier by the whole length of it; so the GPU would have been saved
/// what idles behind, up to that length. What of the length the GPU idled already, or copied in
/// the open, is in the cost by itself. Another wait for a GPU at work ends this: the host comes out
/// of that at the same distance either way.
///
/// A cost with the idle time in which the GPU waits for a host that these calls (host clock) have
/// put behind, whatever it does then, up to the length of each.
IntervalSet with_lost_lead(const Signals& signals, IntervalSet cost, std::vector<Interval> holds);
/// The same for rows, as far as their threads launch.
IntervalSet with_lost_lead(const Signals& signals, IntervalSet cost, const std::vector<Row>& rows);
/// Note [Usual gap]: where the host is late before most kernels, it would have been late before the
/// one behind a wait, too. The usual gap is the mean over the GPU events behind no stall, and not
/// late by it (Note [Lost lead]), of the idle time before each in which it waits for the host, up
/// to 100 us; a mean below 5 us, as where the host is ahead, counts as none. The last part of each
/// stall, of that length, belongs to cpu_bound. Empty where fewer than 20 such events have their
/// launch and what was before them in the file.
std::optional<std::int64_t> usual_gap_ns(const Signals& signals, const IntervalSet& stalls,
                                         const IntervalSet& late);
/// Stalls without the last part of each that a host usually late takes, and these parts alone.
IntervalSet without_usual_gaps(const IntervalSet& stalls, std::int64_t usual_ns);
IntervalSet usual_gaps_of(const IntervalSet& stalls, std::int64_t usual_ns);
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

/// Note [Long silences]: Python between two operators takes microseconds. 10 ms without a single
/// operator or API call, loader or compiler on any thread are noticed in any step, and well above
/// what the scheduler takes away. In the middle of a short step, or of a short recording without
/// steps, a tenth of it is noticed as well, from the 1 ms on in which a host that is free launches
/// again (kRefillReachNs); between two steps a loop has work of its own. Where frames tell that
/// Python is at work during less than 10 ms, the host is not silent: that work has a name, which
/// cpu_bound tells.
/// Such stretches, on the GPU's clock.
IntervalSet long_silences(const Signals& signals);
/// Were Python frames recorded?
bool has_python_frames(const Signals& signals);

/// GPU idle in stretches of at least `min_length_ns` during which no thread ran an operator or an
/// API call: see WorkRows.
IntervalSet silent_idle(const Signals& signals, std::int64_t min_length_ns);

}  // namespace traceap
