// A serving engine copies the sampled tokens to the host and waits for them before it launches the
// next iteration, which could read them on the device.
//
// Cost: between two iterations, the exposed copy and the idle time up to the launch behind it,
// where most of that is waiting for the copy, sampling and launching. A copy that is awaited while
// the next iteration runs costs nothing.

#include "traceap/base/statistics.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// A launch that does not wait for the copy follows its predecessor within microseconds.
constexpr SavingShares kSaving{.low = 0.2, .best = 0.9};

Finding detect(const Signals& signals) {
  if (signals.served.iterations.empty()) return absent();
  if (signals.tree.linked_gpu_rows.empty()) return abstain({"launch calls of GPU events"});
  Draft draft(kSaving);
  std::vector<std::int64_t> lengths;
  for (const BubbleCost& cost : cost_of_bubbles(signals)) {
    if (cost.reads.empty()) continue;
    lengths.push_back(total_length_ns(cost.reading));
    draft.cost.insert(draft.cost.end(), cost.reading.begin(), cost.reading.end());
    draft.evidence.insert(draft.evidence.end(), cost.reads.begin(), cost.reads.end());
  }
  if (lengths.size() < 2) return absent();  // once is no loop
  draft.confidence = signals.served.marked ? 0.9 : 0.7;
  draft.count("iterations", lengths.size());
  draft.duration("median", median_of(lengths));
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule synchronous_sampling{.type = "synchronous_sampling",
                                           .claim = Claim::kSpecific,
                                           .subject = Subject::kServing,
                                           .saving = kSaving,
                                           .detect = detect};
}

}  // namespace traceap
