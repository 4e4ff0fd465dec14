#pragma once
// Which collective of one rank is which of another: sequences of equal keys aligned by edit
// distance, with the common ends of collectives to decide between alignments of equal cost.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace traceap {

/// A collective as seen by matching.
struct SequenceItem {
  std::uint64_t key;    ///< equal for items that may match: kind and size
  std::int64_t end_ns;  ///< own clock
  bool ends_together;   ///< all ranks end it at the same moment
};

inline constexpr std::uint32_t kNoMatch = 0xffffffff;

struct SequenceMatch {
  std::vector<std::uint32_t> to_first;  ///< per item of the second: index in the first, or kNoMatch
  std::int64_t offset_ns = 0;           ///< second's clock minus first's, as far as ends tell
};

/// How much may be compared, over all alignments of a job: pairs of items. Where it is used up,
/// items are paired in one pass, by time if the clocks' offset is known, else in their order.
inline constexpr std::size_t kMostPairs = std::size_t{1} << 29;
struct AlignmentBudget {
  std::size_t pairs = kMostPairs;
};

/// Increasing in both. Items of different keys never match; of alignments with the fewest items
/// left over that wins whose ends agree best, once one offset of the clocks explains at least half
/// of the ends. O(n + m) where the sequences are equal and their ends agree; else
/// O((n + m) * width) with a width that grows with the number of differences.
SequenceMatch align_sequences(std::span<const SequenceItem> first,
                              std::span<const SequenceItem> second, AlignmentBudget& budget);
inline SequenceMatch align_sequences(std::span<const SequenceItem> first,
                                     std::span<const SequenceItem> second,
                                     AlignmentBudget&& budget = {}) {
  return align_sequences(first, second, budget);
}

/// Items of several sequences (ranks) that matched share a slot.
struct MatchedSlots {
  std::size_t count = 0;
  /// Per sequence and item: its slot, increasing.
  std::vector<std::vector<std::uint32_t>> slot_of;

  std::size_t slots() const { return count; }
  /// Index in its sequence, or kNoMatch.
  std::uint32_t at(std::size_t slot, std::size_t sequence) const;
};
/// Aligns every sequence with the longest one; what finds no place there gets a slot of its own
/// between its neighbours, where later sequences may join it.
MatchedSlots match_sequences(const std::vector<std::vector<SequenceItem>>& sequences,
                             AlignmentBudget& budget);
inline MatchedSlots match_sequences(const std::vector<std::vector<SequenceItem>>& sequences) {
  AlignmentBudget budget;
  return match_sequences(sequences, budget);
}

}  // namespace traceap
