#include "traceap/analysis/host_cursor.hpp"

#include <algorithm>
#include <limits>

namespace traceap {

HostCursor::HostCursor(const HostModel& model, TrackId track, std::int64_t time_ns)
    : model_(model) {
  const EventTree& tree = model.tree;
  if (track == kNoTrack || std::size_t{track} + 1 >= tree.host_offsets.size()) return;
  begin_ = next_ = tree.host_offsets[track];
  end_ = tree.host_offsets[track + 1];
  const auto rows = tree.host_rows.begin();
  const auto later = std::partition_point(rows + begin_, rows + end_,
                                          [&](Row r) { return model_.table.ts_ns[r] <= time_ns; });
  if (later != rows + begin_) {  // rows of earlier roots have no say
    Row root = *(later - 1);
    while (tree.parent[root] != kNoRow) root = tree.parent[root];
    next_ = std::max(begin_, tree.host_position[root]);
  }
  advance(time_ns);
}

void HostCursor::advance(std::int64_t time_ns) {
  const EventTable& table = model_.table;
  while (next_ < end_ && table.ts_ns[model_.tree.host_rows[next_]] <= time_ns) {
    push(model_.tree.host_rows[next_++]);
  }
  while (!stack_.empty() && stack_.back().end_ns <= time_ns) stack_.pop_back();
}

std::int64_t HostCursor::next_change_ns() const {
  std::int64_t change = std::numeric_limits<std::int64_t>::max();
  if (!stack_.empty()) change = stack_.back().end_ns;
  if (next_ < end_) {
    change = std::min(change, model_.table.ts_ns[model_.tree.host_rows[next_]]);
  }
  return change;
}

void HostCursor::push(Row row) {
  const Row parent = model_.tree.parent[row];
  while (!stack_.empty() && stack_.back().row != parent) stack_.pop_back();
  Open open{row, model_.table.end_ns(row), {}};
  judge(open, stack_.empty() ? nullptr : &stack_.back());
  stack_.push_back(open);
}

void HostCursor::set_cause(Open& open, IdleCause cause, bool sticky) const {
  open.state = {open.row, cause, false};
  open.sticky = sticky;
  open.passes_down = true;
}

void HostCursor::judge_plain(Open& open, const Open* enclosing) const {
  if (enclosing != nullptr && enclosing->passes_down) {
    open.state = enclosing->state;
    open.passes_down = true;
    return;
  }
  const EventKind kind = model_.table.kind[open.row];
  const bool works = kind == EventKind::kCpuOp || is_api_call(kind);
  open.state = {open.row, IdleCause::kHostWait, !works};
}

void HostCursor::judge(Open& open, const Open* enclosing) const {
  if (enclosing != nullptr) {
    open.in_syncing_op = enclosing->in_syncing_op;
    open.in_convolution = enclosing->in_convolution;
    open.in_wait = enclosing->in_wait;
    if (enclosing->sticky) {
      open.state = enclosing->state;
      open.sticky = true;
      return;
    }
  }
  const IdleCause copy_cause =
      open.in_syncing_op ? IdleCause::kSynchronization : IdleCause::kMemoryCopy;
  switch (model_.activity(open.row)) {
    case HostActivity::kDataLoading:
      return set_cause(open, IdleCause::kDataLoading, true);
    case HostActivity::kCompilation:
      return set_cause(open, IdleCause::kCompilation, true);
    case HostActivity::kProfiler:
      return set_cause(open, IdleCause::kProfiler, true);
    case HostActivity::kAllocator:
      return set_cause(open, IdleCause::kAllocator, false);
    case HostActivity::kSyncCopy:
      return set_cause(open, copy_cause, false);
    case HostActivity::kAsyncCopy:
      if (is_blocking_copy(model_.table, model_.tree, model_.copy_memory, open.row))
        return set_cause(open, copy_cause, false);
      return judge_plain(open, enclosing);
    case HostActivity::kSynchronize:
      if (open.in_convolution) return set_cause(open, IdleCause::kCompilation, false);
      return set_cause(
          open, open.in_wait ? IdleCause::kCommunicationWait : IdleCause::kSynchronization, false);
    case HostActivity::kApiCall:
      if (model_.table.dur_ns[open.row] >= kLongCallNs) {
        return set_cause(open, IdleCause::kCompilation, false);
      }
      return judge_plain(open, enclosing);
    case HostActivity::kCommunicationWait:
    case HostActivity::kHostCollective:
      open.in_wait = true;
      open.state = {open.row, IdleCause::kCommunicationWait, false};
      return;
    case HostActivity::kMarker:
      open.state = {open.row, IdleCause::kHostWait, true};
      return;
    case HostActivity::kSyncingOp:
      open.in_syncing_op = true;
      return judge_plain(open, enclosing);
    case HostActivity::kConvolutionOp:
      open.in_convolution = true;
      return judge_plain(open, enclosing);
    case HostActivity::kPlain:
    case HostActivity::kCompiledRegion:
      return judge_plain(open, enclosing);
  }
}

}  // namespace traceap
