#pragma once
// Walks one host thread forward in time and says at each moment what the thread was doing, seen
// from an idle GPU. Private to analysis/.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "traceap/analysis/idle/host_activity.hpp"
#include "traceap/analysis/idle/idle.hpp"
#include "traceap/tree/event_tree.hpp"

namespace traceap {

/// What a thread does at a moment.
struct HostState {
  Row row = kNoRow;                        ///< the row that tells; kNoRow: nothing recorded
  IdleCause cause = IdleCause::kHostWait;  ///< kHostWait: it works or runs Python
  /// Only a range, a frame or nothing covers the moment: another thread may be the one that works.
  bool weak = true;
};

/// What cursors of one trace share. O(n) to build.
class HostModel {
 public:
  HostModel(const EventTable& event_table, const EventTree& event_tree);

  /// Does a copy or scalar-read operator hold a copy, or a synchronisation, that the host waits
  /// for?
  bool waits_for_copy(Row op) const { return waits_for_copy_[op]; }
  bool is_blocking_copy(Row call) const { return traceap::is_blocking_copy(table, tree, call); }
  /// Is this call long because it is the first of its kind: of its name, or to launch its kernel?
  bool is_first_use(Row call) const;
  /// Was nothing launched before this call? Then there is nothing to give back: cudaFree(0) is
  /// how the context is created.
  bool before_first_launch(Row call) const { return call < first_launch_; }
  /// Is this operator's call long because it is its first? See Note [First calls].
  bool is_first_call(Row op) const {
    return std::binary_search(first_calls_.begin(), first_calls_.end(), op);
  }

  const EventTable& table;
  const EventTree& tree;
  HostActivities activity;

 private:
  void mark_copy_ops();
  void mark_operators_above(Row call);
  void find_first_calls();
  bool is_cold(Row first, std::int64_t later_calls, std::int64_t later_ns) const;

  std::vector<bool> waits_for_copy_;       ///< by row
  std::vector<Row> first_call_of_name_;    ///< by string: API calls
  std::vector<Row> first_launch_of_name_;  ///< by string: calls that launched this kernel
  Row first_launch_ = kNoRow;
  std::vector<Row> first_calls_;  ///< in row order
};

/// Amortised O(rows of the thread) over a whole walk; memory O(depth).
class HostCursor {
 public:
  /// Starts at `time_ns`. `track` may be kNoTrack: a thread without rows.
  HostCursor(const HostModel& model, TrackId track, std::int64_t time_ns);

  /// Times are the host's clock and must not decrease from call to call.
  void advance(std::int64_t time_ns);
  HostState state() const { return stack_.empty() ? HostState{} : stack_.back().state; }
  /// Next moment after the last `advance` when the state may change; INT64_MAX if there is none.
  std::int64_t next_change_ns() const;
  /// Has the thread recorded anything before the moment (or now), and will it later?
  bool has_past() const { return next_ > begin_; }
  bool has_future() const { return next_ < end_; }

 private:
  struct Open {
    Row row;
    std::int64_t end_ns;
    HostState state;
    bool sticky = false;       ///< what it encloses has its cause, whatever it is
    bool passes_down = false;  ///< plain rows that it encloses have its cause
    bool in_syncing_op = false, in_copy_op = false, in_convolution = false, in_wait = false;
  };
  void push(Row row);
  void judge(Open& open, const Open* enclosing) const;
  void judge_activity(Open& open, const Open* enclosing, HostActivity activity) const;
  IdleCause allocator_cause(Row call) const;
  IdleCause synchronize_cause(const Open& open) const;
  bool is_long_first_use(Row call) const;
  void judge_plain(Open& open, const Open* enclosing) const;
  void set_cause(Open& open, IdleCause cause, bool sticky) const;

  const HostModel& model_;
  std::uint32_t begin_ = 0, next_ = 0, end_ = 0;  ///< into tree.host_rows
  std::vector<Open> stack_;
};

}  // namespace traceap
