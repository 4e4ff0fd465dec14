// The twins of cpp/traceap/cuda/ on the device against those on the host, on drawn data of several
// sizes, then how long each takes. Needs nothing but CUDA's runtime. Exit code: 0 they agree, 1
// they do not, 4 there is no device.

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "traceap/cuda/kernels.hpp"

using namespace traceap;
using namespace traceap::cuda;

namespace {

constexpr int kNoDevice = 4, kRuns = 20;
constexpr float kTolerance = 1e-5F;  // of a sine: both sides round angles alike
constexpr std::size_t kWidth = 256, kNames = 1000, kCodes = 256;

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

/// An array on the device, made from one on the host.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values) : size_(values.size()) {
    check(cudaMalloc(&data_, std::max<std::size_t>(1, size_) * sizeof(T)));
    if (size_ > 0) check(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice));
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { cudaFree(data_); }

  std::span<T> span() const { return {data_, size_}; }

 private:
  std::size_t bytes() const { return size_ * sizeof(T); }
  T* data_ = nullptr;
  std::size_t size_;
};

template <typename T>
std::vector<T> read(const OnDevice<T>& device) {
  const std::span<T> span = device.span();
  std::vector<T> values(span.size());
  if (!span.empty()) {
    check(cudaMemcpy(values.data(), span.data(), span.size_bytes(), cudaMemcpyDeviceToHost));
  }
  return values;
}

/// Mean over runs after one that is not counted.
double device_us(const std::function<void()>& run) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  run();
  check(cudaEventRecord(begin));
  for (int i = 0; i < kRuns; ++i) run();
  check(cudaEventRecord(end));
  check(cudaEventSynchronize(end));
  float ms = 0;
  check(cudaEventElapsedTime(&ms, begin, end));
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return 1000.0 * static_cast<double>(ms) / kRuns;
}

class Report {
 public:
  template <typename T>
  void compare(const char* what, const std::vector<T>& host, const std::vector<T>& device,
               double tolerance, double us, double bytes) {
    std::size_t wrong = 0;
    double largest = 0;
    for (std::size_t i = 0; i < host.size(); ++i) {
      const double off = std::abs(static_cast<double>(host[i]) - static_cast<double>(device[i]));
      largest = std::max(largest, off);
      if (!(off <= tolerance)) ++wrong;
    }
    std::printf("  %-14s %s  largest difference %.2g  %9.1f us  %7.1f GB/s\n", what,
                wrong == 0 ? "equal" : "WRONG", largest, us, bytes / us / 1e3);
    failed_ = failed_ || wrong > 0;
  }
  bool failed() const { return failed_; }

 private:
  bool failed_ = false;
};

std::vector<float> drawn(std::size_t count, float most, std::mt19937_64& draw) {
  std::uniform_real_distribution<float> values(-most, most);
  std::vector<float> result(count);
  for (float& value : result) value = values(draw);
  return result;
}
/// Rows of a table with `rows` of them, [tokens].
std::vector<std::int64_t> drawn_rows(std::size_t tokens, std::size_t rows, std::mt19937_64& draw) {
  std::vector<std::int64_t> result(tokens);
  for (std::int64_t& row : result) row = static_cast<std::int64_t>(draw() % rows);
  return result;
}

void compare_gather(std::size_t tokens, std::mt19937_64& draw, Report& report) {
  const auto names = drawn(kNames * kWidth, 1, draw), cpu_names = drawn(kNames * kWidth, 1, draw);
  const auto delays = drawn((kCodes + 1) * kWidth, 1, draw);
  const auto durations = drawn(kCodes * kWidth, 1, draw);
  const auto name = drawn_rows(tokens, kNames, draw), cpu_name = drawn_rows(tokens, kNames, draw);
  const auto delay = drawn_rows(tokens, kCodes + 1, draw);
  const auto duration = drawn_rows(tokens, kCodes, draw);
  std::vector<float> host(tokens * kWidth);
  on_cpu::gather_tokens({name, cpu_name, delay, duration}, {names, cpu_names, delays, durations},
                        host, nullptr);
  const OnDevice d_name(name), d_cpu_name(cpu_name), d_delay(delay), d_duration(duration);
  const OnDevice d_names(names), d_cpu_names(cpu_names), d_delays(delays), d_durations(durations);
  const OnDevice device(std::vector<float>(host.size()));
  const TokenColumns columns{d_name.span(), d_cpu_name.span(), d_delay.span(), d_duration.span()};
  const TokenTables tables{d_names.span(), d_cpu_names.span(), d_delays.span(), d_durations.span()};
  const double us =
      device_us([&] { on_gpu::gather_tokens(columns, tables, device.span(), nullptr); });
  report.compare("gather_tokens", host, read(device), 0, us,
                 static_cast<double>(5 * host.size() * sizeof(float)));
}

void compare_places(std::size_t tokens, std::mt19937_64& draw, Report& report) {
  std::vector<float> position = drawn(tokens, 500, draw), stream = drawn(tokens, 8, draw);
  for (float& value : position) value += 500;
  for (float& value : stream) value = std::round(value + 8);
  std::vector<float> frequencies;
  for (std::size_t k = 0; k < kWidth / 4; ++k) {
    frequencies.push_back(std::pow(1e4F, -static_cast<float>(k) / (kWidth / 4)));
  }
  std::vector<float> host = drawn(tokens * kWidth, 1, draw);
  const OnDevice device(host), timed(host);
  on_cpu::add_places({position, stream}, frequencies, host, nullptr);
  const OnDevice d_position(position), d_stream(stream), d_frequencies(frequencies);
  const TokenPlaces places{d_position.span(), d_stream.span()};
  on_gpu::add_places(places, d_frequencies.span(), device.span(), nullptr);
  const double us =
      device_us([&] { on_gpu::add_places(places, d_frequencies.span(), timed.span(), nullptr); });
  report.compare("add_places", host, read(device), kTolerance, us,
                 static_cast<double>(2 * host.size() * sizeof(float)));
}

int compare_all() {
  std::mt19937_64 draw(14);
  Report report;
  for (const std::size_t tokens : {1, 127, 8'000, 200'000}) {
    std::printf("%zu tokens\n", tokens);
    compare_gather(tokens, draw, report);
    compare_places(tokens, draw, report);
  }
  check(cudaDeviceSynchronize());
  std::puts(report.failed() ? "the twins DIFFER" : "the twins agree");
  return report.failed() ? EXIT_FAILURE : EXIT_SUCCESS;
}

}  // namespace

int main() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  // A driver that is absent or too old (35) is no device either.
  if (error != cudaSuccess || devices == 0) {
    std::printf("skipped: no device (%s)\n", cudaGetErrorString(error));
    return kNoDevice;
  }
  try {
    cudaDeviceProp device{};
    check(cudaGetDeviceProperties(&device, 0));
    std::printf("%s, sm_%d%d\n", device.name, device.major, device.minor);
    return compare_all();
  } catch (const std::exception& wrong) {
    std::printf("failed: %s\n", wrong.what());
    return EXIT_FAILURE;
  }
}
