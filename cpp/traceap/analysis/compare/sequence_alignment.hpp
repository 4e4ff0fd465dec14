#pragma once
// Aligns two sequences of items that are alike in degrees. Linear in practice: time goes where
// the sequences differ.

#include <cstdint>
#include <span>
#include <vector>

namespace traceap {

/// An item by what must be equal, the strictest first; equal in one means equal in those behind.
struct AlignKeys {
  std::uint64_t whole;   ///< the item with all below it
  std::uint64_t detail;  ///< the item with its details
  std::uint64_t name;
};

inline constexpr std::uint32_t kUnaligned = 0xffffffffU;

/// For each item of `a` its partner in `b`, or kUnaligned. Partners have equal names and keep their
/// order; where names repeat, equal details and equal wholes decide.
///
/// Equal ends are cut off and items that occur once on each side are anchors (patience diff, on a
/// longest increasing chain), by `whole`, then `detail`, then `name`. What is left between anchors
/// is small and gets the best alignment of all by dynamic programming, O(kSmallRest); if it is
/// large, by Myers' greedy O(ND) search with a bound on D, and beyond it occurrences of a
/// name are paired in order. Source: Myers, "An O(ND) Difference Algorithm and Its Variations",
/// Algorithmica 1986; patience: Cohen's diff, on the longest increasing subsequence.
std::vector<std::uint32_t> align_sequences(std::span<const AlignKeys> a,
                                           std::span<const AlignKeys> b);

}  // namespace traceap
