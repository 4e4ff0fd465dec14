// The twins on the host.

#include "traceap/cuda/elements.hpp"

namespace traceap::cuda::on_cpu {

void gather_tokens(const TokenColumns& columns, const TokenTables& tables, std::span<float> matrix,
                   Stream) {
  const std::size_t width = checked_width(columns, tables, matrix);
  for (std::size_t t = 0; t < columns.name.size(); ++t) {
    const TokenRows rows = rows_of(columns, tables, width, t);
    for (std::size_t column = 0; column < width; ++column) {
      matrix[t * width + column] = rows.sum(column);
    }
  }
}

void add_places(const TokenPlaces& places, std::span<const float> frequencies,
                std::span<float> matrix, Stream) {
  check_places(places, frequencies, matrix);
  const std::size_t count = frequencies.size();
  for (std::size_t t = 0; t < places.position.size(); ++t) {
    float* const row = matrix.data() + t * 4 * count;
    for (std::size_t k = 0; k < count; ++k) {
      add_place(places.position[t], frequencies, k, row);
      add_place(places.stream[t], frequencies, k, row + 2 * count);
    }
  }
}

void cover_windows(std::span<const std::int64_t> starts_ns, std::span<const std::int64_t> ends_ns,
                   std::span<const std::int64_t> bounds_ns, std::span<std::int64_t> covered_ns,
                   Stream) {
  check_sizes(starts_ns.size() == ends_ns.size(), "cover_windows: starts and ends don't fit");
  check_windows(bounds_ns.size(), covered_ns.size());
  for (std::size_t w = 0; w < covered_ns.size(); ++w) {
    const std::int64_t from = bounds_ns[w], to = bounds_ns[w + 1];
    std::int64_t sum = 0;
    for (std::size_t i = count_before<true>(ends_ns, from);
         i < starts_ns.size() && starts_ns[i] < to; ++i) {
      sum += within(starts_ns[i], ends_ns[i], from, to);
    }
    covered_ns[w] = sum;
  }
}

void find_windows(std::span<const std::int64_t> times_ns, std::span<const std::int64_t> bounds_ns,
                  std::span<std::uint32_t> offsets, Stream) {
  check_sizes(bounds_ns.size() == offsets.size(),
              "find_windows: there is an offset for each bound");
  for (std::size_t w = 0; w < offsets.size(); ++w) offsets[w] = offset_of(times_ns, bounds_ns, w);
}

void count_below(std::span<const std::int64_t> values, std::span<const std::uint32_t> offsets,
                 std::int64_t limit, std::span<std::uint32_t> counts, Stream) {
  check_windows(offsets.size(), counts.size());
  for (std::size_t w = 0; w < counts.size(); ++w) {
    std::uint32_t count = 0;
    for (std::size_t i = offsets[w]; i < offsets[w + 1]; ++i) {
      if (values[i] < limit) ++count;
    }
    counts[w] = count;
  }
}

}  // namespace traceap::cuda::on_cpu
