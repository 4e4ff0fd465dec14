#include <cmath>
#include <limits>

#include "catch.hpp"
#include "traceap/base/error.hpp"
#include "traceap/base/ids.hpp"
#include "traceap/features/quantize.hpp"

using namespace traceap;

TEST_CASE("quantisation follows Eq. 3", "[features]") {
  CHECK(quantize_us(1.0, kDelayRange) == 0);
  CHECK(quantize_us(1e7, kDelayRange) == 255);
  CHECK(quantize_us(std::sqrt(1e7), kDelayRange) == 128);  // the middle, 127.5, rounded up
  CHECK(quantize_us(10.0, kDelayRange) == std::lround(255.0 * std::log(10.0) / std::log(1e7)));
  CHECK(quantize_us(0.5, kDurationRange) == 0);
  CHECK(quantize_us(1e6, kDurationRange) == 255);
}

TEST_CASE("times outside of the range take its ends", "[features]") {
  for (const double t :
       {-5.0, 0.0, 0.999, std::nan(""), -std::numeric_limits<double>::infinity()}) {
    CHECK(quantize_us(t, kDelayRange) == 0);
  }
  for (const double t : {1e7, 1e9, std::numeric_limits<double>::infinity()}) {
    CHECK(quantize_us(t, kDelayRange) == 255);
  }
}

TEST_CASE("codes never fall as time grows, and every code is met", "[features]") {
  std::int32_t last = 0;
  std::vector<bool> met(256);
  for (double t = 0.5; t < 2e6; t *= 1.01) {
    const std::int32_t code = quantize_us(t, kDurationRange);
    CHECK(code >= last);
    last = code;
    met[static_cast<std::size_t>(code)] = true;
  }
  CHECK(std::count(met.begin(), met.end(), true) == 256);
}

TEST_CASE("nanoseconds quantise like microseconds", "[features]") {
  const std::vector<std::int64_t> times{kNoId, -1, 0, 1'000, 1'500, 10'000, 7'000'000'000};
  const std::vector<std::int32_t> codes = quantize_ns(times, kDelayRange);
  REQUIRE(codes.size() == times.size());
  for (std::size_t i = 0; i < times.size(); ++i) {
    CHECK(codes[i] == quantize_us(static_cast<double>(times[i]) / 1000.0, kDelayRange));
  }
  CHECK(quantize_ns({}, kDelayRange).empty());
}

TEST_CASE("impossible ranges are refused", "[features]") {
  CHECK_THROWS_AS(quantize_us(1, {0, 1, 256}), OptionError);
  CHECK_THROWS_AS(quantize_us(1, {2, 1, 256}), OptionError);
  CHECK_THROWS_AS(quantize_us(1, {1, 2, 1}), OptionError);
  CHECK_THROWS_AS(quantize_ns({}, {1, std::numeric_limits<double>::infinity(), 256}), OptionError);
}
