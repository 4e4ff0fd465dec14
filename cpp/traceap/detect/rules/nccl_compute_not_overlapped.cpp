// Collectives run alone at the end of a phase, although the phase had compute that could have run
// beside them.
//
// Cost: exposed communication there. The saving is bounded by the compute of the phase too: more
// than that cannot be covered.

#include <algorithm>

#include "traceap/detect/evidence.hpp"
#include "traceap/detect/queries/collectives.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

constexpr std::string_view kType = "nccl_compute_not_overlapped";
/// The last bucket always stays exposed, and kernels slow down a little beside a collective.
constexpr double kLowShare = 0.3, kBestShare = 0.7;

}  // namespace

Finding detect_nccl_compute_not_overlapped(const Signals& signals) {
  if (auto early = judge_without_collectives(signals, kType)) return *early;
  Draft draft(kType);
  std::int64_t coverable_ns = 0, phase_exposed_ns = 0, phase_compute_ns = 0;
  std::uint32_t phase_index = 0;
  const auto close_phase = [&] {
    coverable_ns += std::min(phase_exposed_ns, phase_compute_ns);
    phase_exposed_ns = phase_compute_ns = 0;
  };
  for (const ExposedPiece& piece : build_exposed_pieces(signals)) {
    if (!piece.ends_phase || piece.phase_compute_ns == 0) continue;
    // Pieces of one tail share the compute that could cover them.
    if (piece.phase_index != phase_index) close_phase();
    phase_index = piece.phase_index;
    draft.cost.push_back(piece.interval);
    if (piece.collective != kNoRow) {
      draft.evidence.push_back(piece.collective);
      draft.evidence_weights.push_back(piece.interval.length_ns());
    }
    phase_exposed_ns += piece.interval.length_ns();
    phase_compute_ns = piece.phase_compute_ns;
  }
  close_phase();
  const std::int64_t communication_ns =
      total_length_ns(set_clip(signals.gpu.communication, signals.profiled));
  const std::int64_t exposed_ns = total_length_ns(
      set_clip(set_difference(signals.gpu.communication, signals.gpu.compute), signals.profiled));
  const std::int64_t pieces = static_cast<std::int64_t>(draft.cost.size());
  draft.confidence = 0.8;
  draft.fact("exposed at the end of a phase", pieces);
  if (communication_ns > 0) {
    const double overlapped =
        1.0 - static_cast<double>(exposed_ns) / static_cast<double>(communication_ns);
    draft.fact("communication overlapped", format_percent(overlapped));
  }
  Finding finding = finish_finding(signals, std::move(draft));
  finding.saving_high_ns = std::min(finding.saving_high_ns, coverable_ns);
  finding.saving_best_ns =
      static_cast<std::int64_t>(kBestShare * static_cast<double>(finding.saving_high_ns));
  finding.saving_low_ns =
      static_cast<std::int64_t>(kLowShare * static_cast<double>(finding.saving_high_ns));
  discount_with_fact(signals, finding, "behind a late rank");
  return finding;
}

}  // namespace traceap
