#include <cstdlib>
#include <limits>

#include "catch.hpp"
#include "traceap/tree/id_index.hpp"
#include "tree_helpers.hpp"

using namespace traceap;

TEST_CASE("host events nest by time on their own thread", "[tree]") {
  TraceText text;
  text.host("user_annotation", "outer", 0, 100)
      .host("python_function", "frame", 5, 90)
      .host("cpu_op", "aten::a", 10, 20)
      .host("cuda_runtime", "cudaLaunchKernel", 12, 5)
      .host("cuda_driver", "cuLaunchKernel", 13, 2)
      .host("cpu_op", "aten::b", 30, 20)
      .complete("cpu_op", "elsewhere", 11, 3, 1, "2");
  const Built b = build(text);
  CHECK(b.parent("outer") == "none");
  CHECK(b.parent("frame") == "outer");
  CHECK(b.parent("aten::a") == "frame");
  CHECK(b.parent("cudaLaunchKernel") == "aten::a");
  CHECK(b.parent("cuLaunchKernel") == "cudaLaunchKernel");
  CHECK(b.parent("aten::b") == "frame");
  CHECK(b.parent("elsewhere") == "none");
  CHECK(b.tree.depth[b.row("cuLaunchKernel")] == 4);
  CHECK(b.tree.depth[b.row("elsewhere")] == 0);
  CHECK(b.tree.host_tracks.size() == 2);
  CHECK(b.count("overlapping_host_events") == 0);
  CHECK(b.count("tolerated_host_overlaps") == 0);
}

TEST_CASE("an event that begins where another ends is its sibling", "[tree]") {
  const Built b = build(TraceText()
                            .host("cpu_op", "first", 0, 10)
                            .host("cpu_op", "second", 10, 10)
                            .host("cpu_op", "empty", 20, 0)
                            .host("cpu_op", "third", 20, 5)
                            .host("cpu_op", "inside", 21, 0));
  CHECK(b.parent("second") == "none");
  CHECK(b.parent("empty") == "third");  // longer first: the empty one begins with the third
  CHECK(b.parent("inside") == "third");
}

TEST_CASE("an overlap within the tolerance leaves the child inside", "[tree]") {
  TraceText text;
  text.host("cpu_op", "parent", 0, 10)
      .host("cpu_op", "child", 5, 5.9)
      .host("cpu_op", "grandchild", 6, 4.9)
      .host("cpu_op", "next", 10.5, 5);
  const Built b = build(text);
  CHECK(b.parent("child") == "parent");
  CHECK(b.parent("grandchild") == "child");
  CHECK(b.parent("next") == "none");  // the child counts as ending with its parent
  CHECK(b.count("tolerated_host_overlaps") == 2);
  CHECK(b.count("overlapping_host_events") == 0);
  const Built strict = build(text, {.overlap_tolerance_ns = 0});
  CHECK(strict.parent("child") == "none");
  CHECK(strict.count("overlapping_host_events") == 2);  // the child, and "next" over the child
}

TEST_CASE("an overlap beyond the tolerance goes to the nearest event that contains it", "[tree]") {
  const Built b = build(TraceText()
                            .host("user_annotation", "step", 0, 100)
                            .host("cpu_op", "outer", 10, 40)
                            .host("cpu_op", "inner", 20, 20)
                            .host("cpu_op", "late", 30, 40)
                            .host("cpu_op", "under_late", 35, 5)
                            .host("cpu_op", "escapes", 60, 60));
  CHECK(b.parent("inner") == "outer");
  CHECK(b.parent("late") == "step");
  CHECK(b.parent("under_late") == "late");
  CHECK(b.parent("escapes") == "none");
  CHECK(b.count("overlapping_host_events") == 2);
}

