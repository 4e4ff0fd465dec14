// Gradients are accumulated over several backward passes, and exchanged in each of them.
//
// Only the last pass before an update has to exchange: DistributedDataParallel leaves the others
// out inside no_sync(). Cost: the exposed part of the all-reduces in passes that no update follows.

#include "traceap/detect/queries/backward_passes.hpp"
#include "traceap/detect/queries/collectives.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// The exchanges are gone with no_sync; gradients stay in memory for longer.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdleOrExposed, .low = 0.5, .best = 0.9};
/// A pass of fewer kernels is no pass through a model.
constexpr std::size_t kMinKernels = 2;

Finding detect(const Signals& signals) {
  if (auto early = judge_without_collectives(signals)) return *early;
  if (!signals.tree.workload.uses(Parallelism::kDdp)) return absent();
  std::vector<Row> needless;
  std::size_t passes = 0, updates = 0, without_update = 0;
  for (const BackwardPass& pass : list_backward_passes(signals)) {
    if (pass.all_reduces.empty() || pass.kernels < kMinKernels) continue;
    ++passes;
    if (pass.updates) {
      ++updates;
      continue;
    }
    ++without_update;
    needless.insert(needless.end(), pass.all_reduces.begin(), pass.all_reduces.end());
  }
  // The recording may end before the update of its last pass.
  if (updates == 0 || without_update < 2) return absent();
  Draft draft(kSaving);
  draft.cost = exposed_alone(signals, needless);
  draft.count("passes", passes);
  draft.count("updates", updates);
  draft.count("all-reduces", needless.size());
  draft.evidence = std::move(needless);
  draft.confidence = 0.85;
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule needless_gradient_sync{.type = "needless_gradient_sync",
                                             .claim = Claim::kSpecific,
                                             .subject = Subject::kCollectives,
                                             .saving = kSaving,
                                             .detect = detect};
}

}  // namespace traceap
