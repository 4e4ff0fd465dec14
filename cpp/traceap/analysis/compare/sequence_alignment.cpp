#include "traceap/analysis/compare/sequence_alignment.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "traceap/base/interrupt.hpp"

namespace traceap {
namespace {

constexpr std::size_t kSmallRest = 1 << 14;  // cells of the dynamic programme
constexpr int kMostEdits = 400;              // D of Myers' search
constexpr int kLevels = 3;
/// Anchors within anchors: each round sorts what is left, so that only hostile sequences need more.
constexpr int kMostRounds = 32;

struct Segment {
  std::uint32_t a_begin, a_end, b_begin, b_end;
  int level = 0;
  int round = 0;  // of cutting at anchors of this level
  bool empty() const { return a_begin == a_end || b_begin == b_end; }
};

struct Place {
  std::uint64_t key;
  std::uint32_t at;
};

using Pairs = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

std::uint64_t key_of(const AlignKeys& item, int level) {
  if (level == 0) return item.whole;
  return level == 1 ? item.detail : item.name;
}

/// Items of a range by key, then place.
std::vector<Place> sorted_places(std::span<const AlignKeys> items, std::uint32_t begin,
                                 std::uint32_t end, int level) {
  std::vector<Place> places;
  places.reserve(end - begin);
  for (std::uint32_t i = begin; i < end; ++i) places.push_back({key_of(items[i], level), i});
  std::sort(places.begin(), places.end(), [](const Place& x, const Place& y) {
    return x.key != y.key ? x.key < y.key : x.at < y.at;
  });
  return places;
}

/// The longest chain of pairs that rises on both sides. `pairs` are sorted by their first, each
/// second occurs once. O(n log n).
Pairs longest_chain(const Pairs& pairs) {
  std::vector<std::uint32_t> tails;  // index of the pair that ends the best chain of each length
  std::vector<std::uint32_t> before(pairs.size(), kUnaligned);
  for (std::uint32_t i = 0; i < pairs.size(); ++i) {
    poll_interrupt();
    const auto at = std::lower_bound(
        tails.begin(), tails.end(), pairs[i].second,
        [&](std::uint32_t tail, std::uint32_t second) { return pairs[tail].second < second; });
    if (at != tails.begin()) before[i] = *(at - 1);
    if (at == tails.end()) {
      tails.push_back(i);
    } else {
      *at = i;
    }
  }
  Pairs chain;
  for (std::uint32_t i = tails.empty() ? kUnaligned : tails.back(); i != kUnaligned;
       i = before[i]) {
    chain.push_back(pairs[i]);
  }
  std::reverse(chain.begin(), chain.end());
  return chain;
}

class Aligner {
 public:
  Aligner(std::span<const AlignKeys> a, std::span<const AlignKeys> b)
      : a_(a), b_(b), partner_(a.size(), kUnaligned) {}

  std::vector<std::uint32_t> align() {
    todo_.push_back(
        {0, static_cast<std::uint32_t>(a_.size()), 0, static_cast<std::uint32_t>(b_.size())});
    while (!todo_.empty()) {
      Segment segment = todo_.back();
      todo_.pop_back();
      trim(segment);
      if (segment.empty()) continue;
      const Pairs anchors =
          segment.round < kMostRounds ? longest_chain(unique_pairs(segment)) : Pairs{};
      if (!anchors.empty()) {
        split(segment, anchors);
      } else if (segment.level + 1 < kLevels) {
        ++segment.level;
        segment.round = 0;
        todo_.push_back(segment);
      } else {
        align_rest(segment);
      }
    }
    return std::move(partner_);
  }

 private:
  bool equal(std::uint32_t i, std::uint32_t j, int level) const {
    return key_of(a_[i], level) == key_of(b_[j], level);
  }

