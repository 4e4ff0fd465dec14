#include <algorithm>
#include <limits>

#include "analysis/analysed.hpp"
#include "catch.hpp"
#include "traceap/base/error.hpp"
#include "traceap/windows/window_set.hpp"

using namespace traceap;

namespace {

std::vector<std::string> names(const Analysed& a, std::span<const Row> rows) {
  std::vector<std::string> out;
  for (const Row r : rows) out.push_back(a.name(r));
  return out;
}

std::span<const Row> overlapping_of(const WindowSet& set, std::uint32_t w) {
  return {set.overlapping.data() + set.overlapping_offsets[w],
          set.overlapping.data() + set.overlapping_offsets[w + 1]};
}

using Names = std::vector<std::string>;

/// Lists by the definition, window by window.
void check_by_definition(const Analysed& a, const WindowSet& set, bool host_rows) {
  const std::uint32_t count = set.count();
  for (std::uint32_t w = 0; w < count; ++w) {
    const Interval bounds = set.bounds(w);
    std::vector<Row> own, reaching;
    for (Row r = 0; r < a.table.size(); ++r) {
      const bool listed = a.table.is_gpu_event(r) ||
                          (host_rows && is_host(a.table.kind[r]) && a.table.is_complete(r));
      if (!listed) continue;
      const std::int64_t start = a.table.ts_ns[r];
      const bool at_end = w + 1 == count && start == bounds.end_ns;
      if ((start >= bounds.start_ns && start < bounds.end_ns) || at_end) own.push_back(r);
      if (start < bounds.start_ns && a.table.end_ns(r) > bounds.start_ns) reaching.push_back(r);
    }
    const auto rows = set.rows_of(w), overlapping = overlapping_of(set, w);
    CHECK(std::vector<Row>(rows.begin(), rows.end()) == own);
    CHECK(std::vector<Row>(overlapping.begin(), overlapping.end()) == reaching);
  }
}

}  // namespace

