#include "traceap/analysis/collectives/matching.hpp"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <optional>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/statistics.hpp"

namespace traceap {
namespace {

/// Ends of one collective lie within some microseconds of each other on one clock (7 us on eight
/// V100), and within 0.4 ms with the clocks of two GPUs not aligned to each other (RTX 4090). Steps
/// of a training loop jitter by more.
constexpr std::int64_t kClusterNs = 100'000;
/// Equal sequences whose ends scatter by more than this were probably recorded from different
/// moments on.
constexpr std::int64_t kAgreeNs = 1'000'000;
/// With a known offset of the clocks, ends further apart than this are of different collectives;
/// leaves room for drift over minutes.
constexpr std::int64_t kNeverNs = 10'000'000;

struct Offset {
  std::int64_t ns = 0;
  bool known = false;
};

/// Offset of the clocks if item i is item i, and whether the ends agree with that.
std::optional<Offset> identity_offset(std::span<const SequenceItem> a,
                                      std::span<const SequenceItem> b) {
  if (a.size() != b.size()) return std::nullopt;
  std::vector<std::int64_t> differences;
  for (std::size_t i = 0; i < a.size(); ++i) {
    poll_interrupt();
    if (a[i].key != b[i].key) return std::nullopt;
    if (a[i].ends_together && b[i].ends_together) {
      differences.push_back(b[i].end_ns - a[i].end_ns);
    }
  }
  const std::int64_t middle = median_of(differences);
  for (std::int64_t& d : differences) d = std::abs(d - middle);
  if (differences.size() >= 3 && median_of(differences) > kAgreeNs) return std::nullopt;
  return Offset{middle, !differences.empty()};
}

struct Cluster {
  std::int64_t offset_ns = 0;
  std::size_t count = 0;
};

/// The offset that most of the sorted differences agree on, other than `except`. Of equal ones, the
/// smallest: clocks are more often right than wrong.
Cluster densest_cluster(const std::vector<std::int64_t>& differences,
                        std::optional<std::int64_t> except) {
  Cluster best;
  for (std::size_t low = 0, high = 0; high < differences.size(); ++high) {
    while (differences[high] - differences[low] > kClusterNs) ++low;
    const std::size_t count = high - low + 1;
    const std::int64_t middle = differences[low + count / 2];
    if (except && std::abs(middle - *except) <= 2 * kClusterNs) continue;
    if (count > best.count ||
        (count == best.count && std::abs(middle) < std::abs(best.offset_ns))) {
      best = {middle, count};
    }
  }
  return best;
}

/// Takes from the budget; false if it does not last.
bool spend(AlignmentBudget& budget, std::size_t pairs) {
  if (pairs > budget.pairs) return false;
  budget.pairs -= pairs;
  return true;
}

/// The offset that pairs of equal keys near the diagonal agree on.
Offset find_offset(std::span<const SequenceItem> a, std::span<const SequenceItem> b,
                   AlignmentBudget& budget) {
  constexpr std::ptrdiff_t kReach = 24;
  constexpr std::size_t kMaxPairs = std::size_t{1} << 22;
  const auto n = static_cast<std::ptrdiff_t>(a.size()), m = static_cast<std::ptrdiff_t>(b.size());
  const std::ptrdiff_t reach = std::abs(n - m) + kReach;
  std::vector<std::int64_t> differences;
  for (std::ptrdiff_t j = 0; j < m; ++j) {
    const std::ptrdiff_t begin = std::max<std::ptrdiff_t>(0, j - reach);
    const std::ptrdiff_t last = std::min(n, j + reach + 1);
    if (begin < last && !spend(budget, static_cast<std::size_t>(last - begin))) break;
    for (std::ptrdiff_t i = begin; i < last; ++i) {
      const SequenceItem& x = a[static_cast<std::size_t>(i)];
      const SequenceItem& y = b[static_cast<std::size_t>(j)];
      if (x.key == y.key) differences.push_back(y.end_ns - x.end_ns);
    }
    if (differences.size() > kMaxPairs) break;
  }
  std::sort(differences.begin(), differences.end());
  const Cluster best = densest_cluster(differences, std::nullopt);
  const Cluster next = densest_cluster(differences, best.offset_ns);
  // Half of all pairs, or clearly more than agree on anything else by chance.
  const bool most = 2 * best.count >= std::min(a.size(), b.size());
  return {best.offset_ns, best.count >= 3 && (most || best.count >= 2 * next.count)};
}

/// Global alignment in a band around the diagonal; the band widens until the best path fits in.
class BandedAlignment {
 public:
  BandedAlignment(std::span<const SequenceItem> a, std::span<const SequenceItem> b, Offset offset,
                  AlignmentBudget& budget)
      : a_(a), b_(b), offset_(offset), budget_(budget) {}

