#pragma once
// Communication kernels and what the compute stream did meanwhile; shared by the NCCL rules.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "traceap/detect/evidence.hpp"

namespace traceap {

/// A stretch in which communication ran and no compute kernel did, unless computation surely waited
/// for the host alone (Signals::unawaited).
struct ExposedPiece {
  Interval interval;
  Row collective;  ///< the last one to end in it, or that runs on when it ends
  Row next;        ///< compute kernel that starts next; kNoRow if none
  /// The part in which that kernel, already queued, or the host waited for the collective.
  IntervalSet wait;
  bool ends_phase;                ///< (almost) all compute of the phase and step had run before
  std::uint32_t phase_index;      ///< which stretch of one step and phase, in order of time
  std::int64_t phase_compute_ns;  ///< compute of that phase before the piece: what could cover it
};
std::vector<ExposedPiece> build_exposed_pieces(const Signals& signals);

/// Does the collective hand a micro-batch from one pipeline stage to the next? A send or receive
/// does, and in a group of pipeline stages also what does not say which of both it is.
bool is_pipeline_transfer(const Signals& signals, const Collective& collective);
/// The same for the kernel of a collective; false for any other row.
bool is_pipeline_transfer(const Signals& signals, Row row);
/// Stages of the pipeline: the size of the group that its transfers run in; 0 where not recorded.
std::int64_t pipeline_stages(const Signals& signals);

/// More than a collective can move in this time: no link between two devices is faster than 1 TB/s.
/// What a collective whose size is not recorded can't be is told by this.
std::int64_t most_bytes_in(std::int64_t duration_ns);
/// The verdict of a rule on exposed communication that its trace could not split: without operators
/// and their launches no phase of a step is known, nor what was queued. `finding` if it could, or
/// if there is not enough to split.
Finding open_without_phases(const Signals& signals, Finding finding);

/// Where this rank waited in collectives for a rank that keeps the others waiting (Signals::peers).
IntervalSet waits_for_late_ranks(const Signals& signals);
/// Where this rank, read alone, surely waited in collectives for another one, whichever it was:
/// what they took beyond the time in which even a slow network moves their message. Without
/// compute.
IntervalSet waits_of_lone_rank(const Signals& signals);
/// Takes what is a late rank's fault out of a draft's saving, and says in a fact of that name how
/// much of its cost it is. Overlapping communication with compute would not bring the rank sooner.
void leave_to_late_ranks(const Signals& signals, Draft& draft, std::string name);

/// The verdict where there is no communication kernel at all: absent if nothing says that this is
/// one of several ranks, else unknown. Empty if there are communication kernels.
std::optional<Finding> judge_without_collectives(const Signals& signals);

}  // namespace traceap
