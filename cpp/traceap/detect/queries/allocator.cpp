#include "traceap/detect/queries/allocator.hpp"

#include <algorithm>

#include "traceap/base/interrupt.hpp"

namespace traceap {
namespace {

/// A pool that grows, or is emptied in every step, makes dozens of calls.
constexpr std::size_t kMinAllocations = 100;
/// PyTorch's operators allocate once or twice for each kernel. The cache's segments hold 2 MiB and
/// more, which serve many.
constexpr double kMinPerLaunch = 0.25;
/// Of what was taken in the trace, this much went back in it: a growing pool gives nothing back.
constexpr double kMinGivenBack = 0.5;
/// Of the allocations, so many are followed by a free before the next one: tensors die between
/// operators, while emptying a cache is one burst.
constexpr double kMinAlternating = 0.125;

struct Counts {
  std::size_t taken = 0, given_back = 0, groups = 0, launches = 0;
};

bool is_uncached(const Counts& counts) {
  const auto taken = static_cast<double>(counts.taken);
  return counts.taken >= kMinAllocations &&
         taken >= kMinPerLaunch * static_cast<double>(counts.launches) &&
         static_cast<double>(counts.given_back) >= kMinGivenBack * taken &&
         static_cast<double>(counts.groups) >= kMinAlternating * taken;
}

}  // namespace

std::vector<Row> uncached_allocator_calls(const Signals& signals) {
  Counts counts;
  std::vector<Row> calls;
  bool gave_back = false;
  for (Row r : signals.api_rows) {
    poll_interrupt();
    const ApiClass api = signals.api(r);
    if (is_launch(api)) ++counts.launches;
    if (api == ApiClass::kDeviceAllocation) {
      ++counts.taken;
      gave_back = false;
    } else if (api == ApiClass::kDeviceFree) {
      ++counts.given_back;
      if (!gave_back) ++counts.groups;
      gave_back = true;
    } else {
      continue;
    }
    calls.push_back(r);
  }
  if (!is_uncached(counts)) calls.clear();
  return calls;
}

}  // namespace traceap
