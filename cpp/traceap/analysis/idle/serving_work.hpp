#pragma once
// What the thread of a serving engine does while the GPU waits between iterations.

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "traceap/base/intervals.hpp"
#include "traceap/tree/event_tree.hpp"

namespace traceap {

enum class ServingWork : std::uint8_t {
  kScheduling = 0,
  kInputPreparation,
  kSampling,
  kDetokenizing,
  kTransfer,
  kLaunch,
  kWaiting,  ///< for requests, for another process or for a lock
  kSynchronization,
  kGarbageCollection,
  kOtherHostWork,
  kNotRecorded,
};
inline constexpr int kServingWorkCount = static_cast<int>(ServingWork::kNotRecorded) + 1;
/// snake_case, such as "input_preparation".
std::string_view serving_work_name(ServingWork work);

/// What the name of a frame, range or operator says; nothing where it says nothing, so that what
/// encloses it decides. O(length).
std::optional<ServingWork> read_serving_work(std::string_view name);

struct ServingPiece {
  Interval interval;  ///< GPU clock
  ServingWork work;
  Row row;  ///< the innermost host row; kNoRow where none is recorded
};

/// Splits stretches of time (sorted, disjoint, GPU clock) by what a thread does: the innermost
/// frame, range or call whose name tells decides, so that a sort inside of the scheduler is
/// scheduling. Pieces come by time and cover the stretches exactly. O(rows of the thread).
std::vector<ServingPiece> split_by_serving_work(const EventTable& table, const EventTree& tree,
                                                TrackId track, std::span<const Interval> stretches);

}  // namespace traceap
