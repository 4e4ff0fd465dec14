// The twins on the device. A block has a token, so that its threads read rows side by side.

#include <cuda_runtime.h>

#include <string>

#include "traceap/cuda/elements.hpp"

namespace traceap::cuda {
namespace {

constexpr unsigned kThreads = 128;

template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), std::size_t blocks, Stream stream,
            const Arguments&... arguments) {
  if (blocks == 0) return;
  check_sizes(blocks <= 0x7fffffff, "there are more tokens than a grid has blocks");
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      arguments...);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) throw Error(std::string("CUDA: ") + cudaGetErrorString(error));
}

__global__ void __launch_bounds__(kThreads)
    gather_tokens_kernel(TokenColumns columns, TokenTables tables, std::size_t width,
                         std::span<float> matrix) {
  const std::size_t token = blockIdx.x;
  const TokenRows rows = rows_of(columns, tables, width, token);
  for (std::size_t column = threadIdx.x; column < width; column += kThreads) {
    matrix[token * width + column] = rows.sum(column);
  }
}

__global__ void __launch_bounds__(kThreads)
    add_places_kernel(TokenPlaces places, std::span<const float> frequencies,
                      std::span<float> matrix) {
  const std::size_t token = blockIdx.x, count = frequencies.size();
  float* const row = matrix.data() + token * 4 * count;
  for (std::size_t i = threadIdx.x; i < 2 * count; i += kThreads) {
    const bool second = i >= count;
    const float value = second ? places.stream[token] : places.position[token];
    add_place(value, frequencies, second ? i - count : i, second ? row + 2 * count : row);
  }
}

}  // namespace

namespace on_gpu {

void gather_tokens(const TokenColumns& columns, const TokenTables& tables, std::span<float> matrix,
                   Stream stream) {
  const std::size_t width = checked_width(columns, tables, matrix);
  launch(gather_tokens_kernel, columns.name.size(), stream, columns, tables, width, matrix);
}

void add_places(const TokenPlaces& places, std::span<const float> frequencies,
                std::span<float> matrix, Stream stream) {
  check_places(places, frequencies, matrix);
  launch(add_places_kernel, places.position.size(), stream, places, frequencies, matrix);
}

}  // namespace on_gpu
}  // namespace traceap::cuda
