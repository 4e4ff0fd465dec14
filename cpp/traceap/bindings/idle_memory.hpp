#pragma once
// What detection, features and tokens all begin with, computed once for a tree.

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "traceap/analysis/idle/idle.hpp"
#include "traceap/analysis/idle/timeline.hpp"

namespace traceap::bindings {

/// GPU intervals and idle causes of one table and tree, kept as long as they are. Threads that ask
/// for the same wait for the first of them; none may hold Python's lock.
class IdleMemory {
 public:
  const GpuIntervals& gpu(const EventTable& table, const EventTree& tree);
  /// Within `bounds`, or where there are none from the first to the last GPU event.
  std::shared_ptr<IdleBreakdown> idle(const EventTable& table, const EventTree& tree,
                                      std::optional<Interval> bounds);

 private:
  const GpuIntervals& locked_gpu(const EventTable& table, const EventTree& tree);

  std::mutex lock_;
  std::optional<GpuIntervals> gpu_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::shared_ptr<IdleBreakdown>> idle_;
};

}  // namespace traceap::bindings
