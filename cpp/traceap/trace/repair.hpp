#pragma once
// The tolerant reading of one event: text that simdjson refuses, rewritten as valid JSON where it
// has one sensible reading. What an event is and where it ends is decided by the text alone, never
// by where a chunk happens to end.

#include <cstdint>
#include <string>
#include <string_view>

#include "traceap/trace/reasons.hpp"

namespace traceap {

enum class RepairStatus {
  kKept,      ///< `out` holds valid JSON
  kSkipped,   ///< no sensible reading; counted
  kNeedMore,  ///< the text ends before the decision can be made (never when it is final)
};

struct RepairResult {
  RepairStatus status;
  std::size_t end;  ///< where reading goes on
};

/// Reads the event whose '{' stands at `pos`. `base_offset` is the file offset of text[0].
/// Linear in the event's length, apart from short look-aheads behind quotes.
RepairResult repair_event(std::string_view text, std::size_t pos, bool is_final,
                          std::uint64_t base_offset, std::string& out, ReasonCounts& counts);

enum class Match { kNo, kYes, kNeedMore };
/// Does an event begin at `pos`: '{', then a key that events have?
Match match_event_start(std::string_view text, std::size_t pos);
/// kYes: the first event at or after `pos` begins there. kNeedMore: perhaps one does, the text ends
/// before that shows. kNo: there is none, and `pos` is the end of the text.
struct EventStart {
  std::size_t pos;
  Match match;
};
EventStart find_event_start(std::string_view text, std::size_t pos);

}  // namespace traceap
