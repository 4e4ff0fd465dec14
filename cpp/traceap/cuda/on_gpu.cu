// The twins on the device. A block has a token or a window, so that rows are read side by side and
// windows of any length share the device.

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
  check_sizes(blocks <= 0x7fffffff, "more tokens or windows than a grid has blocks");
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      arguments...);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) throw Error(std::string("CUDA: ") + cudaGetErrorString(error));
}

/// The sum of a value of each thread; valid in the first one.
template <typename T>
__device__ T sum_of_block(T value) {
  __shared__ T sums[kThreads];
  sums[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  return sums[0];
}

__global__ void __launch_bounds__(kThreads)
    gather_tokens_kernel(TokenColumns columns, TokenTables tables, std::size_t width,
                         std::span<float> matrix) {
  const std::size_t token = blockIdx.x;
  __shared__ TokenRows rows;  // quantised once for the whole row
  if (threadIdx.x == 0) rows = rows_of(columns, tables, width, token);
  __syncthreads();
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

__global__ void __launch_bounds__(kThreads)
    cover_windows_kernel(std::span<const std::int64_t> starts_ns,
                         std::span<const std::int64_t> ends_ns,
                         std::span<const std::int64_t> bounds_ns,
                         std::span<std::int64_t> covered_ns) {
  const std::size_t w = blockIdx.x;
  const std::int64_t from = bounds_ns[w], to = bounds_ns[w + 1];
  const std::size_t end = count_before<false>(starts_ns, to);
  std::int64_t sum = 0;
  for (std::size_t i = count_before<true>(ends_ns, from) + threadIdx.x; i < end; i += kThreads) {
    sum += within(starts_ns[i], ends_ns[i], from, to);
  }
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) covered_ns[w] = sum;
}

__global__ void __launch_bounds__(kThreads)
    find_windows_kernel(std::span<const std::int64_t> times_ns,
                        std::span<const std::int64_t> bounds_ns, std::span<std::uint32_t> offsets) {
  const std::size_t w = std::size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (w < offsets.size()) offsets[w] = offset_of(times_ns, bounds_ns, w);
}

__global__ void __launch_bounds__(kThreads)
    count_below_kernel(std::span<const std::int64_t> values, std::span<const std::uint32_t> offsets,
                       std::int64_t limit, std::span<std::uint32_t> counts) {
  const std::size_t w = blockIdx.x;
  std::uint32_t count = 0;
  for (std::size_t i = offsets[w] + threadIdx.x; i < offsets[w + 1]; i += kThreads) {
    if (values[i] < limit) ++count;
  }
  count = sum_of_block(count);
  if (threadIdx.x == 0) counts[w] = count;
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

void cover_windows(std::span<const std::int64_t> starts_ns, std::span<const std::int64_t> ends_ns,
                   std::span<const std::int64_t> bounds_ns, std::span<std::int64_t> covered_ns,
                   Stream stream) {
  check_sizes(starts_ns.size() == ends_ns.size(), "cover_windows: starts and ends don't fit");
  check_windows(bounds_ns.size(), covered_ns.size());
  launch(cover_windows_kernel, covered_ns.size(), stream, starts_ns, ends_ns, bounds_ns,
         covered_ns);
}

void find_windows(std::span<const std::int64_t> times_ns, std::span<const std::int64_t> bounds_ns,
                  std::span<std::uint32_t> offsets, Stream stream) {
  check_sizes(bounds_ns.size() == offsets.size(),
              "find_windows: there is an offset for each bound");
  const std::size_t blocks = (offsets.size() + kThreads - 1) / kThreads;
  launch(find_windows_kernel, blocks, stream, times_ns, bounds_ns, offsets);
}

void count_below(std::span<const std::int64_t> values, std::span<const std::uint32_t> offsets,
                 std::int64_t limit, std::span<std::uint32_t> counts, Stream stream) {
  check_windows(offsets.size(), counts.size());
  launch(count_below_kernel, counts.size(), stream, values, offsets, limit, counts);
}

}  // namespace on_gpu
}  // namespace traceap::cuda
