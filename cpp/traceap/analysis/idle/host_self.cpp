#include "traceap/analysis/idle/host_self.hpp"

#include "traceap/analysis/idle/host_activity.hpp"
#include "traceap/base/interrupt.hpp"
#include "traceap/base/sums.hpp"

namespace traceap {
namespace {

/// Idle intervals in the host's clock, met in order of time. A row may last as long as the trace,
/// on every thread: whole blocks of intervals inside of it are added at once.
class IdleWalk {
 public:
  IdleWalk(const std::vector<IdleInterval>& intervals, std::int64_t to_host_clock_ns)
      : intervals_(intervals), shift_ns_(to_host_clock_ns) {
    NsByCause sum{};
    for (std::size_t i = 0; i < intervals.size(); ++i) {
      if (i % kBlock == 0) before_block_.push_back(sum);
      sum[cause_of(i)] += intervals[i].interval.length_ns();
    }
  }

  void rewind() { next_ = 0; }

  /// Adds the idle time inside `piece`, which must not start before the last one, and returns it.
  std::int64_t add_overlap(Interval piece, NsByCause& by_cause) {
    skip_to(piece.start_ns - shift_ns_);
    const Interval own{piece.start_ns - shift_ns_, piece.end_ns - shift_ns_};
    std::int64_t sum_ns = 0;
    for (std::size_t i = next_; i < intervals_.size();) {
      const Interval& idle = intervals_[i].interval;
      if (idle.start_ns >= own.end_ns) break;
      if (i % kBlock == 0 && is_block_inside(i, own)) {
        sum_ns += add_block(i / kBlock, by_cause);
        i += kBlock;
        continue;
      }
      const std::int64_t ns =
          std::min(idle.end_ns, own.end_ns) - std::max(idle.start_ns, own.start_ns);
      by_cause[cause_of(i++)] += ns;
      sum_ns += ns;
    }
    return sum_ns;
  }

 private:
  static constexpr std::size_t kBlock = 64;

  /// To the first interval that ends after `time_ns`, in strides that double.
  void skip_to(std::int64_t time_ns) {
    const std::size_t size = intervals_.size();
    std::size_t stride = 1, last = next_;
    while (last < size && intervals_[last].interval.end_ns <= time_ns) {
      next_ = last + 1;
      last += stride;
      stride *= 2;
    }
    const auto begin = intervals_.begin();
    const auto found =
        std::partition_point(begin + static_cast<std::ptrdiff_t>(next_),
                             begin + static_cast<std::ptrdiff_t>(std::min(last, size)),
                             [&](const IdleInterval& i) { return i.interval.end_ns <= time_ns; });
    next_ = static_cast<std::size_t>(found - begin);
  }

  std::size_t cause_of(std::size_t i) const {
    return static_cast<std::size_t>(intervals_[i].cause);
  }

  bool is_block_inside(std::size_t first, const Interval& own) const {
    return first + kBlock < intervals_.size() &&
           intervals_[first].interval.start_ns >= own.start_ns &&
           intervals_[first + kBlock - 1].interval.end_ns <= own.end_ns;
  }

  std::int64_t add_block(std::size_t block, NsByCause& by_cause) const {
    std::int64_t sum_ns = 0;
    for (std::size_t cause = 0; cause < by_cause.size(); ++cause) {
      const std::int64_t ns = before_block_[block + 1][cause] - before_block_[block][cause];
      by_cause[cause] += ns;
      sum_ns += ns;
    }
    return sum_ns;
  }

  const std::vector<IdleInterval>& intervals_;
  std::int64_t shift_ns_;
  std::size_t next_ = 0;
  std::vector<NsByCause> before_block_;  ///< idle time before every kBlock-th interval
};

/// Rows in which the thread waits for the GPU or for a collective.
class BlockingRows {
 public:
  BlockingRows(const EventTable& table, const EventTree& tree)
      : table_(table), tree_(tree), activity_(table, tree) {}

  bool operator()(Row row) const {
    switch (activity_(row)) {
      case HostActivity::kSynchronize:
      case HostActivity::kSyncCopy:
      case HostActivity::kCommunicationWait:
        return true;
      case HostActivity::kAsyncCopy:
        return is_blocking_copy(table_, tree_, row);
      default:
        return false;
    }
  }

 private:
  const EventTable& table_;
  const EventTree& tree_;
  HostActivities activity_;
};

/// The group of each row, from the row around it where it has none of its own.
std::vector<std::size_t> spread_groups(const EventTree& tree,
                                       std::span<const std::int32_t> group_of, std::size_t groups) {
  std::vector<std::size_t> spread(tree.parent.size(), groups);
  for (const Row row : tree.host_rows) {
    poll_interrupt();
    const auto group = row < group_of.size() ? group_of[row] : -1;
    if (group >= 0 && static_cast<std::size_t>(group) < groups) {
      spread[row] = static_cast<std::size_t>(group);
    } else if (tree.parent[row] != kNoRow) {
      spread[row] = spread[tree.parent[row]];
    }
  }
  return spread;
}

}  // namespace

HostIdle build_host_idle(const EventTable& table, const EventTree& tree, const IdleBreakdown& idle,
                         Interval bounds, std::span<const std::int32_t> group_of,
                         std::size_t groups) {
  const std::int64_t shift_ns = tree.launch_delay_correction_ns;
  const Interval host{bounds.start_ns + shift_ns, bounds.end_ns + shift_ns};
  const std::vector<std::size_t> group = spread_groups(tree, group_of, groups);
  const BlockingRows blocks(table, tree);
  IdleWalk walk(idle.intervals, shift_ns);
  HostIdle result{{},
                  std::vector<std::int64_t>(groups + 1, 0),
                  std::vector<NsByCause>(groups + 1, NsByCause{})};
  for (const TrackId track : tree.host_tracks) {
    poll_interrupt();
    HostThread thread{track};
    walk.rewind();
    visit_self_time(table, tree, track, [&](Row row, Interval piece) {
      piece = {std::max(piece.start_ns, host.start_ns), std::min(piece.end_ns, host.end_ns)};
      if (piece.end_ns <= piece.start_ns) return;
      thread.busy_ns += piece.length_ns();
      add_to(result.self_ns[group[row]], piece.length_ns());
      NsByCause met{};
      const std::int64_t idle_ns = walk.add_overlap(piece, met);
      if (idle_ns == 0) return;
      if (blocks(row)) thread.blocked_idle_ns += idle_ns;
      for (std::size_t cause = 0; cause < met.size(); ++cause) {
        thread.busy_idle_ns[cause] += met[cause];
        add_to(result.idle_self_ns[group[row]][cause], met[cause]);
      }
    });
    for (std::size_t cause = 0; cause < thread.silent_idle_ns.size(); ++cause) {
      thread.silent_idle_ns[cause] = idle.total_ns[cause] - thread.busy_idle_ns[cause];
    }
    result.threads.push_back(thread);
  }
  return result;
}

}  // namespace traceap