  std::vector<std::uint32_t> solve() {
    constexpr std::size_t kMaxCells = std::size_t{1} << 26;
    constexpr std::size_t kFirstSlack = 16;
    if (cells(kFirstSlack) > 2 * kMaxCells || !spend(budget_, cells(kFirstSlack))) {
      return in_one_pass();
    }
    const std::size_t longer = std::max(a_.size(), b_.size());
    for (std::size_t slack = kFirstSlack;; slack *= 4) {
      const float cost = fill(slack);
      // A path that leaves the band skips more items than `slack` on one side.
      if (cost <= static_cast<float>(slack) || slack >= longer) break;
      if (4 * cells(slack) > kMaxCells || !spend(budget_, cells(4 * slack))) break;
    }
    return trace_back();
  }

 private:
  enum Move : std::uint8_t { kNone, kDiagonal, kSkipFirst, kSkipSecond };
  static constexpr float kInfinite = std::numeric_limits<float>::infinity();

  std::size_t cells(std::size_t slack) const {
    const std::size_t longer = std::max(a_.size(), b_.size());
    const std::size_t shorter = std::min(a_.size(), b_.size());
    return (b_.size() + 1) * (longer - shorter + 2 * slack + 1);
  }

  /// Without looking ahead: of two items that can't match, the one that ended first has no partner;
  /// if times tell nothing, the one of which more are left.
  std::vector<std::uint32_t> in_one_pass() const {
    std::vector<std::uint32_t> to_first(b_.size(), kNoMatch);
    for (std::size_t i = 0, j = 0; i < a_.size() && j < b_.size();) {
      if (match_cost(i, j) != kInfinite) {
        to_first[j++] = static_cast<std::uint32_t>(i++);
        continue;
      }
      const bool first_ended = b_[j].end_ns - a_[i].end_ns > offset_.ns;
      const bool skips_first = offset_.known ? first_ended : a_.size() - i > b_.size() - j;
      ++(skips_first ? i : j);
    }
    return to_first;
  }

  /// 0 for a perfect match, at most 1; skipping two items instead costs 2.
  float match_cost(std::size_t i, std::size_t j) const {
    const SequenceItem &x = a_[i], &y = b_[j];
    if (x.key != y.key) return kInfinite;
    if (!offset_.known) return 0.0F;
    const std::int64_t apart = std::abs(y.end_ns - x.end_ns - offset_.ns);
    if (x.ends_together && y.ends_together && apart > kNeverNs) return kInfinite;
    return std::min(1.0F, static_cast<float>(apart) / static_cast<float>(kNeverNs));
  }

  /// Column of a_ index i in row j.
  std::optional<std::size_t> column(std::size_t i, std::size_t j) const {
    const auto at = static_cast<std::ptrdiff_t>(i) - static_cast<std::ptrdiff_t>(j) - low_;
    if (at < 0 || at >= static_cast<std::ptrdiff_t>(width_)) return std::nullopt;
    return static_cast<std::size_t>(at);
  }

  float fill(std::size_t slack) {
    const auto difference =
        static_cast<std::ptrdiff_t>(a_.size()) - static_cast<std::ptrdiff_t>(b_.size());
    low_ = std::min<std::ptrdiff_t>(difference, 0) - static_cast<std::ptrdiff_t>(slack);
    const std::ptrdiff_t high =
        std::max<std::ptrdiff_t>(difference, 0) + static_cast<std::ptrdiff_t>(slack);
    width_ = static_cast<std::size_t>(high - low_ + 1);
    moves_.assign((b_.size() + 1) * width_, kNone);
    std::vector<float> previous(width_, kInfinite), current(width_, kInfinite);
    for (std::size_t j = 0; j <= b_.size(); ++j) {
      std::fill(current.begin(), current.end(), kInfinite);
      for (std::size_t c = 0; c < width_; ++c) {
        const std::ptrdiff_t i = static_cast<std::ptrdiff_t>(j + c) + low_;
        if (i < 0 || i > static_cast<std::ptrdiff_t>(a_.size())) continue;
        current[c] = best_move(static_cast<std::size_t>(i), j, c, previous, current);
      }
      std::swap(previous, current);
    }
    const auto last = column(a_.size(), b_.size());
    return last ? previous[*last] : kInfinite;
  }

