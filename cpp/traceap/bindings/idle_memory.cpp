#include "traceap/bindings/idle_memory.hpp"

namespace traceap::bindings {

const GpuIntervals& IdleMemory::gpu(const EventTable& table, const EventTree& tree) {
  const std::lock_guard locked(lock_);
  return locked_gpu(table, tree);
}

std::shared_ptr<IdleBreakdown> IdleMemory::idle(const EventTable& table, const EventTree& tree,
                                                std::optional<Interval> bounds) {
  const std::lock_guard locked(lock_);
  const GpuIntervals& gpu = locked_gpu(table, tree);
  const Interval span = bounds.value_or(gpu.span);
  std::shared_ptr<IdleBreakdown>& known = idle_[{span.start_ns, span.end_ns}];
  if (!known) {
    known = std::make_shared<IdleBreakdown>(explain_idle(table, tree, gpu, span));
  }
  return known;
}

const GpuIntervals& IdleMemory::locked_gpu(const EventTable& table, const EventTree& tree) {
  if (!gpu_) gpu_ = build_gpu_intervals(table, tree);
  return *gpu_;
}

}  // namespace traceap::bindings
