#pragma once
// Index types shared by every layer. Absence is a named constant, never an in-band 0 or -1.

#include <cstdint>
#include <limits>

namespace traceap {

/// Row of an event in its EventTable. Row numbers stay the same in every later stage.
using Row = std::uint32_t;
/// Index of a string in a StringPool.
using StringId = std::uint32_t;
/// Index of a (pid, tid) pair in EventTable::tracks.
using TrackId = std::uint32_t;

inline constexpr Row kNoRow = std::numeric_limits<Row>::max();
inline constexpr StringId kNoString = std::numeric_limits<StringId>::max();
inline constexpr TrackId kNoTrack = std::numeric_limits<TrackId>::max();
/// An integer column (correlation, external id, device, stream) that the event does not carry.
inline constexpr std::int64_t kNoId = std::numeric_limits<std::int64_t>::min();

}  // namespace traceap