TEST_CASE("an event belongs to the window of its start, overlaps are listed apart", "[windows]") {
  const Analysed a(TraceText()
                       .gpu("kernel", "first", 0, 5, 7, 1)
                       .gpu("kernel", "long", 8, 25, 7, 2)
                       .gpu("kernel", "edge", 10, 1, 8, 3)
                       .gpu("kernel", "last", 39, 1, 8, 4)
                       .gpu("kernel", "at end", 40, 3, 8, 5));
  const WindowSet set = build_windows(a.table, a.tree, {0, 40'000}, {.count = 4});
  CHECK(set.bounds_ns == std::vector<std::int64_t>{0, 10'000, 20'000, 30'000, 40'000});
  CHECK(names(a, set.rows_of(0)) == Names{"first", "long"});
  CHECK(names(a, set.rows_of(1)) == Names{"edge"});
  CHECK(names(a, set.rows_of(2)).empty());
  CHECK(names(a, set.rows_of(3)) == Names{"last", "at end"});
  CHECK(overlapping_of(set, 0).empty());
  CHECK(names(a, overlapping_of(set, 1)) == Names{"long"});
  CHECK(names(a, overlapping_of(set, 2)) == Names{"long"});
  CHECK(names(a, overlapping_of(set, 3)) == Names{"long"});
}

TEST_CASE("events outside of the bounds belong nowhere, those that reach in overlap", "[windows]") {
  const Analysed a(TraceText()
                       .gpu("kernel", "before", 0, 5, 7, 1)
                       .gpu("kernel", "reaches in", 2, 13, 7, 2)
                       .gpu("kernel", "touches", 3, 7, 8, 3)
                       .gpu("kernel", "after", 31, 5, 7, 4));
  const WindowSet set = build_windows(a.table, a.tree, {10'000, 30'000}, {.count = 2});
  CHECK(set.rows.empty());
  CHECK(names(a, overlapping_of(set, 0)) == Names{"reaches in"});
  CHECK(overlapping_of(set, 1).empty());
}

TEST_CASE("windows of a fixed length end with a shorter one", "[windows]") {
  const Analysed a(TraceText().gpu("kernel", "k", 0, 25, 7, 1));
  const WindowSet set = build_windows(a.table, a.tree, {0, 25'000}, {.length_ns = 10'000});
  CHECK(set.bounds_ns == std::vector<std::int64_t>{0, 10'000, 20'000, 25'000});
  CHECK(build_windows(a.table, a.tree, {0, 20'000}, {.length_ns = 10'000}).count() == 2);
  CHECK(build_windows(a.table, a.tree, {0, 5}, {.length_ns = 10'000}).count() == 1);
  CHECK(build_windows(a.table, a.tree, {0, 5},
                      {.length_ns = std::numeric_limits<std::int64_t>::max()})
            .count() == 1);
}

TEST_CASE("windows cover the profiled time unless told otherwise", "[windows]") {
  const Analysed a(TraceText()
                       .host("user_annotation", "ProfilerStep#1", 100, 50)
                       .host("user_annotation", "ProfilerStep#2", 150, 51)
                       .launch("k", 110, 5, 120, 10, 7, 1));
  const WindowSet set = build_windows(a.table, a.tree);
  CHECK(set.count() == 100);
  CHECK(set.bounds_ns.front() == 100'000);
  CHECK(set.bounds_ns.back() == 201'000);
}

TEST_CASE("equal windows differ by a nanosecond at most, also over centuries", "[windows]") {
  const Analysed a(TraceText().gpu("kernel", "k", 0, 1, 7, 1));
  const Interval bounds{-4'600'000'000'000'000'000, 9'200'000'000'000'000'007};
  const WindowSet set = build_windows(a.table, a.tree, bounds, {.count = 1'000'000});
  CHECK(set.bounds_ns.front() == bounds.start_ns);
  CHECK(set.bounds_ns.back() == bounds.end_ns);
  std::int64_t shortest = set.bounds(0).length_ns(), longest = shortest;
  for (std::uint32_t w = 0; w < set.count(); ++w) {
    shortest = std::min(shortest, set.bounds(w).length_ns());
    longest = std::max(longest, set.bounds(w).length_ns());
  }
  CHECK(longest - shortest <= 1);
}

TEST_CASE("windows shorter than a nanosecond lose no event", "[windows]") {
  const Analysed a(
      TraceText().gpu("kernel", "k", 0, 0.001, 7, 1).gpu("kernel", "l", 0.002, 1, 7, 2));
  const WindowSet set = build_windows(a.table, a.tree, {0, 3}, {.count = 10});
  CHECK(set.count() == 10);
  CHECK(set.rows.size() == 2);
  const WindowSet empty = build_windows(a.table, a.tree, {2, 2}, {.count = 5});
  CHECK(empty.count() == 5);
  CHECK(names(a, empty.rows_of(4)) == Names{"l"});
}

TEST_CASE("impossible windows are refused", "[windows]") {
  const Analysed a(TraceText().gpu("kernel", "k", 0, 1, 7, 1));
  const Interval bounds{0, 10'000'000};
  CHECK_THROWS_AS(build_windows(a.table, a.tree, bounds, {.count = 0}), OptionError);
  CHECK_THROWS_AS(build_windows(a.table, a.tree, bounds, {.count = 1'000'001}), OptionError);
  CHECK_THROWS_AS(build_windows(a.table, a.tree, bounds, {.length_ns = 9}), OptionError);
  CHECK_THROWS_AS(build_windows(a.table, a.tree, bounds, {.length_ns = -1}), OptionError);
  CHECK_THROWS_AS(build_windows(a.table, a.tree, {1, 0}, {.count = 1}), OptionError);
}

TEST_CASE("overlaps that would not fit into memory are refused", "[windows]") {
  TraceText text;
  for (int i = 0; i < 300; ++i) text.gpu("kernel", "k", i * 0.001, 100'000, i, i);
  const Analysed a(text);
  CHECK_THROWS_AS(build_windows(a.table, a.tree, {0, 100'000'000}, {.count = 1'000'000}),
                  OptionError);
}

TEST_CASE("lists agree with the definition on random traces", "[windows]") {
  for (unsigned seed = 0; seed < 30; ++seed) {
    INFO("seed " << seed);
    const Analysed a(RandomTrace(seed, 20 + static_cast<int>(seed) * 3, 100'000).text());
    for (const bool host_rows : {false, true}) {
      check_by_definition(a, build_windows(a.table, a.tree, {.count = 7, .host_rows = host_rows}),
                          host_rows);
      check_by_definition(a,
                          build_windows(a.table, a.tree, {20'000, 60'000},
                                        {.length_ns = 7'777, .host_rows = host_rows}),
                          host_rows);
    }
  }
}
