#pragma once
// Python frames that only block: the thread has nothing to do and waits for another one, for a
// message or for time to pass.

#include <cstdint>
#include <string_view>
#include <vector>

#include "traceap/table/event_table.hpp"
#include "traceap/tree/event_tree.hpp"

namespace traceap {

/// Waits of the standard library, as frames of its files ("threading.py(312): wait") or as its
/// built-in functions ("<method 'acquire' of '_thread.lock' objects>"): locks, conditions, threads,
/// queues, pipes, sockets, selectors, processes, sleep. The one list of them.
bool is_blocking_frame(std::string_view name);

/// Which rows of a table are such frames, or lie inside of one.
class BlockedFrames {
 public:
  /// O(strings); and O(host rows) where any name is one of a blocking frame.
  BlockedFrames(const EventTable& table, const EventTree& tree);

  bool operator()(Row row) const { return row != kNoRow && !blocked_.empty() && blocked_[row]; }
  bool any() const { return !blocked_.empty(); }
  /// Does all that a row of a thread does lie in frames that block? `position` is its place in
  /// tree.host_rows.
  bool only_blocks(std::uint32_t position) const;

 private:
  const EventTree& tree_;
  std::vector<std::uint8_t> blocked_;  // by row; empty: none
};

}  // namespace traceap
