// Collectives run alone at the end of a phase, although the phase had compute that could have run
// beside them.
//
// Cost: exposed communication there. The saving is bounded by the compute of the phase too: more
// than that cannot be covered.

#include <algorithm>
#include <optional>
#include <vector>

#include "traceap/base/sums.hpp"
#include "traceap/detect/queries/collectives.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// The last bucket always stays exposed, and kernels slow down a little beside a collective.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdleOrExposed, .low = 0.3, .best = 0.7};
/// What ends a phase is told by the order of kernels, and independence of the work is assumed.
constexpr double kConfidence = 0.8;

/// Exposed pieces that end a phase which had compute.
std::vector<ExposedPiece> phase_tails(const Signals& signals) {
  std::vector<ExposedPiece> pieces = build_exposed_pieces(signals);
  std::erase_if(pieces, [&](const ExposedPiece& piece) {
    return !piece.ends_phase || piece.phase_compute_ns == 0 ||
           is_pipeline_transfer(signals, piece.collective);  // see pipeline_bubble
  });
  return pieces;
}

/// How much of the tails the compute of their phases could cover; pieces of one tail share it.
std::int64_t coverable_ns(const std::vector<ExposedPiece>& tails) {
  std::int64_t total = 0, exposed = 0;
  for (std::size_t i = 0; i < tails.size(); ++i) {
    add_to(exposed, tails[i].interval.length_ns());
    if (i + 1 < tails.size() && tails[i + 1].phase_index == tails[i].phase_index) continue;
    add_to(total, std::min(exposed, tails[i].phase_compute_ns));
    exposed = 0;
  }
  return total;
}

/// Share of the communication that compute runs beside; none without communication.
std::optional<double> overlapped_share(const Signals& signals) {
  const IntervalSet communication = set_clip(signals.gpu.communication, signals.profiled);
  const std::int64_t all_ns = total_length_ns(communication);
  if (all_ns == 0) return std::nullopt;
  const std::int64_t exposed_ns =
      total_length_ns(set_difference(communication, signals.gpu.compute));
  return 1.0 - static_cast<double>(exposed_ns) / static_cast<double>(all_ns);
}

Finding detect(const Signals& signals) {
  if (auto early = judge_without_collectives(signals)) return *early;
  const std::vector<ExposedPiece> tails = phase_tails(signals);
  Draft draft(kSaving);
  for (const ExposedPiece& piece : tails) {
    draft.cost.push_back(piece.interval);
    if (piece.collective == kNoRow) continue;
    draft.evidence.push_back(piece.collective);
    draft.evidence_weights.push_back(piece.interval.length_ns());
  }
  draft.saving_limit_ns = coverable_ns(tails);
  draft.confidence = kConfidence;
  draft.count("exposed at the end of a phase", tails.size());
  if (const auto share = overlapped_share(signals)) draft.share("communication overlapped", *share);
  leave_to_late_ranks(signals, draft, "behind a late rank");
  return open_without_phases(signals, finish_finding(signals, std::move(draft)));
}

}  // namespace

namespace rules {
extern constexpr Rule nccl_compute_not_overlapped{.type = "nccl_compute_not_overlapped",
                                                  .paper_place = 8,
                                                  .subject = Subject::kCollectives,
                                                  .saving = kSaving,
                                                  .detect = detect};
}

}  // namespace traceap
