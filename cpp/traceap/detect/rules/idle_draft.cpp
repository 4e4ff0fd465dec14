// The GPU idles while a speculative decoder drafts tokens: the draft model is launched kernel by
// kernel, or drafting happens on the host.
//
// Cost: idle time while the ranges of drafting run on the host, and between the kernels that they
// launch. Drafts that keep the GPU busy cost nothing.

#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// A graph of the draft model takes away nearly all of it; drafting on the host stays in part.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdle, .low = 0.2, .best = 0.8};
/// A draft model is small: some gaps between its kernels are usual.
constexpr double kMinIdleShare = 0.25;

Finding detect(const Signals& signals) {
  Drafts drafts = find_drafts(signals);
  if (drafts.ranges.size() < 2) return absent();  // once is no loop
  const std::int64_t idle_ns = total_length_ns(drafts.idle);
  const std::int64_t all_ns = total_length_ns(make_union(drafts.windows));
  const double share = all_ns > 0 ? static_cast<double>(idle_ns) / static_cast<double>(all_ns) : 0;
  if (share < kMinIdleShare) return absent();
  Draft draft(kSaving);
  draft.count("drafts", drafts.ranges.size());
  draft.share("idle share", share);
  draft.evidence = std::move(drafts.ranges);
  draft.cost = std::move(drafts.idle);
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule idle_draft{.type = "idle_draft",
                                 .claim = Claim::kSpecific,
                                 .subject = Subject::kServing,
                                 .saving = kSaving,
                                 .detect = detect};
}

}  // namespace traceap