  /// Pairs equal items at both ends.
  void trim(Segment& s) {
    while (!s.empty() && equal(s.a_begin, s.b_begin, s.level)) partner_[s.a_begin++] = s.b_begin++;
    while (!s.empty() && equal(s.a_end - 1, s.b_end - 1, s.level)) partner_[--s.a_end] = --s.b_end;
  }

  /// Items that occur once on either side, by their place in `a`.
  Pairs unique_pairs(const Segment& s) const {
    const std::vector<Place> left = sorted_places(a_, s.a_begin, s.a_end, s.level);
    const std::vector<Place> right = sorted_places(b_, s.b_begin, s.b_end, s.level);
    Pairs pairs;
    for (std::size_t i = 0, j = 0; i < left.size() && j < right.size();) {
      poll_interrupt();
      const std::uint64_t key = std::min(left[i].key, right[j].key);
      const std::size_t i_begin = i, j_begin = j;
      while (i < left.size() && left[i].key == key) ++i;
      while (j < right.size() && right[j].key == key) ++j;
      if (i - i_begin == 1 && j - j_begin == 1) {
        pairs.emplace_back(left[i_begin].at, right[j_begin].at);
      }
    }
    std::sort(pairs.begin(), pairs.end());
    return pairs;
  }

  void split(const Segment& s, const Pairs& anchors) {
    std::uint32_t i = s.a_begin, j = s.b_begin;
    for (const auto& [at_a, at_b] : anchors) {
      poll_interrupt();
      partner_[at_a] = at_b;
      todo_.push_back({i, at_a, j, at_b, s.level, s.round + 1});
      i = at_a + 1;
      j = at_b + 1;
    }
    todo_.push_back({i, s.a_end, j, s.b_end, s.level, s.round + 1});
  }

  void align_rest(const Segment& s) {
    const std::size_t cells = static_cast<std::size_t>(s.a_end - s.a_begin) *
                              static_cast<std::size_t>(s.b_end - s.b_begin);
    if (cells <= kSmallRest) {
      align_small(s);
    } else if (!align_by_edits(s)) {
      align_by_occurrence(s);
    }
  }

  /// Gain of a pair: a name is worth more than any details that speak for another pairing.
  int gain(std::uint32_t i, std::uint32_t j) const {
    if (!equal(i, j, 2)) return 0;
    return 4 + (equal(i, j, 1) ? 2 : 0) + (equal(i, j, 0) ? 1 : 0);
  }

  void align_small(const Segment& s) {
    const std::size_t rows = s.a_end - s.a_begin, columns = s.b_end - s.b_begin;
    best_.assign((rows + 1) * (columns + 1), 0);
    const auto cell = [&](std::size_t i, std::size_t j) -> int& {
      return best_[i * (columns + 1) + j];
    };
    for (std::size_t i = rows; i-- > 0;) {
      for (std::size_t j = columns; j-- > 0;) {
        cell(i, j) = std::max(cell(i + 1, j), cell(i, j + 1));
        const int paired = gain_at(s, i, j);
        if (paired > 0) cell(i, j) = std::max(cell(i, j), cell(i + 1, j + 1) + paired);
      }
    }
    for (std::size_t i = 0, j = 0; i < rows && j < columns;) {
      poll_interrupt();
      const int paired = gain_at(s, i, j);
      if (paired > 0 && cell(i, j) == cell(i + 1, j + 1) + paired) {
        partner_[s.a_begin + i] = static_cast<std::uint32_t>(s.b_begin + j);
        ++i;
        ++j;
      } else if (cell(i, j) == cell(i + 1, j)) {
        ++i;
      } else {
        ++j;
      }
    }
  }

  int gain_at(const Segment& s, std::size_t i, std::size_t j) const {
    return gain(static_cast<std::uint32_t>(s.a_begin + i),
                static_cast<std::uint32_t>(s.b_begin + j));
  }

