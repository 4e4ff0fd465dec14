#pragma once
// Steps cut into disjoint pieces: each instant belongs to one GPU event, one idle cause or one
// host row. What comparisons of steps and of traces add up.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "traceap/base/ids.hpp"
#include "traceap/base/intervals.hpp"
#include "traceap/table/event_table.hpp"
#include "traceap/tree/event_tree.hpp"

namespace traceap {

/// What a piece of a step is: a class of GPU work, the host where there is no GPU at all, or
/// kPartIdle + IdleCause.
using StepPart = std::uint8_t;
inline constexpr StepPart kPartCompute = 0, kPartCommunication = 1, kPartMemcpy = 2, kPartHost = 3,
                          kPartIdle = 4;
inline constexpr int kStepPartCount = 15;
/// "compute", "exposed_communication", "exposed_memcpy", "host", then the names of idle causes.
std::string_view step_part_name(StepPart part);

/// Columns of equal length, one entry per (step, part, row) that met; sums of `ns` by step are the
/// steps' lengths, exactly.
struct StepPieces {
  std::vector<std::uint32_t> step;  ///< index in `bounds`
  std::vector<StepPart> part;
  std::vector<Row> row;              ///< GPU event, or host row that explains it; kNoRow: none
  std::vector<std::int64_t> ns;      ///< > 0
  std::vector<std::uint32_t> count;  ///< stretches of time that were added up
};

/// GPU work is shared out as GpuCosts::exclusive_ns is: compute hides communication, which hides
/// copies, and of one class the event that started first has the time. Idle time is that of
/// explain_idle. A trace without GPU events is cut by what its main thread runs, innermost first.
/// `bounds` are sorted and disjoint (they may touch). O(n + pieces).
StepPieces build_step_pieces(const EventTable& table, const EventTree& tree,
                             std::span<const Interval> bounds);

}  // namespace traceap
