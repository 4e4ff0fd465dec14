// The twins on the host against the code that traces are read with. Those on the device are
// compared with them by benchmarks/device/cuda_parity.cu.

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "analysis/analysed.hpp"
#include "catch.hpp"
#include "traceap/base/error.hpp"
#include "traceap/cuda/kernels.hpp"
#include "traceap/features/quantize.hpp"
#include "traceap/features/tokens.hpp"
#include "traceap/features/window_features.hpp"

using namespace traceap;
using namespace traceap::cuda;

namespace {

/// Many kernels and copies on two streams, some launched without a recorded call.
Analysed busy_trace() {
  std::mt19937 draw(7);
  TraceText text;
  int at_us = 0;
  for (int i = 1; i <= 300; ++i) {
    const int length_us = 1 + static_cast<int>(draw() % 40);
    if (i % 7 == 0) {
      text.gpu("kernel", "orphan", at_us, length_us, 8, 1000 + i);
    } else {
      text.launch("gemm", at_us, 2, at_us + 3, length_us, 7, i);
    }
    at_us += 5 + static_cast<int>(draw() % 60);
  }
  return Analysed(text);
}

struct Times {
  std::vector<std::int64_t> starts_ns, ends_ns;
};
Times times_of(const IntervalSet& set) {
  Times times;
  for (const Interval& each : set) {
    times.starts_ns.push_back(each.start_ns);
    times.ends_ns.push_back(each.end_ns);
  }
  return times;
}

/// Column of a feature.
std::vector<double> column(const FeatureBlock& block, std::string_view name) {
  const auto at = std::find(block.names.begin(), block.names.end(), name) - block.names.begin();
  std::vector<double> values;
  for (std::size_t w = 0; w < block.window_count; ++w) {
    values.push_back(block.values[w * block.names.size() + static_cast<std::size_t>(at)]);
  }
  return values;
}

/// [rows, 1]: each row is `unit` times its number, so that a sum tells which rows it is of.
std::vector<float> numbered(std::size_t rows, float unit) {
  std::vector<float> table(rows);
  for (std::size_t i = 0; i < rows; ++i) table[i] = unit * static_cast<float>(i);
  return table;
}

}  // namespace

TEST_CASE("bounds give the codes of the logarithm", "[cuda]") {
  for (const QuantizeRange& range : {kDelayRange, kDurationRange, QuantizeRange{2, 3, 5}}) {
    const std::vector<std::int64_t> bounds = quantize_bounds_ns(range);
    REQUIRE(bounds.size() == static_cast<std::size_t>(range.levels) - 1);
    CHECK(std::is_sorted(bounds.begin(), bounds.end()));
    std::vector<std::int64_t> times{kNoId, -1, 0, 1, std::numeric_limits<std::int64_t>::max()};
    for (const std::int64_t bound : bounds)
      times.insert(times.end(), {bound - 1, bound, bound + 1});
    const std::vector<std::int32_t> codes = quantize_ns(times, range);
    for (std::size_t i = 0; i < times.size(); ++i) {
      CHECK(std::upper_bound(bounds.begin(), bounds.end(), times[i]) - bounds.begin() == codes[i]);
    }
  }
}

TEST_CASE("tokens gather the rows of their codes and names", "[cuda]") {
  const Analysed a = busy_trace();
  const WindowSet windows = build_windows(a.table, a.tree, a.span(), {.count = 10});
  const Tokens tokens = build_tokens(a.table, a.tree, a.idle(), windows,
                                     {.gaps = false, .host = false, .continued = false});
  std::vector<std::int64_t> delay_ns, duration_ns(tokens.dur_ns);
  for (const Row r : tokens.row) delay_ns.push_back(launch_delay_ns(a.table, a.tree, r));
  CHECK(std::count(delay_ns.begin(), delay_ns.end(), kNoId) > 10);

  const std::vector<std::int64_t> delay_bounds = quantize_bounds_ns(kDelayRange),
                                  duration_bounds = quantize_bounds_ns(kDurationRange);
  const std::vector<float> names = numbered(tokens.names.size(), 0),
                           cpu_names = numbered(tokens.names.size(), 1), delays = numbered(257, 64),
                           durations = numbered(256, 64 * 512);
  std::vector<float> matrix(tokens.row.size());
  on_cpu::gather_tokens({delay_ns, duration_ns, tokens.name, tokens.cpu_name},
                        {names, cpu_names, delays, durations, delay_bounds, duration_bounds},
                        matrix, nullptr);
  for (std::size_t t = 0; t < matrix.size(); ++t) {
    CHECK(matrix[t] == static_cast<float>(tokens.cpu_name[t] + 64 * tokens.delay_code[t] +
                                          64 * 512 * tokens.duration_code[t]));
  }
}

