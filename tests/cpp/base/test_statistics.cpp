#include <cmath>
#include <limits>
#include <vector>

#include "catch.hpp"
#include "traceap/base/statistics.hpp"

using namespace traceap;

namespace {
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
}

TEST_CASE("the median of an even number of values is the upper one", "[base]") {
  CHECK(median_of(std::vector<std::int64_t>{}) == 0);
  CHECK(median_of(std::vector<std::int64_t>{7}) == 7);
  CHECK(median_of(std::vector<std::int64_t>{9, 1, 5}) == 5);
  CHECK(median_of(std::vector<std::int64_t>{9, 1, 5, 3}) == 5);
  CHECK(median_of(std::vector<double>{2.5, kNan, 1.5, kNan}) != 1.5);
}

TEST_CASE("quantiles are linear between neighbours", "[base]") {
  const auto of = [](std::vector<double> values, double q) { return quantile_of(values, q); };
  CHECK(of({}, 0.5) == 0);
  CHECK(of({4}, 0.9) == 4);
  CHECK(of({40, 10, 30, 20}, 0) == 10);
  CHECK(of({40, 10, 30, 20}, 0.5) == 25);
  CHECK(of({40, 10, 30, 20}, 0.9) == Approx(37));
  CHECK(of({40, 10, 30, 20}, 1) == 40);
  CHECK(of({kNan, 10, 20}, 0.5) == 20);  // NaN counts as larger than every number
  CHECK(std::isnan(of({kNan, 10, 20}, 1)));
  CHECK(quantile_of(std::vector<std::int64_t>{3, 1, 2, 4}, 0.1) == Approx(1.3));
}
