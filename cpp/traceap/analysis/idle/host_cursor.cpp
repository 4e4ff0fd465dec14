#include "traceap/analysis/idle/host_cursor.hpp"

#include <algorithm>
#include <limits>
#include <span>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/sums.hpp"
#include "traceap/base/text.hpp"

namespace traceap {

// Note [First calls]: an operator that launches GPU work takes microseconds of its own, but for its
// first call, in which code may be generated (NVFuser, Triton, flashinfer), tuned or loaded
// (libraries of cuDNN and cuBLAS). A first call is cold if it takes 1 ms or more and ten times the
// mean of three or more later ones. Where fewer follow, it has to spend 10 ms in no call at all,
// and lie in warm-up. Operators that launch nothing compute on the host, as long as that takes.

namespace {

constexpr std::int64_t kMinLaterCalls = 3;
constexpr double kColdRatio = 10.0;
/// Python and the dispatcher take tens of microseconds, a slow host hundreds; even a small kernel
/// takes a compiler tens of milliseconds.
constexpr std::int64_t kColdOwnNs = 10'000'000;

/// By row: does it hold a call that puts work on the GPU?
std::vector<bool> mark_launching(const EventTable& table, const EventTree& tree) {
  std::vector<bool> launches(table.size());
  for (const Row gpu : tree.gpu_rows) {
    poll_interrupt();
    for (Row r = tree.launch[gpu]; r != kNoRow && !launches[r]; r = tree.parent[r]) {
      launches[r] = true;
    }
  }
  return launches;
}

/// Time in which no operator and no call inside the row runs.
std::int64_t own_time_ns(const EventTable& table, const EventTree& tree, Row row) {
  std::int64_t own_ns = table.dur_ns[row];
  const std::uint32_t begin = tree.host_position[row] + 1;
  for (std::uint32_t i = begin; i < tree.subtree_end[begin - 1];) {
    poll_interrupt();
    const Row inner = tree.host_rows[i];
    const bool counts = table.kind[inner] == EventKind::kCpuOp || is_api_call(table.kind[inner]);
    if (counts) own_ns -= table.dur_ns[inner];
    i = counts ? tree.subtree_end[i] : i + 1;
  }
  return own_ns;
}

}  // namespace

HostModel::HostModel(const EventTable& event_table, const EventTree& event_tree)
    : table(event_table),
      tree(event_tree),
      activity(event_table, event_tree),
      waits_for_copy_(event_table.size()),
      first_call_of_name_(event_table.strings.size(), kNoRow),
      first_launch_of_name_(event_table.strings.size(), kNoRow) {
  for (Row r = 0; r < table.size(); ++r) {
    poll_interrupt();
    if (!is_api_call(table.kind[r])) continue;
    Row& first = first_call_of_name_[table.name[r]];
    if (first == kNoRow) first = r;
  }
  for (const Row gpu : tree.gpu_rows) {
    poll_interrupt();
    const Row launch = tree.launch[gpu];
    if (launch == kNoRow) continue;
    Row& first = first_launch_of_name_[table.name[gpu]];
    first = std::min(first, launch);  // kNoRow is the largest
    first_launch_ = std::min(first_launch_, launch);
  }
  mark_copy_ops();
  find_first_calls();
}

void HostModel::find_first_calls() {
  struct Calls {
    Row first = kNoRow;
    std::int64_t later_calls = 0, later_ns = 0;
  };
  const std::vector<bool> launches = mark_launching(table, tree);
  std::vector<Calls> by_name(table.strings.size());
  for (Row r = 0; r < table.size(); ++r) {  // by time, over all threads
    poll_interrupt();
    if (!launches[r] || table.kind[r] != EventKind::kCpuOp) continue;
    Calls& calls = by_name[table.name[r]];
    if (calls.first == kNoRow) {
      calls.first = r;
    } else {
      ++calls.later_calls;
      add_to(calls.later_ns, table.dur_ns[r]);
    }
  }
  for (const Calls& calls : by_name) {
    if (calls.first == kNoRow || !is_cold(calls.first, calls.later_calls, calls.later_ns)) continue;
    first_calls_.push_back(calls.first);
  }
  std::sort(first_calls_.begin(), first_calls_.end());
}

bool HostModel::is_cold(Row first, std::int64_t later_calls, std::int64_t later_ns) const {
  if (contains(table.name_of(first), "#")) return false;  // a range that older torch writes so
  const auto first_ns = static_cast<double>(table.dur_ns[first]);
  const double others_ns = static_cast<double>(later_ns);
  if (table.dur_ns[first] < kLongCallNs) return false;
  if (first_ns * static_cast<double>(later_calls) < kColdRatio * others_ns) return false;
  if (later_calls >= kMinLaterCalls) return true;
  const WarmUp& warm_up = tree.warm_up;
  if (warm_up.known && table.ts_ns[first] >= warm_up.end_ns) return false;
  return own_time_ns(table, tree, first) >= kColdOwnNs;
}

void HostModel::mark_copy_ops() {
  for (const Row gpu : tree.gpu_rows) {
    poll_interrupt();
    const Row call = tree.launch[gpu];
    if (tree.gpu_class[gpu] != GpuClass::kMemcpy || call == kNoRow) continue;
    const HostActivity copy = activity(call);
    const bool waits = copy == HostActivity::kSyncCopy ||
                       (copy == HostActivity::kAsyncCopy && is_blocking_copy(call));
    if (waits) mark_operators_above(call);
  }
  for (Row r = 0; r < table.size(); ++r) {
    poll_interrupt();
    if (is_api_call(table.kind[r]) && activity(r) == HostActivity::kSynchronize) {
      mark_operators_above(r);
    }
  }
}

void HostModel::mark_operators_above(Row call) {
  for (Row op = tree.parent[call]; op != kNoRow && !waits_for_copy_[op]; op = tree.parent[op]) {
    const HostActivity kind = activity(op);
    if (kind != HostActivity::kCopyOp && kind != HostActivity::kScalarReadOp) return;
    waits_for_copy_[op] = true;
  }
}

bool HostModel::is_first_use(Row call) const {
  const std::span<const Row> launched = tree.launched_by(call);
  if (launched.empty()) return first_call_of_name_[table.name[call]] == call;
  return first_launch_of_name_[table.name[launched.front()]] == call;
}

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
    open.in_copy_op = enclosing->in_copy_op;
    open.in_convolution = enclosing->in_convolution;
    open.in_wait = enclosing->in_wait;
    if (enclosing->sticky) {
      open.state = enclosing->state;
      open.sticky = true;
      return;
    }
  }
  const HostActivity activity = model_.activity(open.row);
  open.in_syncing_op |= activity == HostActivity::kSyncingOp;
  open.in_syncing_op |= activity == HostActivity::kScalarReadOp;
  open.in_copy_op |= activity == HostActivity::kCopyOp;
  open.in_convolution |= activity == HostActivity::kConvolutionOp;
  open.in_wait |= activity == HostActivity::kCommunicationWait;
  judge_activity(open, enclosing, activity);
}

