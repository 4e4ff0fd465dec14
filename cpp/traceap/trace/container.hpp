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

/// Text before the first event beyond which a file is taken for no trace, and behind the events
/// beyond which a member is given up.
inline constexpr std::size_t kMaxHeadBytes = std::size_t{64} << 20;

/// The top-level members of a trace, as many as fit: profilers write a dozen.
class MemberList {
 public:
  static constexpr std::size_t kMaxMembers = 10'000;

  void add(std::string key, std::string_view json) {
    const std::size_t bytes = key.size() + json.size();
    if (members_.size() >= kMaxMembers || bytes_ + bytes > kMaxHeadBytes) {
      ++left_out_;
      return;
    }
    bytes_ += bytes;
    members_.emplace_back(std::move(key), json);
  }
  void clear() { *this = MemberList(); }
  const TopMembers& members() const { return members_; }
  std::uint64_t left_out() const { return left_out_; }
  TopMembers take() { return std::move(members_); }

 private:
  TopMembers members_;
  std::size_t bytes_ = 0;
  std::uint64_t left_out_ = 0;
};

enum class ContainerStatus {
  kEvents,     ///< events begin at `pos`, in the array of a top-level object
  kBareArray,  ///< events begin at `pos`, the array is the whole trace
  kJsonLines,  ///< events begin at `pos`, without an array around them
  kEnd,        ///< the top-level object is closed; `pos` stands behind it
  kNeedMore,   ///< the text ends before it is clear what stands at `pos`
  kBroken,     ///< no valid JSON at `pos`
};

struct ContainerResult {
  ContainerStatus status;
  std::size_t pos;
};

/// Reads the beginning of a trace up to its first event.
ContainerResult read_head(std::string_view text, bool is_final, MemberList& members);
/// Adds members of the top-level object from `pos` on (behind '{', a value or a comma).
ContainerResult read_members(std::string_view text, std::size_t pos, bool is_final,
                             MemberList& members);
/// Position behind `"traceEvents": [`; npos if it is not there.
std::size_t find_trace_events(std::string_view text);

}  // namespace traceap
