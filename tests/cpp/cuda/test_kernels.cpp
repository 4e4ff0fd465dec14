// The twins on the host. Those on a device are compared with them by
// benchmarks/device/cuda_parity.cu; the network that calls both is compared with the same network
// in Python's torch by tests/python/lab/test_paper_net.py.

#include <cmath>

#include "catch.hpp"
#include "traceap/base/error.hpp"
#include "traceap/cuda/kernels.hpp"

using namespace traceap;
using namespace traceap::cuda;

namespace {

/// [rows, 2]: each row is `unit` times its number, and minus that, so that a sum tells its rows.
std::vector<float> numbered(std::size_t rows, float unit) {
  std::vector<float> table;
  for (std::size_t i = 0; i < rows; ++i) {
    table.push_back(unit * static_cast<float>(i));
    table.push_back(-unit * static_cast<float>(i));
  }
  return table;
}

}  // namespace

TEST_CASE("a token is the sum of the rows of its names and codes", "[cuda]") {
  const auto names = numbered(3, 1), cpu_names = numbered(3, 10), delays = numbered(4, 100),
             durations = numbered(4, 1000);
  const std::vector<std::int64_t> name{2, 0, 1}, cpu_name{0, 2, 1}, delay{3, 0, 1},
      duration{1, 2, 3};
  std::vector<float> matrix(6);
  kernels_for(false).gather_tokens({name, cpu_name, delay, duration},
                                   {names, cpu_names, delays, durations}, matrix, nullptr);
  CHECK(matrix == std::vector<float>{1302, -1302, 2020, -2020, 3111, -3111});
}

TEST_CASE("places are sines and cosines of position and stream", "[cuda]") {
  const std::vector<float> position{0, 1.5F, 1000}, stream{3, 0, 1}, frequencies{1, 0.01F};
  std::vector<float> matrix(3 * 8, 1.0F);
  kernels_for(false).add_places({position, stream}, frequencies, matrix, nullptr);
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

TEST_CASE("nothing gives nothing", "[cuda]") {
  const std::vector<float> table(3);
  on_cpu::gather_tokens({}, {{}, {}, table, table}, {}, nullptr);
  on_cpu::add_places({}, table, {}, nullptr);
}

TEST_CASE("spans that do not fit each other are refused", "[cuda]") {
  const std::vector<float> table(4), wrong(3);
  const std::vector<std::int64_t> one{0}, two{0, 1};
  std::vector<float> matrix(4), odd(3);
  CHECK_THROWS_AS(on_cpu::add_places({odd, matrix}, table, matrix, nullptr), SchemaError);
  CHECK_THROWS_AS(on_cpu::add_places({table, table}, table, odd, nullptr), SchemaError);
  const TokenTables tables{table, table, table, table};
  CHECK_THROWS_AS(on_cpu::gather_tokens({two, one, two, two}, tables, matrix, nullptr),
                  SchemaError);
  CHECK_THROWS_AS(on_cpu::gather_tokens({two, two, two, two}, tables, odd, nullptr), SchemaError);
  CHECK_THROWS_AS(on_cpu::gather_tokens({}, tables, odd, nullptr), SchemaError);
  CHECK_THROWS_AS(
      on_cpu::gather_tokens({two, two, two, two}, {table, table, table, wrong}, matrix, nullptr),
      SchemaError);
}