void HostCursor::judge_activity(Open& open, const Open* enclosing, HostActivity activity) const {
  const IdleCause copy_cause =
      open.in_syncing_op ? IdleCause::kSynchronization : IdleCause::kMemoryCopy;
  switch (activity) {
    case HostActivity::kDataLoading:
      return set_cause(open, IdleCause::kDataLoading, true);
    case HostActivity::kCompilation:
      return set_cause(open, IdleCause::kCompilation, true);
    case HostActivity::kProfiler:
      return set_cause(open, IdleCause::kProfiler, true);
    case HostActivity::kAllocator:
      return set_cause(open, allocator_cause(open.row), false);
    case HostActivity::kSyncCopy:
      return set_cause(open, copy_cause, false);
    case HostActivity::kSynchronize:
      return set_cause(open, synchronize_cause(open), false);
    case HostActivity::kAsyncCopy:
      if (!model_.is_blocking_copy(open.row)) return judge_plain(open, enclosing);
      return set_cause(open, copy_cause, false);
    case HostActivity::kCopyOp:
    case HostActivity::kScalarReadOp:
      if (!model_.waits_for_copy(open.row)) return judge_plain(open, enclosing);
      return set_cause(open, copy_cause, false);
    case HostActivity::kApiCall:
      if (!is_long_first_use(open.row)) return judge_plain(open, enclosing);
      return set_cause(open, IdleCause::kCompilation, false);
    case HostActivity::kCommunicationWait:
    case HostActivity::kHostCollective:
      open.state = {open.row, IdleCause::kCommunicationWait, false};
      return;
    case HostActivity::kMarker:
      open.state = {open.row, IdleCause::kHostWait, true};
      return;
    case HostActivity::kPlain:
    case HostActivity::kSyncingOp:
    case HostActivity::kConvolutionOp:
    case HostActivity::kCompiledRegion:
      if (model_.is_first_call(open.row)) return set_cause(open, IdleCause::kCompilation, false);
      return judge_plain(open, enclosing);
  }
}

bool HostCursor::is_long_first_use(Row call) const {
  return model_.table.dur_ns[call] >= kLongCallNs && model_.is_first_use(call);
}

IdleCause HostCursor::allocator_cause(Row call) const {
  const bool starts_context = model_.table.dur_ns[call] >= kLongCallNs &&
                              model_.before_first_launch(call) &&
                              gives_memory_back(model_.tree.api[call]);
  return starts_context ? IdleCause::kCompilation : IdleCause::kAllocator;
}

/// A convolution synchronises only to time algorithms, a copy operator to await its copy.
IdleCause HostCursor::synchronize_cause(const Open& open) const {
  if (open.in_convolution) return IdleCause::kCompilation;
  if (open.in_wait) return IdleCause::kCommunicationWait;
  const bool awaits_copy = open.in_copy_op && !open.in_syncing_op;
  return awaits_copy ? IdleCause::kMemoryCopy : IdleCause::kSynchronization;
}

}  // namespace traceap
