#pragma once
// What one element of each result is: the same code for the host's loops and the device's threads,
// so that the twins differ in the sums' order at most. Private to cuda/.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "traceap/base/error.hpp"
#include "traceap/base/ids.hpp"
#include "traceap/cuda/kernels.hpp"

#ifdef __CUDACC__
#define TRACEAP_BOTH __host__ __device__
#else
#define TRACEAP_BOTH
#endif

namespace traceap::cuda {

/// How many of the ascending values are before `value`, or also equal to it.
template <bool kAndEqual>
TRACEAP_BOTH inline std::size_t count_before(std::span<const std::int64_t> ascending,
                                             std::int64_t value) {
  std::size_t low = 0, high = ascending.size();
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    if (ascending[middle] < value || (kAndEqual && ascending[middle] == value)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/// Code of a time: how many bounds it has reached. No logarithm, so it is the same everywhere.
TRACEAP_BOTH inline std::size_t code_of(std::int64_t ns, std::span<const std::int64_t> bounds_ns) {
  return count_before<true>(bounds_ns, ns);
}
/// The code after the last is that of no delay.
TRACEAP_BOTH inline std::size_t delay_code_of(std::int64_t ns,
                                              std::span<const std::int64_t> bounds_ns) {
  return ns == kNoId ? bounds_ns.size() + 1 : code_of(ns, bounds_ns);
}

/// The rows that one token is the sum of.
struct TokenRows {
  const float *name, *cpu_name, *delay, *duration;
  TRACEAP_BOTH float sum(std::size_t column) const {
    return name[column] + cpu_name[column] + delay[column] + duration[column];
  }
};
TRACEAP_BOTH inline TokenRows rows_of(const TokenColumns& columns, const TokenTables& tables,
                                      std::size_t width, std::size_t token) {
  const std::size_t delay = delay_code_of(columns.delay_ns[token], tables.delay_bounds_ns);
  const std::size_t duration = code_of(columns.duration_ns[token], tables.duration_bounds_ns);
  return {tables.names.data() + static_cast<std::size_t>(columns.name[token]) * width,
          tables.cpu_names.data() + static_cast<std::size_t>(columns.cpu_name[token]) * width,
          tables.delays.data() + delay * width, tables.durations.data() + duration * width};
}

/// Adds what frequency k makes of one coordinate to its half of a row, [sines, cosines].
TRACEAP_BOTH inline void add_place(float value, std::span<const float> frequencies, std::size_t k,
                                   float* half) {
  const float angle = value * frequencies[k];
  half[k] += sinf(angle);
  half[frequencies.size() + k] += cosf(angle);
}

/// Of an interval, what lies within [from_ns, to_ns).
TRACEAP_BOTH inline std::int64_t within(std::int64_t start_ns, std::int64_t end_ns,
                                        std::int64_t from_ns, std::int64_t to_ns) {
  const std::int64_t begin = start_ns > from_ns ? start_ns : from_ns;
  const std::int64_t end = end_ns < to_ns ? end_ns : to_ns;
  return end > begin ? end - begin : 0;
}

/// How many sorted times are before bound `w` of `bounds_ns`.
TRACEAP_BOTH inline std::uint32_t offset_of(std::span<const std::int64_t> times_ns,
                                            std::span<const std::int64_t> bounds_ns,
                                            std::size_t w) {
  const bool last = w + 1 == bounds_ns.size();
  return static_cast<std::uint32_t>(last ? count_before<true>(times_ns, bounds_ns[w])
                                         : count_before<false>(times_ns, bounds_ns[w]));
}

// ------------------------------------------------------------------------- sizes

inline void check_sizes(bool fit, const char* what) {
  if (!fit) throw SchemaError(what);
}

/// Width of a token's row.
inline std::size_t checked_width(const TokenColumns& columns, const TokenTables& tables,
                                 std::span<const float> matrix) {
  const std::size_t count = columns.name.size();
  check_sizes(columns.delay_ns.size() == count && columns.duration_ns.size() == count &&
                  columns.cpu_name.size() == count,
              "gather_tokens: the columns have different sizes");
  const std::size_t rows = tables.delay_bounds_ns.size() + 2;
  const std::size_t width = tables.delays.size() / rows;
  check_sizes(width > 0 && tables.delays.size() == rows * width,
              "gather_tokens: delays need a row for each code and one for none");
  check_sizes(tables.durations.size() == (tables.duration_bounds_ns.size() + 1) * width &&
                  tables.names.size() % width == 0 && tables.cpu_names.size() % width == 0,
              "gather_tokens: the tables have different widths");
  check_sizes(matrix.size() == count * width, "gather_tokens: matrix is not [tokens, width]");
  return width;
}

inline void check_places(const TokenPlaces& places, std::span<const float> frequencies,
                         std::span<const float> matrix) {
  const std::size_t count = places.position.size();
  check_sizes(places.stream.size() == count, "add_places: the columns have different sizes");
  check_sizes(matrix.size() == count * 4 * frequencies.size(),
              "add_places: matrix is not [tokens, 4 * frequencies]");
}

/// `bounds` is one more than there are windows.
inline void check_windows(std::size_t bounds, std::size_t results) {
  check_sizes(bounds == results + 1, "windows: there is one bound more than windows");
}

}  // namespace traceap::cuda
