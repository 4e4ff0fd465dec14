// Sharded parameters are gathered only when the layer that needs them is next.
//
// FSDP can gather the next layers' parameters while the present one computes. Cost: the exposed
// part of the all-gathers, where most of their time is exposed; waiting for late ranks apart.

#include "traceap/detect/queries/backward_passes.hpp"
#include "traceap/detect/queries/collectives.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// The first gather of a pass stays exposed, and those of layers that compute for less than their
/// parameters travel.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdleOrExposed, .low = 0.2, .best = 0.7};
constexpr std::size_t kMinGathers = 4;
/// With prefetching the first of several layers is exposed, half of the time at most.
constexpr double kMostlyExposed = 0.6;

Finding detect(const Signals& signals) {
  if (auto early = judge_without_collectives(signals)) return *early;
  if (!signals.tree.workload.uses(Parallelism::kFsdp)) return absent();
  std::vector<Row> gathers;
  std::vector<Interval> own;
  for (const Collective& collective : signals.collectives) {
    if (collective.kind != CollectiveKind::kAllGather || !in_profile(signals, collective.row)) {
      continue;
    }
    gathers.push_back(collective.row);
    own.push_back(interval_of(signals.table, collective.row));
  }
  const IntervalSet exposed = exposed_alone(signals, gathers);
  const auto all_ns = static_cast<double>(total_length_ns(make_union(std::move(own))));
  const double share = all_ns > 0 ? static_cast<double>(total_length_ns(exposed)) / all_ns : 0.0;
  if (gathers.size() < kMinGathers || share < kMostlyExposed) return absent();
  Draft draft(kSaving);
  draft.cost = exposed;
  draft.count("all-gathers", gathers.size());
  add_per_step_fact(signals, draft, "per step", gathers.size());
  draft.share("exposed", share);
  draft.evidence = std::move(gathers);
  draft.confidence = 0.8;
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule unprefetched_parameters{.type = "unprefetched_parameters",
                                              .claim = Claim::kSpecific,
                                              .subject = Subject::kCollectives,
                                              .saving = kSaving,
                                              .detect = detect};
}

}  // namespace traceap
