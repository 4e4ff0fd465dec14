#pragma once
// Work that is worth a GPU where what it reads lies there already: the token matrix of the paper's
// network, and what window features sum and count. Each function twice, with one signature:
// on_gpu:: takes spans of the device's memory and returns before the work is done, on_cpu:: takes
// spans of the host's, ignores the stream, and is always there. Medians and quantiles of windows
// stay on the CPU: they need the values of each window in order, and windows are few and short, so
// that a segmented sort on the device would cost more launches than the values cost to copy.

#include <cstdint>
#include <span>

namespace traceap::cuda {

/// A cudaStream_t; nullptr is the default stream.
using Stream = void*;

/// What tokens say of themselves; all [tokens].
struct TokenColumns {
  std::span<const std::int64_t> delay_ns;     ///< kNoId where there is none
  std::span<const std::int64_t> duration_ns;  ///< not negative
  std::span<const std::int32_t> name, cpu_name;
};

/// Rows that a token is the sum of, each [rows, width] row-major. Indices are the caller's to
/// check: those of TokenColumns are below `names`' rows, and `delays` has a row more than there are
/// codes, for tokens without a delay.
struct TokenTables {
  std::span<const float> names, cpu_names;
  std::span<const float> delays, durations;
  /// Smallest time (ns) of each code but the first, ascending: quantize_bounds_ns.
  std::span<const std::int64_t> delay_bounds_ns, duration_bounds_ns;
};

/// Where tokens are; both [tokens].
struct TokenPlaces {
  std::span<const float> position;  ///< in the window, 0 to 1000
  std::span<const float> stream;
};

namespace on_cpu {

/// Quantises and gathers: row t of `matrix` [tokens, width] becomes names[name[t]] +
/// cpu_names[cpu_name[t]] + delays[code of delay_ns[t]] + durations[code of duration_ns[t]].
/// Throws SchemaError, as every function here, for spans whose sizes don't fit each other.
void gather_tokens(const TokenColumns& columns, const TokenTables& tables, std::span<float> matrix,
                   Stream stream);

/// Adds to each row of `matrix` [tokens, 4 * frequencies] the sines, then the cosines, of its
/// position times each frequency, then those of its stream (paper, Eq. 7 and 8).
void add_places(const TokenPlaces& places, std::span<const float> frequencies,
                std::span<float> matrix, Stream stream);

/// covered_ns[w]: how much of [bounds_ns[w], bounds_ns[w + 1]) is covered by intervals that are in
/// order and disjoint.
void cover_windows(std::span<const std::int64_t> starts_ns, std::span<const std::int64_t> ends_ns,
                   std::span<const std::int64_t> bounds_ns, std::span<std::int64_t> covered_ns,
                   Stream stream);

/// offsets[w]: how many of the sorted times are before bounds_ns[w]; a time at the last bound
/// belongs to the last window. So window w has times [offsets[w], offsets[w + 1]).
void find_windows(std::span<const std::int64_t> times_ns, std::span<const std::int64_t> bounds_ns,
                  std::span<std::uint32_t> offsets, Stream stream);

/// counts[w]: how many of values [offsets[w], offsets[w + 1]) are below `limit`.
void count_below(std::span<const std::int64_t> values, std::span<const std::uint32_t> offsets,
                 std::int64_t limit, std::span<std::uint32_t> counts, Stream stream);

}  // namespace on_cpu

/// There with TRACEAP_CUDA alone. Throws Error with what CUDA says if a kernel does not start.
namespace on_gpu {

decltype(on_cpu::gather_tokens) gather_tokens;
decltype(on_cpu::add_places) add_places;
decltype(on_cpu::cover_windows) cover_windows;
decltype(on_cpu::find_windows) find_windows;
decltype(on_cpu::count_below) count_below;

}  // namespace on_gpu

}  // namespace traceap::cuda
