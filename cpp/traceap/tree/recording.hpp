#pragma once
// What the recording of a rank can be trusted for, and where. It is established once, when the tree
// is built; timelines, steps, idle causes, rules and everything that rests on them ask it.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "traceap/base/intervals.hpp"

namespace traceap {

/// What is wrong with a recording. Names are those of INTERFACE's `quality`.
enum class RecordingFault : std::uint8_t {
  kImpossibleDuration = 0,  ///< GPU records whose times can't be true
  kLaunchesWithoutGpuWork,  ///< a stretch of launches whose GPU work has no record
  kGpuWorkWithoutLaunch,    ///< GPU records whose launches are missing, though others have theirs
  kRecordingStartSkew,      ///< the first collective waits for ranks that began to record later
  kStartsInsideWork,        ///< host or queue wait at the start for work that has no record
  kEndsInsideWork,          ///< the last launches have no records: the recording ended before them
  kNoLoad,                  ///< hardly anything ran
};
inline constexpr int kRecordingFaultCount = static_cast<int>(RecordingFault::kNoLoad) + 1;
/// snake_case, such as "impossible_duration".
std::string_view recording_fault_name(RecordingFault fault);

struct RecordingNote {
  RecordingFault fault;
  std::uint64_t count;           ///< records or launches concerned
  std::optional<Interval> time;  ///< where, on the GPU's clock; unset where no time can be trusted
  std::string message;           ///< one sentence for a person
};

/// Times are on the GPU's clock. Both sets are empty for a recording that is fine.
struct Recording {
  std::vector<RecordingNote> notes;  ///< by fault, then by time
  IntervalSet missing;               ///< GPU work ran, or may have run, and has no record
  /// What no timeline covers: stretches of lost records, and waits for the start of other
  /// recordings. No idle cause or cost lies in it or in `missing` (gaps of impossible records too).
  IntervalSet not_judged;
  /// Per step: its launches have their records and most of it is judged.
  std::vector<bool> step_is_recorded;
};

}  // namespace traceap
