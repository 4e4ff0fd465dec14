// Where warm-up ends: both sides of what counts as a warm step and as a loop.

#include "catch.hpp"
#include "trace_text.hpp"
#include "traceap/tree/event_tree.hpp"

using namespace traceap;

namespace {

WarmUp warm_up_of(const TraceText& text) {
  const EventTable table = text.table();
  return build_tree(table).warm_up;
}

/// Two steps of 1 ms from 5 ms on, the first with this number.
WarmUp after_step(int number) {
  TraceText text;
  for (int i = 0; i < 2; ++i) {
    text.host("user_annotation", "ProfilerStep#" + std::to_string(number + i), 5'000 + 1'000 * i,
              1'000);
  }
  return warm_up_of(text);
}

/// `count` kernels without steps: the n-th name is new at the n-th of `first_uses`, all others
/// repeat the first name. Launch i begins at 20 i us and takes 5.
WarmUp after_kernels(int count, const std::vector<int>& first_uses) {
  TraceText text;
  for (int i = 0; i < count; ++i) {
    std::size_t name = 0;
    for (std::size_t n = 0; n < first_uses.size(); ++n) {
      if (first_uses[n] == i) name = n;
    }
    text.launch("kernel_" + std::to_string(name), 20.0 * i, 5, 20.0 * i + 10, 5, 7, i + 1);
  }
  return warm_up_of(text);
}

}  // namespace

TEST_CASE("a profile that begins with the third step of a program is warm", "[tree]") {
  CHECK(after_step(2).end_ns == 5'000'000);
  CHECK(after_step(1).end_ns == 6'000'000);
}

TEST_CASE("a loop is warm when nine of ten kernels have been seen", "[tree]") {
  const WarmUp warm_up = after_kernels(100, {0, 1, 2, 3, 4, 5, 6, 7, 20, 40});
  CHECK(warm_up.known);
  CHECK(warm_up.end_ns == 405'000);  // the ninth name is launched from 400 to 405 us
}

TEST_CASE("kernels show a loop if half of them are still to come", "[tree]") {
  CHECK(after_kernels(100, {0, 50}).known);
  CHECK_FALSE(after_kernels(100, {0, 51}).known);
}

TEST_CASE("fewer than 50 kernels show no loop", "[tree]") {
  CHECK(after_kernels(50, {0}).known);
  CHECK_FALSE(after_kernels(49, {0}).known);
}
