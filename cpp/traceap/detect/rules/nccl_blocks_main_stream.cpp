// The compute stream stands still in the middle of a phase, waiting for a collective whose result
// its next kernel needs.
//
// Cost: the part of exposed communication in which that kernel was queued already, or the host sat
// in a synchronisation, so that waiting is what happened. A collective that merely runs while the
// host is late is not it, and one at the end of a phase is nccl_compute_not_overlapped.

#include <algorithm>

#include "traceap/detect/queries/collectives.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// Issuing early and waiting late covers a wait only where other work can be moved in between.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdleOrExposed, .best = 0.5};

Finding detect(const Signals& signals) {
  if (auto early = judge_without_collectives(signals)) return *early;
  Draft draft(kSaving);
  std::int64_t waits = 0, longest = 0;
  for (const ExposedPiece& piece : build_exposed_pieces(signals)) {
    if (piece.wait.empty() || (piece.ends_phase && piece.phase_compute_ns > 0)) continue;
    if (is_pipeline_transfer(signals, piece.collective)) continue;  // see pipeline_bubble
    draft.cost.insert(draft.cost.end(), piece.wait.begin(), piece.wait.end());
    const std::int64_t wait_ns = total_length_ns(piece.wait);
    draft.evidence.push_back(piece.collective);
    draft.evidence_weights.push_back(wait_ns);
    longest = std::max(longest, wait_ns);
    ++waits;
  }
  draft.confidence = 0.85;
  draft.count("waits", waits);
  draft.duration("longest wait", longest);
  leave_to_late_ranks(signals, draft, "behind a late rank");
  return open_without_phases(signals, finish_finding(signals, std::move(draft)));
}

}  // namespace

namespace rules {
extern constexpr Rule nccl_blocks_main_stream{.type = "nccl_blocks_main_stream",
                                              .paper_place = 7,
                                              .subject = Subject::kCollectives,
                                              .saving = kSaving,
                                              .detect = detect};
}

}  // namespace traceap
