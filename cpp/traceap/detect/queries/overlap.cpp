#include "traceap/detect/queries/overlap.hpp"

#include <algorithm>
#include <utility>

#include "traceap/base/interrupt.hpp"

namespace traceap {

IntervalSet shared_compute_time(const Signals& signals) {
  std::vector<Interval> shared;
  std::int64_t busy_until_ns = kNoId;
  for (Row r : signals.tree.gpu_rows) {
    poll_interrupt();
    if (signals.tree.gpu_class[r] != GpuClass::kCompute) continue;
    const Interval kernel = interval_of(signals.table, r);
    if (busy_until_ns != kNoId && kernel.start_ns < busy_until_ns) {
      shared.push_back({kernel.start_ns, std::min(busy_until_ns, kernel.end_ns)});
    }
    busy_until_ns = std::max(busy_until_ns, kernel.end_ns);
  }
  return make_union(std::move(shared));
}

}  // namespace traceap
