#include <algorithm>
#include <string>
#include <vector>

#include "catch.hpp"
#include "trace_text.hpp"
#include "traceap/analysis/compat/compat_nesting.hpp"

using traceap::build_compat_nesting;
using traceap::CompatNesting;
using traceap::EventTable;
using traceap::kNoRow;
using traceap::Row;

namespace {

Row row_named(const EventTable& table, const std::string& name) {
  for (Row row = 0; row < table.size(); ++row) {
    if (table.name_of(row) == name) return row;
  }
  return kNoRow;
}

std::string parent_of(const EventTable& table, const CompatNesting& nesting,
                      const std::string& name) {
  const Row parent = nesting.parent[row_named(table, name)];
  return parent == kNoRow ? "" : std::string(table.name_of(parent));
}

bool is_kept(const EventTable& table, const CompatNesting& nesting, const std::string& name) {
  const Row row = row_named(table, name);
  return std::find(nesting.rows.begin(), nesting.rows.end(), row) != nesting.rows.end();
}

}  // namespace

TEST_CASE("An event that ends a microsecond after its range or later is dropped") {
  const EventTable table = TraceText()
                               .host("cpu_op", "outer", 0, 100)
                               .host("cpu_op", "inner", 10, 20)
                               .host("cpu_op", "late", 25, 20)
                               .host("cpu_op", "below late", 40, 2)
                               .table();
  const CompatNesting nesting = build_compat_nesting(table);
  CHECK_FALSE(is_kept(table, nesting, "late"));
  CHECK(parent_of(table, nesting, "inner") == "outer");
  CHECK(parent_of(table, nesting, "below late") == "outer");
}

TEST_CASE("An overlap below a microsecond makes a sibling, but for a root") {
  const EventTable table = TraceText()
                               .host("cpu_op", "outer", 0, 100)
                               .host("cpu_op", "inner", 10, 20)
                               .host("cuda_runtime", "bleeds", 29.5, 5)
                               .host("cpu_op", "root bleeds", 99.5, 10)
                               .table();
  const CompatNesting nesting = build_compat_nesting(table);
  CHECK(parent_of(table, nesting, "bleeds") == "outer");
  CHECK_FALSE(is_kept(table, nesting, "root bleeds"));
}

TEST_CASE("A call that starts with an operator and outlives it is dropped") {
  const EventTable table = TraceText()
                               .host("cpu_op", "outer", 0, 100)
                               .host("cuda_runtime", "outlives", 10, 20)
                               .host("cpu_op", "brief", 10, 5)
                               .host("cuda_runtime", "within", 50, 5)
                               .host("cpu_op", "long", 50, 20)
                               .table();
  const CompatNesting nesting = build_compat_nesting(table);
  CHECK_FALSE(is_kept(table, nesting, "outlives"));
  CHECK(parent_of(table, nesting, "brief") == "outer");
  CHECK(parent_of(table, nesting, "within") == "long");
}

TEST_CASE("Python frames nest only where they are asked for, annotations never") {
  const EventTable table = TraceText()
                               .host("user_annotation", "step", 0, 200)
                               .host("python_function", "frame", 0, 100)
                               .host("cpu_op", "op", 10, 20)
                               .table();
  CHECK(parent_of(table, build_compat_nesting(table), "op").empty());
  const CompatNesting nesting = build_compat_nesting(table, {.python_frames = true});
  CHECK(parent_of(table, nesting, "op") == "frame");
  CHECK(nesting.rows.size() == 2);
}

TEST_CASE("Subtrees are slices of a pre-order") {
  const EventTable table = TraceText()
                               .host("cpu_op", "a", 0, 100)
                               .host("cpu_op", "b", 10, 20)
                               .host("cpu_op", "c", 12, 5)
                               .host("cpu_op", "d", 40, 5)
                               .host("cpu_op", "e", 100, 5)
                               .table();
  const CompatNesting nesting = build_compat_nesting(table);
  CHECK(nesting.subtree_end == std::vector<std::uint32_t>{4, 3, 3, 4, 5});
}

TEST_CASE("Microseconds are the nearest doubles of the decimal text") {
  CHECK(traceap::compat_us(3599) == 3.599);
  CHECK(traceap::compat_us(1420179700598247) == 1420179700598.247);
  CHECK(traceap::compat_us(1712345678901234567) == 1712345678901234.567);
  CHECK(traceap::compat_us(-1500) == -1.5);
}
