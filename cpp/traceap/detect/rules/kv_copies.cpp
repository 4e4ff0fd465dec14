// Cached keys and values are copied while tokens are generated: joined with the new ones layer by
// layer, gathered into one piece before attention, or moved between blocks.
//
// Cost: these copies, where nothing else computes beside them. A copy is one of the cache if its
// name says so, or if it stands right before an attention kernel and takes at least half as long:
// attention reads the cache once, a copy reads and writes it, and queries are far smaller.

#include <vector>

#include "traceap/detect/queries/overlap.hpp"
#include "traceap/detect/queries/served_kernels.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// Fewer are no layers that repeat: a prefix is shared or swapped out once.
constexpr std::size_t kMinCopies = 8;
/// Keys and values are two copies; a third may hold positions or scales.
constexpr std::size_t kReach = 3;
/// A cache in blocks that attention reads in place needs none of them.
constexpr SavingShares kSaving{
    .basis = SavingBasis::kGpuWork, .low = 0.3, .best = 0.9, .high = 1.0};

/// Copies right before the attention kernel at `place` that are as large as the cache it reads.
void add_before(const Signals& signals, const std::vector<ServedKernel>& stream, std::size_t place,
                std::vector<Row>& copies) {
  const std::int64_t attention_ns = signals.table.dur_ns[stream[place].row];
  for (std::size_t i = place; i > 0 && place - i < kReach; --i) {
    const ServedKernel& copy = stream[i - 1];
    if (copy.part != KernelPart::kCopy || !follows(signals, copy.row, stream[i].row)) return;
    if (2 * signals.table.dur_ns[copy.row] >= attention_ns) copies.push_back(copy.row);
  }
}

Finding detect(const Signals& signals) {
  if (auto early = judge_unserved(signals)) return *early;
  if (signals.tree.workload.role == Role::kDiffusion) return absent();
  std::vector<Row> copies;
  for (const std::vector<ServedKernel>& stream : served_kernels(signals)) {
    for (std::size_t i = 0; i < stream.size(); ++i) {
      if (stream[i].part == KernelPart::kCacheCopy) copies.push_back(stream[i].row);
      if (stream[i].part == KernelPart::kAttention) add_before(signals, stream, i, copies);
    }
  }
  if (copies.size() < kMinCopies) return absent();
  Draft draft(kSaving);
  for (const Row row : copies) draft.cost.push_back(interval_of(signals.table, row));
  draft.cost = set_difference(make_union(std::move(draft.cost)), shared_compute_time(signals));
  draft.evidence = copies;
  draft.confidence = 0.7;  // what is copied the trace does not say
  return finish_served(signals, std::move(draft), "copies", copies.size());
}

}  // namespace

namespace rules {
extern constexpr Rule kv_copies{.type = "kv_copies",
                                .claim = Claim::kSpecific,
                                .subject = Subject::kServing,
                                .reads_kernel_names = true,
                                .saving = kSaving,
                                .detect = detect};
}

}  // namespace traceap
