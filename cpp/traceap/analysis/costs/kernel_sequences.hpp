#pragma once
// Sequences of kernels that repeat on a stream, and what would go if each were one kernel.

#include <cstdint>
#include <span>
#include <vector>

#include "traceap/table/event_table.hpp"
#include "traceap/tree/event_tree.hpp"

namespace traceap {

struct SequenceOptions {
  std::uint32_t length = 0;       ///< kernels in a sequence; 0: every length from 2 to max_length
  std::uint32_t max_length = 64;  ///< where `length` is 0
  std::uint32_t limit = 1000;     ///< keep this many, those that remove most
  /// Kernels further apart than this don't belong to one sequence: the host did something else.
  std::int64_t max_gap_ns = 1'000'000;
  /// Leave out what is nearly another row: see find_kernel_sequences.
  bool drop_similar = true;
};

struct KernelSequence {
  std::uint32_t length;    ///< kernels in it
  std::uint32_t count;     ///< occurrences that don't overlap, from the left
  std::uint32_t stream;    ///< index in tree.streams, of the first occurrence
  std::int64_t gpu_ns;     ///< durations of all kernels of all occurrences
  std::int64_t gap_ns;     ///< between its kernels, while the stream was idle
  std::int64_t launch_ns;  ///< launch calls of its kernels but the first of each occurrence
  std::uint32_t launches;  ///< number of these calls
  /// Between neighbours: the gap, or the launch call of the second where that is longer and the
  /// host was late (the stream had run dry before the call returned). Elsewhere work waits for the
  /// GPU, and fewer launches gain nothing.
  std::int64_t removable_ns;
  /// The op call whose subtree launches all kernels of an occurrence, if ops of one name do so for
  /// every occurrence whose launches are known; else kNoRow.
  Row op;
  Row first_row;                ///< first kernel of the first occurrence
  std::uint32_t kernels_begin;  ///< its kernels in KernelSequences::kernel_rows
};

struct KernelSequences {
  std::vector<KernelSequence> sequences;
  /// The kernels of each sequence, one sequence behind the other: those of its first occurrence
  /// whose launches are known, else of its first.
  std::vector<Row> kernel_rows;

  std::span<const Row> kernels_of(const KernelSequence& sequence) const {
    return std::span(kernel_rows).subspan(sequence.kernels_begin, sequence.length);
  }
};

/// Repeated sequences that are maximal: one more kernel to either side would occur less often
/// (overlaps counted). Left out are sequences that themselves consist of a repeated part, such as
/// abab, whose part is listed; of a kernel that follows itself the pair is listed. Left out as well
/// are those that rows above all but cover: nine of ten of its occurrences have their middle inside
/// of rows that occur about as often (four fifths at least). No sequence reaches over a step's
/// border, a stream's end, a copy or another event without a symbol.
///
/// `symbols`, one per index of tree.gpu_rows, says which kernels are equal; negative: no part of
/// any sequence. Sorted by removable_ns, largest first, then by count and place.
///
/// Suffix sorting by prefix doubling up to the largest length, then the intervals of equal prefixes
/// (Abouelhoda, Kurtz, Ohlebusch 2004): O(n log L) for n kernels and largest length L, plus the
/// occurrences of what is listed, at most n L.
KernelSequences find_kernel_sequences(const EventTable& table, const EventTree& tree,
                                      std::span<const std::int32_t> symbols,
                                      const SequenceOptions& options = {});

}  // namespace traceap
