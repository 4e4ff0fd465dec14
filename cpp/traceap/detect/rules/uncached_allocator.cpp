// The caching allocator is switched off (PYTORCH_NO_CUDA_MEMORY_CACHING): each tensor is a
// cudaMalloc, and each death of one a cudaFree, which waits for the device.
//
// Cost: the stalls of these calls, from the first on: it is no warm-up that would end.

#include <algorithm>

#include "traceap/detect/queries/allocator.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// A cache serves all of it, after the first step.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdle, .low = 0.5};

Finding detect(const Signals& signals) {
  if (!signals.has_gpu) return abstain({"GPU events"});
  if (signals.api_rows.empty()) return abstain({"runtime calls"});
  std::vector<Row> calls = uncached_allocator_calls(signals);
  if (calls.empty()) return absent();
  Draft draft(kSaving);
  std::vector<Interval> stalls;
  for (Row r : calls) stalls.push_back(stall_window(signals, interval_of(signals.table, r)));
  draft.cost = with_lost_lead(signals, unexplained_idle_inside(signals, std::move(stalls)), calls);
  const auto frees = static_cast<std::size_t>(std::count_if(
      calls.begin(), calls.end(), [&](Row r) { return gives_memory_back(signals.api(r)); }));
  draft.count("mallocs", calls.size() - frees);
  draft.count("frees", frees);
  add_per_step_fact(signals, draft, "per step", calls.size());
  draft.evidence = std::move(calls);
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule uncached_allocator{
    .type = "uncached_allocator", .claim = Claim::kSpecific, .saving = kSaving, .detect = detect};
}

}  // namespace traceap
