// Host stacks by time, one per track.
//
// Note [Overlap rule]: rows of a track come by start, longer first. The parent of a row is the
// innermost range still open at its start that also contains its end. Profilers take the two clock
// reads of nested ranges at different moments, so an end that passes the parent's by at most
// overlap_tolerance_ns is taken as inside (and, for what follows, as ending with the parent). A row
// that ends later still belongs to the nearest ancestor that contains it; the ranges in between are
// closed, as all that starts later within them lies within this row too. O(n): a row is opened and
// closed once.

#include <algorithm>
#include <limits>
#include <span>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/offsets.hpp"
#include "traceap/tree/build_parts.hpp"

namespace traceap {

namespace {

struct OpenRange {
  std::int64_t end_ns;    ///< at most the end of the range below it on the stack
  std::int64_t limit_ns;  ///< end_ns plus the tolerance
  Row row;
  std::uint32_t position;
};

bool is_host_row(const EventTable& table, Row row) {
  return is_host(table.kind[row]) && table.is_complete(row);
}

class TrackNester {
 public:
  TrackNester(const TreeContext& context, EventTree& tree)
      : table_(context.table), tolerance_ns_(context.options.overlap_tolerance_ns), tree_(tree) {}

  /// Nests the rows at positions [begin, end) of host_rows, which are one track's.
  void nest(std::uint32_t begin, std::uint32_t end) {
    for (std::uint32_t position = begin; position < end; ++position) {
      poll_interrupt();
      place(tree_.host_rows[position], position);
    }
    close_to(0, end);
  }

  void report(Diagnostics& diagnostics) const {
    diagnostics.add("tolerated_host_overlaps",
                    "Host events end after their parent by no more than the tolerance; they stay "
                    "its children.",
                    tolerated_);
    diagnostics.add("overlapping_host_events",
                    "Host events overlap another one of their thread without being inside it; they "
                    "became children of the nearest event that contains them.",
                    overlapping_);
  }

 private:
  void place(Row row, std::uint32_t position) {
    const std::int64_t start_ns = table_.ts_ns[row];
    std::int64_t end_ns = add_saturated(start_ns, table_.dur_ns[row]);
    std::size_t open = stack_.size();
    while (open > 0 && stack_[open - 1].end_ns <= start_ns) --open;
    const std::size_t running = open;
    while (open > 0 && stack_[open - 1].limit_ns < end_ns) --open;
    overlapping_ += open < running;
    close_to(open, position);
    if (open > 0 && end_ns > stack_.back().end_ns) {
      ++tolerated_;
      end_ns = stack_.back().end_ns;
    }
    link(row, open);
    stack_.push_back({end_ns, add_saturated(end_ns, tolerance_ns_), row, position});
  }

  void link(Row row, std::size_t depth) {
    const Row parent = stack_.empty() ? kNoRow : stack_.back().row;
    tree_.parent[row] = parent;
    tree_.depth[row] = static_cast<std::uint16_t>(
        std::min<std::size_t>(depth, std::numeric_limits<std::uint16_t>::max()));
    if (table_.kind[row] == EventKind::kCpuOp) {
      tree_.op[row] = row;
    } else if (parent != kNoRow) {
      tree_.op[row] = tree_.op[parent];
    }
  }

  void close_to(std::size_t open, std::uint32_t position) {
    while (stack_.size() > open) {
      tree_.subtree_end[stack_.back().position] = position;
      stack_.pop_back();
    }
  }

  const EventTable& table_;
  const std::int64_t tolerance_ns_;
  EventTree& tree_;
  std::vector<OpenRange> stack_;
  std::uint64_t tolerated_ = 0, overlapping_ = 0;
};

}  // namespace

void group_host_rows(const TreeContext& context, EventTree& tree) {
  const EventTable& table = context.table;
  CountingSort by_track(table.tracks.size());
  for (Row row = 0; row < table.size(); ++row) {
    poll_interrupt();
    if (is_host_row(table, row)) by_track.count(table.track[row]);
  }
  tree.host_rows.resize(by_track.start_placing());
  tree.host_position.assign(table.size(), kNoRow);
  for (Row row = 0; row < table.size(); ++row) {
    poll_interrupt();
    if (!is_host_row(table, row)) continue;
    const std::uint32_t position = by_track.place(table.track[row]);
    tree.host_rows[position] = row;
    tree.host_position[row] = position;
  }
  tree.host_offsets = by_track.take_offsets();
  for (TrackId track = 0; track < table.tracks.size(); ++track) {
    if (tree.host_offsets[track + 1] > tree.host_offsets[track]) tree.host_tracks.push_back(track);
  }
  std::sort(tree.host_tracks.begin(), tree.host_tracks.end(), [&](TrackId a, TrackId b) {
    return is_named_before(table.tracks[a], table.tracks[b]);
  });
}

void nest_host_rows(const TreeContext& context, EventTree& tree) {
  const Row size = context.table.size();
  tree.parent.assign(size, kNoRow);
  tree.depth.assign(size, 0);
  tree.op.assign(size, kNoRow);
  tree.subtree_end.resize(tree.host_rows.size());
  TrackNester nester(context, tree);
  for (const TrackId track : tree.host_tracks) {
    poll_interrupt();
    nester.nest(tree.host_offsets[track], tree.host_offsets[track + 1]);
  }
  nester.report(tree.diagnostics);
}

}  // namespace traceap