  /// Myers' greedy search over names; false if more than kMostEdits edits are needed.
  bool align_by_edits(const Segment& s) {
    const int rows = static_cast<int>(s.a_end - s.a_begin);
    const int columns = static_cast<int>(s.b_end - s.b_begin);
    std::vector<std::vector<int>> reached;  // per number of edits: furthest row by diagonal
    std::vector<int> furthest(2 * kMostEdits + 3, 0);
    const auto on = [&](int diagonal) -> int& {
      return furthest[static_cast<std::size_t>(diagonal + kMostEdits + 1)];
    };
    for (int edits = 0; edits <= kMostEdits; ++edits) {
      poll_interrupt();
      for (int diagonal = -edits; diagonal <= edits; diagonal += 2) {
        const bool down =
            diagonal == -edits || (diagonal != edits && on(diagonal - 1) < on(diagonal + 1));
        int i = down ? on(diagonal + 1) : on(diagonal - 1) + 1;
        while (i < rows && i - diagonal < columns && i - diagonal >= 0 &&
               same(s, i, i - diagonal)) {
          ++i;
        }
        on(diagonal) = i;
        if (i >= rows && i - diagonal >= columns) {
          reached.push_back({});
          walk_back(s, reached, rows, columns);
          return true;
        }
      }
      std::vector<int> kept;
      for (int diagonal = -edits; diagonal <= edits; ++diagonal) kept.push_back(on(diagonal));
      reached.push_back(std::move(kept));
    }
    return false;
  }

  bool same(const Segment& s, int i, int j) const {
    return equal(s.a_begin + static_cast<std::uint32_t>(i),
                 s.b_begin + static_cast<std::uint32_t>(j), 2);
  }

  /// From the end of both back through the furthest places of each number of edits.
  void walk_back(const Segment& s, const std::vector<std::vector<int>>& reached, int i, int j) {
    for (int edits = static_cast<int>(reached.size()) - 1; edits >= 0; --edits) {
      const int diagonal = i - j;
      int from_i = 0, from_j = 0;
      if (edits > 0) {
        const auto on = [&](int d) {
          const std::vector<int>& row = reached[static_cast<std::size_t>(edits - 1)];
          const int index = d + edits - 1;
          return index < 0 || index >= static_cast<int>(row.size())
                     ? -1
                     : row[static_cast<std::size_t>(index)];
        };
        const bool down =
            diagonal == -edits || (diagonal != edits && on(diagonal - 1) < on(diagonal + 1));
        const int previous = down ? diagonal + 1 : diagonal - 1;
        from_i = on(previous);
        from_j = from_i - previous;
      }
      const int start = edits == 0 ? 0 : (from_i - from_j == diagonal + 1 ? from_i : from_i + 1);
      while (i > start) {
        --i;
        --j;
        partner_[s.a_begin + static_cast<std::uint32_t>(i)] =
            s.b_begin + static_cast<std::uint32_t>(j);
      }
      i = from_i;
      j = from_j;
    }
  }

  /// The n-th of a name with its n-th, as far as order allows.
  void align_by_occurrence(const Segment& s) {
    const std::vector<Place> left = sorted_places(a_, s.a_begin, s.a_end, 2);
    const std::vector<Place> right = sorted_places(b_, s.b_begin, s.b_end, 2);
    Pairs pairs;
    for (std::size_t i = 0, j = 0; i < left.size() && j < right.size();) {
      poll_interrupt();
      if (left[i].key < right[j].key) {
        ++i;
      } else if (right[j].key < left[i].key) {
        ++j;
      } else {
        pairs.emplace_back(left[i++].at, right[j++].at);
      }
    }
    std::sort(pairs.begin(), pairs.end());
    for (const auto& [i, j] : longest_chain(pairs)) partner_[i] = j;
  }

  std::span<const AlignKeys> a_, b_;
  std::vector<std::uint32_t> partner_;
  std::vector<Segment> todo_;
  std::vector<int> best_;
};

}  // namespace

std::vector<std::uint32_t> align_sequences(std::span<const AlignKeys> a,
                                           std::span<const AlignKeys> b) {
  return Aligner(a, b).align();
}

}  // namespace traceap
