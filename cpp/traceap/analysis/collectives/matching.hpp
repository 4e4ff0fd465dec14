#pragma once
// Which collective of one rank is which of another: sequences of equal keys aligned by edit
// distance, with the common ends of collectives to decide between alignments of equal cost.

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

/// Increasing in both. Items of different keys never match; of alignments with the fewest items
/// left over that wins whose ends agree best, once one offset of the clocks explains at least half
/// of the ends. O(n + m) where the sequences are equal and their ends agree; else
/// O((n + m) * width) with a width that grows with the number of differences.
SequenceMatch align_sequences(std::span<const SequenceItem> first,
                              std::span<const SequenceItem> second);

/// Items of one sequence that matched, for each of several sequences (ranks).
struct MatchedSlots {
  std::size_t sequences = 0;
  std::vector<std::uint32_t> items;  ///< [slots * sequences]: index in its sequence, or kNoMatch
  std::size_t slots() const { return sequences == 0 ? 0 : items.size() / sequences; }
  std::uint32_t at(std::size_t slot, std::size_t sequence) const {
    return items[slot * sequences + sequence];
  }
};
/// Aligns every sequence with the longest one; what finds no place there gets a slot of its own
/// between its neighbours, where later sequences may join it.
MatchedSlots match_sequences(const std::vector<std::vector<SequenceItem>>& sequences);

}  // namespace traceap
