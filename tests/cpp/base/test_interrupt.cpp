#include <chrono>
#include <stdexcept>

#include "catch.hpp"
#include "traceap/base/interrupt.hpp"

using namespace traceap;

namespace {

constexpr std::chrono::milliseconds kAlways{0};

struct Stop : std::runtime_error {
  Stop() : std::runtime_error("stop") {}
};

}  // namespace

TEST_CASE("polls without a check do nothing", "[base]") {
  for (int i = 0; i < 10'000; ++i) poll_interrupt();
  poll_interrupt_now();
}

TEST_CASE("a check is asked at one poll in 512, and throws through", "[base]") {
  int asked = 0;
  const InterruptScope scope([&] { ++asked; }, kAlways);
  for (int i = 0; i < 5 * 512; ++i) poll_interrupt();
  CHECK(asked == 5);
  const InterruptScope inner([] { throw Stop(); }, kAlways);
  CHECK_THROWS_AS(poll_interrupt_now(), Stop);
}

TEST_CASE("an inner check stands in for the outer one as long as it lives", "[base]") {
  int outer = 0, inner = 0;
  const InterruptScope around([&] { ++outer; }, kAlways);
  {
    const InterruptScope inside([&] { ++inner; }, kAlways);
    poll_interrupt_now();
  }
  poll_interrupt_now();
  CHECK(inner == 1);
  CHECK(outer == 1);
}
