#include "catch.hpp"
#include "traceap/base/intervals.hpp"

using namespace traceap;

TEST_CASE("union merges touching intervals and drops empty ones", "[base]") {
  CHECK(make_union({{5, 7}, {1, 3}, {3, 4}, {9, 9}}) == IntervalSet{{1, 4}, {5, 7}});
}

TEST_CASE("difference, intersection and complement partition the bounds", "[base]") {
  const IntervalSet a{{0, 10}, {20, 30}, {35, 40}};
  const IntervalSet b{{2, 4}, {8, 22}, {38, 50}};
  CHECK(set_intersection(a, b) == IntervalSet{{2, 4}, {8, 10}, {20, 22}, {38, 40}});
  CHECK(set_difference(a, b) == IntervalSet{{0, 2}, {4, 8}, {22, 30}, {35, 38}});
  CHECK(set_complement(a, {-5, 45}) == IntervalSet{{-5, 0}, {10, 20}, {30, 35}, {40, 45}});
  CHECK(set_union(a, b) == IntervalSet{{0, 30}, {35, 50}});
  CHECK(total_length_ns(set_intersection(a, b)) + total_length_ns(set_difference(a, b)) ==
        total_length_ns(a));
}

TEST_CASE("covered length equals the length of the clipped set", "[base]") {
  const IntervalSet a{{0, 10}, {20, 30}, {35, 40}};
  for (std::int64_t start = -2; start < 42; ++start) {
    for (std::int64_t end = start; end < 44; ++end) {
      CHECK(covered_ns(a, {start, end}) == total_length_ns(set_clip(a, {start, end})));
      CHECK(CoverIndex(a).covered_ns({start, end}) == covered_ns(a, {start, end}));
    }
  }
}

TEST_CASE("nothing covers any time", "[base]") { CHECK(CoverIndex().covered_ns({-5, 5}) == 0); }
