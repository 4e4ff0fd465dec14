#pragma once
// The token matrix of the paper's network, from quantized columns. Each function exists twice with
// one signature: on_cpu:: takes spans of host memory, ignores the stream and is always built;
// on_gpu:: takes spans of device memory and returns before the work is done.

#include <cstdint>
#include <span>

namespace traceap::cuda {

/// A cudaStream_t; nullptr is the default stream.
using Stream = void*;

/// Rows of the tables that each token is the sum of; all [tokens].
struct TokenColumns {
  std::span<const std::int64_t> name, cpu_name, delay_code, duration_code;
};

/// One table for each column, [rows, width] row-major. The caller checks that no entry of a column
/// reaches beyond its table.
struct TokenTables {
  std::span<const float> names, cpu_names, delays, durations;
};

/// Where tokens are; both [tokens].
struct TokenPlaces {
  std::span<const float> position;  ///< in the window, 0 to 1000
  std::span<const float> stream;
};

namespace on_cpu {

/// Row t of `matrix` [tokens, width] becomes names[name[t]] + cpu_names[cpu_name[t]] +
/// delays[delay_code[t]] + durations[duration_code[t]], added in this order. Throws SchemaError, as
/// every function here does, for spans whose sizes do not fit each other.
void gather_tokens(const TokenColumns& columns, const TokenTables& tables, std::span<float> matrix,
                   Stream stream);

/// Adds to each row of `matrix` [tokens, 4 * frequencies] the sines, then the cosines, of its
/// position times each frequency, then those of its stream (paper, Eq. 7 and 8).
void add_places(const TokenPlaces& places, std::span<const float> frequencies,
                std::span<float> matrix, Stream stream);

}  // namespace on_cpu

/// Built with TRACEAP_CUDA alone. Throws Error with CUDA's message if a kernel does not start.
namespace on_gpu {

decltype(on_cpu::gather_tokens) gather_tokens;
decltype(on_cpu::add_places) add_places;

}  // namespace on_gpu

#ifdef TRACEAP_CUDA
inline constexpr bool kBuilt = true;
#else
inline constexpr bool kBuilt = false;
#endif

/// The functions for memory of one place.
struct Kernels {
  decltype(on_cpu::gather_tokens)* gather_tokens;
  decltype(on_cpu::add_places)* add_places;
};
/// `device`: memory of a GPU, which needs kBuilt.
inline Kernels kernels_for(bool device) {
  if constexpr (kBuilt) {
    if (device) return {on_gpu::gather_tokens, on_gpu::add_places};
  }
  return {on_cpu::gather_tokens, on_cpu::add_places};
}

}  // namespace traceap::cuda
