#pragma once
// What surrounds the events: the top-level object, a bare array, or lines of events.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace traceap {

/// (key, JSON text) of top-level members other than traceEvents.
using TopMembers = std::vector<std::pair<std::string, std::string>>;

enum class ContainerStatus {
  kEvents,     ///< events begin at `pos`, in the array of a top-level object
  kBareArray,  ///< events begin at `pos`, the array is the whole trace
  kJsonLines,  ///< events begin at `pos`, without an array around them
  kEnd,        ///< the top-level object is closed; `pos` stands behind it
  kNeedMore,
  kBroken,  ///< no valid JSON at `pos`
};

struct ContainerResult {
  ContainerStatus status;
  std::size_t pos;
};

/// Reads the beginning of a trace up to its first event.
ContainerResult read_head(std::string_view text, bool is_final, TopMembers& members);
/// Reads members of the top-level object from `pos` (behind '{', a value or a comma).
ContainerResult read_members(std::string_view text, std::size_t pos, bool is_final,
                             TopMembers& members);
/// Position behind `"traceEvents": [`; npos if it is not there.
std::size_t find_trace_events(std::string_view text);

}  // namespace traceap
