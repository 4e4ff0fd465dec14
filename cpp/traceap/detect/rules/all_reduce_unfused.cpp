// An all-reduce, the addition of the residual and a norm run as three kernels, each over the same
// small tensor: one kernel does all of it where messages are small, as they are in decoding.
//
// Cost: from the end of the all-reduce to the end of the norm.

#include <algorithm>
#include <vector>

#include "traceap/base/interrupt.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/served_kernels.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// Fewer are no layers that repeat.
constexpr std::size_t kMinChains = 4;
/// The largest message that a fused kernel takes: FlashInfer's and TensorRT-LLM's buffers hold so
/// much. Above it links, not launches, decide.
constexpr std::int64_t kMaxBytes = 64 << 20;
/// The norm of a small tensor costs little inside the all-reduce, and its launch and both passes
/// over the tensor go.
constexpr SavingShares kSaving{
    .basis = SavingBasis::kGpuWork, .low = 0.3, .best = 0.7, .high = 1.0};

struct Chain {
  Row all_reduce, add, norm;
};

/// Kernels that compute, of all streams, by start.
std::vector<ServedKernel> compute_kernels(const Signals& signals) {
  std::vector<ServedKernel> all;
  for (const std::vector<ServedKernel>& stream : served_kernels(signals)) {
    all.insert(all.end(), stream.begin(), stream.end());
  }
  std::sort(all.begin(), all.end(), [&](const ServedKernel& a, const ServedKernel& b) {
    const std::int64_t a_ns = signals.table.ts_ns[a.row], b_ns = signals.table.ts_ns[b.row];
    return a_ns != b_ns ? a_ns < b_ns : a.row < b.row;
  });
  return all;
}

std::vector<Chain> find_chains(const Signals& signals) {
  const EventTable& table = signals.table;
  const std::vector<ServedKernel> kernels = compute_kernels(signals);
  std::vector<Chain> chains;
  for (const Collective& c : signals.collectives) {
    poll_interrupt();
    if (c.kind != CollectiveKind::kAllReduce || c.bytes.value_or(0) > kMaxBytes) continue;
    const std::int64_t end_ns = table.end_ns(c.row);
    const auto add = std::partition_point(
        kernels.begin(), kernels.end(),
        [&](const ServedKernel& kernel) { return table.ts_ns[kernel.row] < end_ns; });
    if (kernels.end() - add < 2) break;
    const auto norm = add + 1;
    if (add->part != KernelPart::kAdd || !follows(signals, c.row, add->row)) continue;
    const bool ends_in_norm =
        norm->part == KernelPart::kNorm || norm->part == KernelPart::kNormThenQuantize;
    if (!ends_in_norm || !follows(signals, add->row, norm->row)) continue;
    chains.push_back({c.row, add->row, norm->row});
  }
  return chains;
}

Finding detect(const Signals& signals) {
  if (auto early = judge_unserved(signals)) return *early;
  const std::vector<Chain> chains = find_chains(signals);
  if (chains.size() < kMinChains) return absent();
  Draft draft(kSaving);
  for (const Chain& chain : chains) {
    const Interval cost{signals.table.end_ns(chain.all_reduce), signals.table.end_ns(chain.norm)};
    draft.cost.push_back(cost);
    for (const Row row : {chain.add, chain.norm}) {
      draft.evidence.push_back(row);
      draft.evidence_weights.push_back(cost.length_ns());
    }
  }
  draft.confidence = 0.8;  // that all three go over one tensor is told by their order
  draft.count("chains", chains.size());
  add_per_step_fact(signals, draft, "per step", chains.size());
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule all_reduce_unfused{.type = "all_reduce_unfused",
                                         .claim = Claim::kSpecific,
                                         .subject = Subject::kServing,
                                         .reads_kernel_names = true,
                                         .saving = kSaving,
                                         .detect = detect};
}

}  // namespace traceap
