#include "traceap/analysis/costs/subtree_unions.hpp"

#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <queue>
#include <utility>

#include "traceap/base/interrupt.hpp"

// Note [Unions over subtrees]: adding every interval to a union of each of its ancestors takes
// intervals x depth, which a trace of 40,000 nested calls makes seconds. Instead, take an instant
// and the intervals that are open at it, ordered by the place of their rows in the pre-order. Give
// one to the row of each, and take one from the lowest common ancestor of each two neighbours in
// that order. A subtree with m > 0 of them holds them side by side, and m - 1 of those ancestors:
// the sum over it is one, as the union has it. Summed over time, a pair of neighbours counts for as
// long as the two are neighbours; few intervals are open at once, as streams are few.

namespace traceap {
namespace {

/// Lowest common ancestors in O(log depth): each row also knows an ancestor further up (Myers,
/// "An applicative random-access stack", 1983: the jumps of skew-binary numbers).
class CommonAncestors {
 public:
  explicit CommonAncestors(const EventTree& tree) : tree_(tree) {
    const std::size_t count = tree.host_rows.size();
    parent_.resize(count);
    jump_.resize(count);
    depth_.assign(count, 0);
    for (std::uint32_t at = 0; at < count; ++at) {
      poll_interrupt();
      const Row row = tree.parent[tree.host_rows[at]];
      if (row == kNoRow) {
        parent_[at] = jump_[at] = at;
        continue;
      }
      const std::uint32_t up = parent_[at] = tree.host_position[row];
      const std::uint32_t further = jump_[up];
      depth_[at] = depth_[up] + 1;
      const bool equal = depth_[up] - depth_[further] == depth_[further] - depth_[jump_[further]];
      jump_[at] = equal ? jump_[further] : up;
    }
  }

  /// Of two places of the pre-order, a <= b; none if they are in different trees.
  std::optional<std::uint32_t> of(std::uint32_t a, std::uint32_t b) const {
    const auto holds_b = [&](std::uint32_t at) { return tree_.subtree_end[at] > b; };
    while (!holds_b(a)) {
      if (parent_[a] == a) return std::nullopt;
      a = holds_b(jump_[a]) ? parent_[a] : jump_[a];
    }
    return a;
  }

 private:
  const EventTree& tree_;
  std::vector<std::uint32_t> parent_, jump_, depth_;  // roots are their own parent and jump
};

/// The intervals that are open at an instant, in the order of the rows that they count for.
class OpenIntervals {
 public:
  OpenIntervals(const EventTree& tree, std::vector<std::uint64_t>& sum_ns)
      : tree_(tree), sum_ns_(sum_ns) {}

  void open(std::uint32_t position, Interval interval) {
    close_until(interval.start_ns);
    sum_ns_[position] += static_cast<std::uint64_t>(interval.length_ns());
    const Key key{position, count_++};
    if (const auto next = open_.lower_bound(key); next != open_.end()) {
      settle(next, interval.start_ns);
    }
    ends_.push({interval.end_ns, open_.emplace(key, interval.start_ns).first});
  }
  void close_until(std::int64_t now_ns) {
    while (!ends_.empty() && ends_.top().end_ns <= now_ns) {
      const End end = ends_.top();
      ends_.pop();
      settle(end.entry, end.end_ns);
      if (const auto next = std::next(end.entry); next != open_.end()) settle(next, end.end_ns);
      open_.erase(end.entry);
    }
  }

 private:
  using Key = std::pair<std::uint32_t, std::uint64_t>;  // place of the row; which of its intervals
  using Entries = std::map<Key, std::int64_t>;  // since when it stands behind the one before it
  struct End {
    std::int64_t end_ns;
    Entries::iterator entry;
    bool operator>(const End& other) const { return end_ns > other.end_ns; }
  };

  /// Counts the time that an entry has stood behind the one before it, and starts anew.
  void settle(Entries::iterator entry, std::int64_t now_ns) {
    const std::int64_t together_ns = now_ns - std::exchange(entry->second, now_ns);
    if (together_ns == 0 || entry == open_.begin()) return;
    if (!ancestors_) ancestors_.emplace(tree_);
    if (const auto shared = ancestors_->of(std::prev(entry)->first.first, entry->first.first)) {
      sum_ns_[*shared] -= static_cast<std::uint64_t>(together_ns);
    }
  }

  const EventTree& tree_;
  std::vector<std::uint64_t>& sum_ns_;
  std::optional<CommonAncestors> ancestors_;  // a trace whose GPU events never overlap needs none
  Entries open_;
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
  std::uint64_t count_ = 0;
};

}  // namespace

std::vector<std::int64_t> subtree_union_ns(const EventTree& tree,
                                           std::span<const PlacedInterval> placed) {
  // What overlaps is counted and taken off again: sums may wrap on the way, a union fits.
  std::vector<std::uint64_t> sum_ns(tree.host_rows.size(), 0);
  OpenIntervals open(tree, sum_ns);
  for (const PlacedInterval& each : placed) {
    poll_interrupt();
    if (each.interval.length_ns() > 0) open.open(tree.host_position[each.host_row], each.interval);
  }
  open.close_until(std::numeric_limits<std::int64_t>::max());
  for (std::size_t at = sum_ns.size(); at-- > 0;) {
    poll_interrupt();
    const Row parent = tree.parent[tree.host_rows[at]];
    if (parent != kNoRow) sum_ns[tree.host_position[parent]] += sum_ns[at];
  }
  return {sum_ns.begin(), sum_ns.end()};
}

}  // namespace traceap
