#pragma once
// The arithmetic of one element, which the host's loops and the device's threads share, so that the
// twins differ in the rounding of sines at most. Private to cuda/.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "traceap/base/error.hpp"
#include "traceap/cuda/kernels.hpp"

#ifdef __CUDACC__
#define TRACEAP_BOTH __host__ __device__
#else
#define TRACEAP_BOTH
#endif

namespace traceap::cuda {

/// The rows that one token is the sum of.
struct TokenRows {
  const float *name, *cpu_name, *delay, *duration;
  TRACEAP_BOTH float sum(std::size_t column) const {
    return name[column] + cpu_name[column] + delay[column] + duration[column];
  }
};
TRACEAP_BOTH inline TokenRows rows_of(const TokenColumns& columns, const TokenTables& tables,
                                      std::size_t width, std::size_t token) {
  const auto row = [&](std::span<const float> table, std::span<const std::int64_t> column) {
    return table.data() + static_cast<std::size_t>(column[token]) * width;
  };
  return {row(tables.names, columns.name), row(tables.cpu_names, columns.cpu_name),
          row(tables.delays, columns.delay_code), row(tables.durations, columns.duration_code)};
}

/// Adds one frequency's sine and cosine of a coordinate to its half of a row, [sines, cosines].
TRACEAP_BOTH inline void add_place(float value, std::span<const float> frequencies, std::size_t k,
                                   float* half) {
  const float angle = value * frequencies[k];
  half[k] += sinf(angle);
  half[frequencies.size() + k] += cosf(angle);
}

inline void check_sizes(bool fit, const char* what) {
  if (!fit) throw SchemaError(what);
}

/// The width of a token's row; 0 without tokens.
inline std::size_t checked_width(const TokenColumns& columns, const TokenTables& tables,
                                 std::span<const float> matrix) {
  const std::size_t count = columns.name.size();
  check_sizes(columns.cpu_name.size() == count && columns.delay_code.size() == count &&
                  columns.duration_code.size() == count,
              "gather_tokens: the columns have different sizes");
  if (count == 0) {
    check_sizes(matrix.empty(), "gather_tokens: matrix is not [tokens, width]");
    return 0;
  }
  const std::size_t width = matrix.size() / count;
  check_sizes(width > 0 && matrix.size() == count * width,
              "gather_tokens: matrix is not [tokens, width]");
  for (const auto table : {tables.names, tables.cpu_names, tables.delays, tables.durations}) {
    check_sizes(table.size() % width == 0, "gather_tokens: a table is not [rows, width]");
  }
  return width;
}

inline void check_places(const TokenPlaces& places, std::span<const float> frequencies,
                         std::span<const float> matrix) {
  const std::size_t count = places.position.size();
  check_sizes(places.stream.size() == count, "add_places: the columns have different sizes");
  check_sizes(matrix.size() == count * 4 * frequencies.size(),
              "add_places: matrix is not [tokens, 4 * frequencies]");
}

}  // namespace traceap::cuda