TEST_CASE("places are sines and cosines of position and stream", "[cuda]") {
  const std::vector<float> position{0, 1.5F, 1000}, stream{3, 0, 1}, frequencies{1, 0.01F};
  std::vector<float> matrix(3 * 8, 1.0F);
  on_cpu::add_places({position, stream}, frequencies, matrix, nullptr);
  for (std::size_t t = 0; t < 3; ++t) {
    for (std::size_t k = 0; k < 2; ++k) {
      const float* row = matrix.data() + 8 * t;
      CHECK(row[k] == Approx(1 + std::sin(position[t] * frequencies[k])));
      CHECK(row[2 + k] == Approx(1 + std::cos(position[t] * frequencies[k])));
      CHECK(row[4 + k] == Approx(1 + std::sin(stream[t] * frequencies[k])));
      CHECK(row[6 + k] == Approx(1 + std::cos(stream[t] * frequencies[k])));
    }
  }
}

TEST_CASE("windows cover, find and count as window features do", "[cuda]") {
  const Analysed a = busy_trace();
  for (const std::uint32_t count : {1U, 7U, 100U}) {
    const Interval inner{a.span().start_ns + 12'345, a.span().end_ns - 23'456};
    const WindowSet windows = build_windows(a.table, a.tree, inner, {.count = count});
    const FeatureBlock block = build_features(a.table, a.tree, a.gpu, a.idle(inner), windows);
    const Times busy = times_of(a.gpu.busy);
    std::vector<std::int64_t> covered_ns(count);
    on_cpu::cover_windows(busy.starts_ns, busy.ends_ns, windows.bounds_ns, covered_ns, nullptr);
    std::vector<std::int64_t> starts_ns, durations_ns;
    for (const Row r : a.tree.gpu_rows) {
      starts_ns.push_back(a.table.ts_ns[r]);
      durations_ns.push_back(a.table.dur_ns[r]);
    }
    REQUIRE(std::is_sorted(starts_ns.begin(), starts_ns.end()));
    std::vector<std::uint32_t> offsets(count + 1), small(count);
    on_cpu::find_windows(starts_ns, windows.bounds_ns, offsets, nullptr);
    on_cpu::count_below(durations_ns, offsets, 10'000, small, nullptr);
    const std::vector<double> busy_share = column(block, "busy_share"),
                              kernels = column(block, "kernel_count"),
                              small_share = column(block, "small_kernel_share");
    for (std::uint32_t w = 0; w < count; ++w) {
      const auto length_ns = static_cast<double>(windows.bounds(w).length_ns());
      CHECK(static_cast<double>(covered_ns[w]) / length_ns == Approx(busy_share[w]));
      CHECK(offsets[w + 1] - offsets[w] == kernels[w]);
      CHECK(small[w] == Approx(small_share[w] * kernels[w]));
    }
  }
}

TEST_CASE("a time at the last bound belongs to the last window", "[cuda]") {
  const std::vector<std::int64_t> times{-1, 0, 5, 10, 10, 11}, bounds{0, 5, 10};
  std::vector<std::uint32_t> offsets(3);
  on_cpu::find_windows(times, bounds, offsets, nullptr);
  CHECK(offsets == std::vector<std::uint32_t>{1, 2, 5});
}

TEST_CASE("nothing gives nothing", "[cuda]") {
  const std::vector<std::int64_t> bounds{0, 10};
  std::vector<std::int64_t> covered{7};
  on_cpu::cover_windows({}, {}, bounds, covered, nullptr);
  CHECK(covered[0] == 0);
  const std::vector<float> delays(3), durations(1);
  const std::vector<std::int64_t> one_bound{5};
  on_cpu::gather_tokens({}, {{}, {}, delays, durations, one_bound, {}}, {}, nullptr);
  on_cpu::add_places({}, delays, {}, nullptr);
}

TEST_CASE("spans that don't fit each other are refused", "[cuda]") {
  const std::vector<std::int64_t> two{1, 2}, three{1, 2, 3};
  const std::vector<float> table(4), wrong(3);
  const std::vector<std::int32_t> names{0, 0};
  std::vector<std::int64_t> covered(2);
  std::vector<std::uint32_t> counts(2);
  std::vector<float> matrix(2);
  CHECK_THROWS_AS(on_cpu::cover_windows(two, three, three, covered, nullptr), SchemaError);
  CHECK_THROWS_AS(on_cpu::cover_windows(two, two, two, covered, nullptr), SchemaError);
  CHECK_THROWS_AS(on_cpu::find_windows(two, three, counts, nullptr), SchemaError);
  CHECK_THROWS_AS(on_cpu::count_below(two, counts, 1, counts, nullptr), SchemaError);
  CHECK_THROWS_AS(on_cpu::add_places({matrix, wrong}, table, matrix, nullptr), SchemaError);
  const TokenTables tables{table, table, table, wrong, two, two};
  CHECK_THROWS_AS(on_cpu::gather_tokens({three, two, names, names}, tables, matrix, nullptr),
                  SchemaError);
  CHECK_THROWS_AS(
      on_cpu::gather_tokens({two, two, names, names}, tables, std::span(matrix).first(1), nullptr),
      SchemaError);
}
