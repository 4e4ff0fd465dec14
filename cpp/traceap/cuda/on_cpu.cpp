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

}  // namespace traceap::cuda::on_cpu