TEST_CASE("rows drawn for streams, instants and events without a duration stay outside", "[tree]") {
  const Built b =
      build(TraceText()
                .host("cpu_op", "op", 0, 100)
                .complete("cuda_sync", "Stream Sync", 10, 50, 0, "1000007", R"("stream":7)")
                .host("overhead", "Lazy loading", 20, 10)
                .raw(R"({"ph":"i","name":"mark","pid":1,"tid":1,"ts":30,"s":"t"})")
                .raw(R"({"ph":"X","cat":"cpu_op","name":"no end","pid":1,"tid":1,"ts":40})"));
  for (const char* name : {"Stream Sync", "Lazy loading", "mark"}) {
    CHECK(b.parent(name) == "none");
    CHECK(b.tree.host_position[b.row(name)] == kNoRow);
  }
  CHECK(b.tree.host_rows == std::vector<Row>{b.row("op")});
}

TEST_CASE("subtrees are slices of the host rows", "[tree]") {
  const Built b = build(TraceText()
                            .host("cpu_op", "a", 0, 100)
                            .host("cpu_op", "b", 10, 20)
                            .host("cpu_op", "c", 11, 5)
                            .host("cpu_op", "d", 40, 20)
                            .host("cpu_op", "e", 200, 20)
                            .complete("cpu_op", "other thread", 12, 3, 1, "2")
                            .gpu("kernel", "k", 15, 5, 7, 1));
  const auto below = subtree_rows(b.tree, b.row("a"));
  CHECK(std::vector<Row>(below.begin(), below.end()) ==
        std::vector<Row>{b.row("b"), b.row("c"), b.row("d")});
  CHECK(subtree_rows(b.tree, b.row("e")).empty());
  CHECK(subtree_rows(b.tree, b.row("k")).empty());
  CHECK(is_inside(b.tree, b.row("c"), b.row("a")));
  CHECK(is_inside(b.tree, b.row("c"), b.row("b")));
  CHECK(is_inside(b.tree, b.row("c"), b.row("c")));
  CHECK_FALSE(is_inside(b.tree, b.row("a"), b.row("c")));
  CHECK_FALSE(is_inside(b.tree, b.row("d"), b.row("b")));
  CHECK_FALSE(is_inside(b.tree, b.row("e"), b.row("a")));
  CHECK_FALSE(is_inside(b.tree, b.row("other thread"), b.row("a")));
  CHECK_FALSE(is_inside(b.tree, b.row("k"), b.row("a")));
}

TEST_CASE("a stack of 2,000 ranges keeps its depth", "[tree]") {
  TraceText text;
  for (int i = 0; i < 2000; ++i) text.host("cpu_op", "op" + std::to_string(i), i, 10000 - 2 * i);
  const Built b = build(text);
  CHECK(b.tree.depth[b.row("op1999")] == 1999);
  CHECK(b.parent("op1999") == "op1998");
  CHECK(subtree_rows(b.tree, b.row("op0")).size() == 1999);
}

namespace {

/// A table without text behind it, for values that no reader would let through.
EventTable raw_table(const std::vector<std::pair<std::int64_t, std::int64_t>>& ranges) {
  EventTable table;
  const StringId name = table.strings.intern("op");
  const StringId shape = table.args.templates.intern("{}");
  table.tracks.push_back({.pid = "1", .tid = "1"});
  for (const auto& [ts, dur] : ranges) {
    table.ts_ns.push_back(ts);
    table.dur_ns.push_back(dur);
    table.name.push_back(name);
    table.category.push_back(kNoString);
    table.kind.push_back(EventKind::kCpuOp);
    table.phase.push_back('X');
    table.flags.push_back(kHasTime | kHasDuration);
    table.track.push_back(0);
    table.device.push_back(-1);
    table.stream.push_back(kNoId);
    table.correlation.push_back(kNoId);
    table.external_id.push_back(kNoId);
    table.args.template_id.push_back(shape);
    table.args.values_offset.push_back(0);
  }
  return table;
}

}  // namespace

