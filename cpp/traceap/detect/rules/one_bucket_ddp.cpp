// All gradients of a backward pass are exchanged in one large all-reduce at its end.
//
// DistributedDataParallel fills buckets of 25 MiB and sends each while the backward pass goes on;
// one bucket of more than that means that its size was raised, or that gradients are reduced by
// hand after backward. Cost: the exposed part of these all-reduces, waiting for late ranks apart.

#include <algorithm>

#include "traceap/detect/queries/backward_passes.hpp"
#include "traceap/detect/queries/collectives.hpp"
#include "traceap/detect/queries/ranges.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// The last bucket always stays exposed, and the kernels beside the others slow down.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdleOrExposed, .low = 0.2, .best = 0.6};
/// DistributedDataParallel's bucket_cap_mb is 25; a single tensor may exceed it by itself, twice
/// that leaves room.
constexpr std::int64_t kLargeBucketBytes = std::int64_t{50} << 20;

Finding detect(const Signals& signals) {
  if (signals.gpu.communication.empty() || !has_backward(signals)) return absent();
  std::vector<Row> single;
  std::int64_t bytes = 0;
  bool sized = true;
  for (const BackwardPass& pass : list_backward_passes(signals)) {
    if (pass.all_reduces.size() != 1 || pass.kernels < 2) continue;
    if (pass.sized && pass.bytes < kLargeBucketBytes) continue;
    const std::int64_t length_ns = signals.table.dur_ns[pass.all_reduces.front()];
    if (!pass.sized && most_bytes_in(length_ns) < kLargeBucketBytes) continue;
    single.push_back(pass.all_reduces.front());
    bytes = std::max(bytes, pass.bytes);
    sized = sized && pass.sized;
  }
  if (single.empty()) return absent();
  Draft draft(kSaving);
  draft.cost = exposed_alone(signals, single);
  if (!sized) {
    if (!is_material(signals, total_length_ns(draft.cost))) return absent();
    return abstain({"message sizes of the collectives"});
  }
  draft.evidence = single;
  draft.count("passes", single.size());
  draft.bytes("bucket", bytes);
  draft.confidence = 0.8;  // a model of one huge tensor looks the same
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule one_bucket_ddp{.type = "one_bucket_ddp",
                                     .subject = Subject::kCollectives,
                                     .saving = kSaving,
                                     .detect = detect};
}

}  // namespace traceap
