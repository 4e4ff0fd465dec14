// Backward ops to the forward op that made them.
//
// Note [Sequence numbers]: autograd numbers its nodes per thread. A forward op carries the number
// that the next node will get, so ops before the one that makes the node carry it too: of the
// forward ops with a number, the last to start made the node. In backward, the engine's frame of
// the node and the op inside it carry the number back, with the forward thread in "Fwd thread id"
// (small numbers of PyTorch's own, not the tid). Where several threads ran forward with the same
// number, a forward thread is taken to be the track on which most of its unambiguous numbers are
// found.

#include <algorithm>
#include <map>

#include "traceap/base/interrupt.hpp"
#include "traceap/tree/build_parts.hpp"
#include "traceap/tree/id_index.hpp"

namespace traceap {

namespace {

class ForwardLinker {
 public:
  ForwardLinker(const TreeContext& context, EventTree& tree)
      : context_(context), table_(context.table), tree_(tree) {
    std::vector<IdRow> forward_ops;
    for (const SequencedOp& op : context.sequenced) {
      if (is_forward(op)) forward_ops.push_back({op.sequence, op.row});
    }
    forward_ops_ = IdIndex(std::move(forward_ops));
  }

  void link() {
    if (forward_ops_.empty()) return;
    choose_backward_ops();
    if (several_threads_) vote();
    for (const SequencedOp* op : backward_ops_) tree_.forward[op->row] = find_forward(*op);
  }

 private:
  bool is_forward(const SequencedOp& op) const {
    return op.forward_thread == 0 && !context_.in_engine[op.row];
  }

  /// Engine frames and nodes, and ops below them that carry the same number. What a node recomputes
  /// (activation checkpointing) has numbers of its own and is no backward op.
  void choose_backward_ops() {
    constexpr std::uint32_t kNone = kNoRow;
    std::vector<std::uint32_t> above(table_.size(), kNone);  // innermost backward op, as an index
    std::uint32_t next = 0;
    for (Row row = 0; row < table_.size() && next < context_.sequenced.size(); ++row) {
      poll_interrupt();
      const Row parent = tree_.parent[row];
      if (parent != kNoRow) above[row] = above[parent];
      if (context_.sequenced[next].row != row) continue;
      const SequencedOp& op = context_.sequenced[next++];
      if (!context_.in_engine[row] && op.forward_thread == 0) continue;
      const bool is_node = context_.has_trait(row, kTraitBackwardNode) || op.forward_thread != 0;
      const bool same_as_above =
          above[row] != kNone && context_.sequenced[above[row]].sequence == op.sequence;
      if (!is_node && !same_as_above) continue;
      above[row] = next - 1;
      backward_ops_.push_back(&op);
      several_threads_ |= is_ambiguous(op);
    }
  }

  bool is_ambiguous(const SequencedOp& op) const {
    const std::span<const Row> found = forward_ops_.find(op.sequence);
    if (found.size() < 2) return false;
    // Rows of one number come by start, so two tracks differ between some neighbours.
    return table_.track[found.front()] != table_.track[found.back()];
  }

  void vote() {
    std::map<std::pair<std::int64_t, TrackId>, std::uint64_t> votes;
    for (const SequencedOp* op : backward_ops_) {
      const std::span<const Row> found = forward_ops_.find(op->sequence);
      if (found.empty() || is_ambiguous(*op)) continue;
      ++votes[{op->forward_thread, table_.track[found.back()]}];
    }
    std::map<std::int64_t, std::uint64_t> most;
    for (const auto& [key, count] : votes) {
      if (count < most[key.first]) continue;
      // A tie leaves the thread unknown: the order of tracks is no reason to choose one.
      track_of_thread_[key.first] = count == most[key.first] ? kNoTrack : key.second;
      most[key.first] = count;
    }
    std::erase_if(track_of_thread_, [](const auto& entry) { return entry.second == kNoTrack; });
  }

  /// The last forward op with the number that starts before `op`, on the thread's track if known.
  Row find_forward(const SequencedOp& op) const {
    const std::span<const Row> found = forward_ops_.find(op.sequence);
    const auto after = std::lower_bound(found.begin(), found.end(), op.row);
    const auto track = track_of_thread_.find(op.forward_thread);
    if (track == track_of_thread_.end()) return after == found.begin() ? kNoRow : *(after - 1);
    // Few steps back as a rule; bounded, so that hostile numbers stay cheap.
    constexpr int kMaxStepsBack = 1000;
    auto candidate = after;
    for (int i = 0; i < kMaxStepsBack && candidate != found.begin(); ++i) {
      if (table_.track[*--candidate] == track->second) return *candidate;
    }
    return kNoRow;
  }

  const TreeContext& context_;
  const EventTable& table_;
  EventTree& tree_;
  IdIndex forward_ops_;
  std::vector<const SequencedOp*> backward_ops_;
  bool several_threads_ = false;
  std::map<std::int64_t, TrackId> track_of_thread_;
};

}  // namespace

void read_sequence_numbers(TreeContext& context, const EventTree& tree) {
  const EventTable& table = context.table;
  const RareKey sequence(table, "Sequence number"), thread(table, "Fwd thread id");
  if (!sequence.occurs()) return;
  for (Row row = 0; row < table.size(); ++row) {
    poll_interrupt();
    if (table.kind[row] != EventKind::kCpuOp || tree.host_position[row] == kNoRow) continue;
    const auto number = sequence.integer(row);
    if (!number || *number < 0) continue;
    context.sequenced.push_back({row, *number, thread.integer(row).value_or(0)});
  }
}

void link_forward(const TreeContext& context, EventTree& tree) {
  tree.forward.assign(context.table.size(), kNoRow);
  ForwardLinker(context, tree).link();
}

}  // namespace traceap