TEST_CASE("a stack deeper than 65,535 saturates its depth, not its parents", "[tree]") {
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  constexpr Row kDepth = 70'000;
  for (Row i = 0; i < kDepth; ++i) ranges.emplace_back(i, 2 * (kDepth - i));
  const EventTable table = raw_table(ranges);
  const EventTree tree = build_tree(table);
  CHECK(tree.depth.back() == 65535);
  CHECK(tree.parent.back() == kDepth - 2);
}

TEST_CASE("times at the limits of what a reader lets through don't overflow", "[tree]") {
  constexpr std::int64_t kMax = 4'600'000'000'000'000'000;
  const EventTable table = raw_table({{-kMax, kMax}, {0, kMax}, {5, kMax}, {6, 1}, {kMax, kMax}});
  for (const std::int64_t tolerance : {std::int64_t{0}, std::numeric_limits<std::int64_t>::max()}) {
    const EventTree tree = build_tree(table, {.overlap_tolerance_ns = tolerance});
    CHECK(tree.parent[1] == kNoRow);
    CHECK(tree.parent[2] == (tolerance > 0 ? 1 : kNoRow));
    CHECK(tree.parent[3] == 2);
    CHECK(tree.parent[4] == kNoRow);
  }
}

TEST_CASE("random ranges: parents come first and contain their children", "[tree]") {
  std::srand(7);
  for (int round = 0; round < 50; ++round) {
    TraceText text;
    const int tolerance = std::rand() % 3;
    for (int i = 0; i < 200; ++i) {
      text.complete("cpu_op", "op", std::rand() % 500, std::rand() % (1 << std::rand() % 9), 1,
                    std::to_string(std::rand() % 3));
    }
    const Built b = build(text, {.overlap_tolerance_ns = tolerance * 1000});
    for (Row r = 0; r < b.table.size(); ++r) {
      const Row p = b.tree.parent[r];
      if (p == kNoRow) continue;
      REQUIRE(p < r);
      REQUIRE(b.table.track[p] == b.table.track[r]);
      REQUIRE(b.table.ts_ns[p] <= b.table.ts_ns[r]);
      REQUIRE(b.table.end_ns(r) <= b.table.end_ns(p) + tolerance * 1000);
      REQUIRE(b.tree.depth[r] == b.tree.depth[p] + 1);
      REQUIRE(is_inside(b.tree, r, p));
    }
    for (Row r = 0; r < b.table.size(); ++r) {
      for (const Row below : subtree_rows(b.tree, r)) {
        Row up = below;
        while (up != kNoRow && up != r) up = b.tree.parent[up];
        REQUIRE(up == r);
      }
    }
  }
}

TEST_CASE("50,000 threads of one event each", "[tree]") {
  TraceText text;
  for (int i = 0; i < 50'000; ++i) {
    text.complete("cpu_op", "op", i % 100, 5, 1, std::to_string(i - 25'000));
  }
  const Built b = build(text);
  CHECK(b.tree.host_tracks.size() == 50'000);
  for (const Row r : b.tree.host_rows) REQUIRE(b.tree.parent[r] == kNoRow);
}

TEST_CASE("an id index gives the same answer for dense and for scattered ids", "[tree]") {
  const std::int64_t big = std::int64_t{1} << 62;
  for (const std::int64_t stride : {std::int64_t{1}, big / 1000}) {
    std::vector<IdRow> entries;
    for (Row row = 0; row < 1000; ++row) entries.push_back({(row % 300) * stride - big / 2, row});
    const IdIndex index(entries);
    const auto found = index.find(7 * stride - big / 2);
    CHECK(std::vector<Row>(found.begin(), found.end()) == std::vector<Row>{7, 307, 607, 907});
    CHECK(index.find(300 * stride - big / 2).empty());
    CHECK(index.find(-big / 2 - 1).empty());
    CHECK(index.find(kNoId).empty());
    CHECK(index.find(std::numeric_limits<std::int64_t>::max()).empty());
  }
  CHECK(IdIndex().find(0).empty());
}
