#include <algorithm>

#include "catch.hpp"
#include "traceap/tree/tree_text.hpp"
#include "tree_helpers.hpp"

using namespace traceap;

namespace {

TraceText two_layers() {
  TraceText text;
  text.host("user_annotation", "step", 0, 1000);
  for (int i = 0; i < 2; ++i) {
    text.host("cpu_op", "aten::linear", 10 + 100 * i, 80);
    text.host("cpu_op", "aten::addmm", 20 + 100 * i, 60);
    text.launch("gemm", 30 + 100 * i, 5, 50 + 100 * i, 1500, 7, i + 1);
  }
  text.host("cpu_op", "aten::item", 300, 20);
  return text;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::size_t lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace

TEST_CASE("the text shows nesting, folded siblings and GPU time", "[tree]") {
  const Built b = build(two_layers());
  const std::string text = tree_text(b.table, b.tree);
  CHECK(contains(text, "thread 1 of process 1, main\n"));
  CHECK(contains(text, "\n  step  "));
  CHECK(contains(text, "\n    aten::linear x2  "));
  CHECK(contains(text, "160.0 us, GPU 3.00 ms in 2\n"));
  CHECK(contains(text, "\n      aten::addmm x2  "));
  CHECK(contains(text, "\n        cudaLaunchKernel x2  "));
  CHECK(contains(text, "\n    aten::item  "));
  CHECK(lines(text) == 6);
}

TEST_CASE("limits of the text leave out lines and say how many", "[tree]") {
  const Built b = build(two_layers());
  const std::string shallow = tree_text(b.table, b.tree, {.max_depth = 2});
  CHECK_FALSE(contains(shallow, "aten::addmm"));
  const std::string few = tree_text(b.table, b.tree, {.max_rows = 2});
  CHECK(lines(few) == 4);
  CHECK(contains(few, "more lines)"));
  const std::string gpu = tree_text(b.table, b.tree, {.only_gpu = true});
  CHECK_FALSE(contains(gpu, "aten::item"));
  CHECK(contains(gpu, "aten::addmm"));
  const std::string long_ones = tree_text(b.table, b.tree, {.min_dur_ns = 70'000});
  CHECK(contains(long_ones, "aten::linear"));
  CHECK_FALSE(contains(long_ones, "aten::addmm"));
  const std::string unfolded = tree_text(b.table, b.tree, {.fold = false});
  CHECK_FALSE(contains(unfolded, " x2"));
  CHECK(lines(unfolded) == 9);
}

TEST_CASE("hostile names stay one short line", "[tree]") {
  TraceText text;
  text.host("cpu_op", "new\\nline\\u0007" + std::string(1 << 20, 'x'), 0, 1);
  text.host("cpu_op", std::string(119, 'y') + "\\u00e9\\u00e9", 5, 1);
  const Built b = build(text);
  const std::string out = tree_text(b.table, b.tree);
  CHECK(lines(out) == 3);
  CHECK(out.size() < 600);
  CHECK(contains(out, "new line "));
  CHECK(contains(out, std::string(119, 'y') + "..."));
}

TEST_CASE("a tree of 2,000 levels and 50,000 siblings is shown within limits", "[tree]") {
  TraceText text;
  for (int i = 0; i < 2000; ++i) text.host("cpu_op", "deep", i, 4000 - 2 * i);
  for (int i = 0; i < 50'000; ++i) {
    text.host("cpu_op", i % 2 ? "odd" : "even", 10'000 + i, 0.5);
  }
  const Built b = build(text);
  CHECK(lines(tree_text(b.table, b.tree, {.max_depth = 5000, .max_rows = 100})) == 102);
  CHECK(tree_text(EventTable{}, build_tree(EventTable{})).empty());
}