  /// In row j - 1 the same index of a_ stands one column to the right.
  float best_move(std::size_t i, std::size_t j, std::size_t c, const std::vector<float>& previous,
                  const std::vector<float>& current) {
    Move& move = moves_[j * width_ + c];
    if (i == 0 && j == 0) return 0.0F;
    float best = kInfinite;
    if (i > 0 && j > 0) {
      best = previous[c] + match_cost(i - 1, j - 1);
      move = kDiagonal;
    }
    if (i > 0 && c > 0 && current[c - 1] + 1.0F < best) {
      best = current[c - 1] + 1.0F;
      move = kSkipFirst;
    }
    if (j > 0 && c + 1 < width_ && previous[c + 1] + 1.0F < best) {
      best = previous[c + 1] + 1.0F;
      move = kSkipSecond;
    }
    if (best == kInfinite) move = kNone;
    return best;
  }

  std::vector<std::uint32_t> trace_back() const {
    std::vector<std::uint32_t> to_first(b_.size(), kNoMatch);
    std::size_t i = a_.size(), j = b_.size();
    while (i > 0 || j > 0) {
      const auto c = column(i, j);
      const Move move = c ? moves_[j * width_ + *c] : kNone;
      if (move == kDiagonal) {
        to_first[--j] = static_cast<std::uint32_t>(--i);
      } else if (move == kSkipFirst) {
        --i;
      } else if (move == kSkipSecond) {
        --j;
      } else {
        break;
      }
    }
    return to_first;
  }

  std::span<const SequenceItem> a_, b_;
  Offset offset_;
  AlignmentBudget& budget_;
  std::ptrdiff_t low_ = 0;
  std::size_t width_ = 0;
  std::vector<Move> moves_;
};

/// Slots of the sequences merged so far, as a sequence to align the next one with.
class SlotMerger {
 public:
  SlotMerger(std::size_t sequences, AlignmentBudget& budget) : budget_(budget) {
    slots_.slot_of.resize(sequences);
  }

  void add(const std::vector<SequenceItem>& sequence, std::size_t index) {
    const SequenceMatch match = align_sequences(order_, sequence, budget_);
    std::vector<SequenceItem> order;
    std::vector<std::uint32_t> made;
    std::size_t taken = 0;
    const auto take_until = [&](std::size_t slot) {
      for (; taken < slot; ++taken) {
        order.push_back(order_[taken]);
        made.push_back(made_[taken]);
      }
    };
    std::vector<std::uint32_t>& slot_of = slots_.slot_of[index];
    for (std::size_t j = 0; j < sequence.size(); ++j) {
      if (match.to_first[j] != kNoMatch) {
        take_until(match.to_first[j] + 1);
      } else {
        SequenceItem item = sequence[j];
        item.end_ns -= match.offset_ns;
        order.push_back(item);
        made.push_back(static_cast<std::uint32_t>(slots_.count++));
      }
      slot_of.push_back(made.back());
    }
    take_until(order_.size());
    order_ = std::move(order);
    made_ = std::move(made);
  }

  MatchedSlots take() {
    std::vector<std::uint32_t> place(slots_.count);
    for (std::uint32_t i = 0; i < made_.size(); ++i) place[made_[i]] = i;
    for (std::vector<std::uint32_t>& items : slots_.slot_of) {
      for (std::uint32_t& slot : items) slot = place[slot];
    }
    return std::move(slots_);
  }

 private:
  AlignmentBudget& budget_;
  MatchedSlots slots_;               ///< until the end by the number under which a slot was made
  std::vector<SequenceItem> order_;  ///< slots in order
  std::vector<std::uint32_t> made_;  ///< the number of each
};

}  // namespace

SequenceMatch align_sequences(std::span<const SequenceItem> first,
                              std::span<const SequenceItem> second, AlignmentBudget& budget) {
  SequenceMatch match;
  if (first.empty() || second.empty()) {
    match.to_first.assign(second.size(), kNoMatch);
    return match;
  }
  if (const auto offset = identity_offset(first, second)) {
    match.to_first.resize(second.size());
    std::iota(match.to_first.begin(), match.to_first.end(), 0U);
    match.offset_ns = offset->ns;
    return match;
  }
  const Offset offset = find_offset(first, second, budget);
  match.to_first = BandedAlignment(first, second, offset, budget).solve();
  match.offset_ns = offset.known ? offset.ns : 0;
  return match;
}

std::uint32_t MatchedSlots::at(std::size_t slot, std::size_t sequence) const {
  const std::vector<std::uint32_t>& items = slot_of[sequence];
  const auto found = std::lower_bound(items.begin(), items.end(), slot);
  if (found == items.end() || *found != slot) return kNoMatch;
  return static_cast<std::uint32_t>(found - items.begin());
}

MatchedSlots match_sequences(const std::vector<std::vector<SequenceItem>>& sequences,
                             AlignmentBudget& budget) {
  SlotMerger merger(sequences.size(), budget);
  std::vector<std::size_t> order(sequences.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return sequences[a].size() > sequences[b].size();
  });
  for (std::size_t index : order) merger.add(sequences[index], index);
  return merger.take();
}

}  // namespace traceap
