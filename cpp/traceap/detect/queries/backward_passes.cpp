#include "traceap/detect/queries/backward_passes.hpp"

#include <unordered_map>
#include <utility>

#include "traceap/base/sums.hpp"
#include "traceap/detect/queries/collectives.hpp"

namespace traceap {

std::vector<BackwardPass> list_backward_passes(const Signals& signals) {
  std::unordered_map<Row, const Collective*> all_reduces;
  for (const Collective& c : signals.collectives) {
    if (c.kind == CollectiveKind::kAllReduce) all_reduces.emplace(c.row, &c);
  }
  std::vector<BackwardPass> passes;
  bool open = false;
  for (Row r : signals.tree.gpu_rows) {
    const Phase phase = signals.tree.phase[r];
    const bool compute = signals.tree.gpu_class[r] == GpuClass::kCompute;
    if (phase == Phase::kForward && compute) open = false;
    if (phase == Phase::kOptimizer && compute && !passes.empty()) passes.back().updates = true;
    if (phase == Phase::kBackward && !open) {
      passes.emplace_back();
      open = true;
    }
    if (!open) continue;
    BackwardPass& pass = passes.back();
    if (compute && phase == Phase::kBackward) ++pass.kernels;
    const auto found = all_reduces.find(r);
    if (found == all_reduces.end()) continue;
    pass.all_reduces.push_back(r);
    const std::int64_t bytes = found->second->bytes.value_or(0);
    pass.sized = pass.sized && bytes > 0;
    add_to(pass.bytes, bytes);
  }
  return passes;
}

IntervalSet exposed_alone(const Signals& signals, const std::vector<Row>& collectives) {
  std::vector<Interval> own;
  for (Row r : collectives) own.push_back(interval_of(signals.table, r));
  const IntervalSet alone = set_difference(make_union(std::move(own)), signals.gpu.compute);
  return set_difference(alone, waits_for_late_ranks(signals));
}

}  // namespace traceap
