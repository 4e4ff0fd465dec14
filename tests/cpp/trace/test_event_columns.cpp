#include <string>

#include "catch.hpp"
#include "trace_text.hpp"
#include "traceap/base/error.hpp"
#include "traceap/trace/event_columns.hpp"
#include "traceap/trace/write.hpp"

using namespace traceap;

namespace {

/// Columns of an edit that changes nothing.
struct Unchanged {
  explicit Unchanged(const EventTable& table)
      : kept(table.size(), 1), correlation(table.correlation.values()), table_(table) {}

  RowEdits edits() const { return {table_.ts_ns, table_.dur_ns, kept, correlation}; }

  std::vector<std::uint8_t> kept;
  std::vector<std::int64_t> correlation;

 private:
  const EventTable& table_;
};

EventTable odd_table() {
  return TraceText()
      .raw(R"({"ph":"M","pid":1,"tid":0,"name":"process_name","args":{"name":"/device:GPU:2"}})")
      .raw(R"({"ph":"M","pid":1,"tid":13,"name":"thread_name","args":{"name":"Stream #13"}})")
      .raw(R"({"ph":"X","pid":1,"tid":13,"name":"gemm","ts":20,"dur":5,"args":{"hlo_op":"d"}})")
      .raw(R"({"ph":"B","pid":7,"tid":"a","name":"open \" it","ts":1.5})")
      .raw(R"({"ph":"E","pid":7,"tid":"a","ts":9})")
      .raw(R"({"ph":"X","pid":"7","tid":"a","name":"twice","ts":1,"ts":30,"dur":2,"dur":3})")
      .raw(R"({"ph":"X","pid":7,"tid":3,"name":"late","ts":40,"dur":-3,"args":{"x":[1,2.5]}})")
      .raw(R"({"ph":"i","pid":7,"tid":3,"name":"now","ts":41,"args":{"correlation":"5"}})")
      .table();
}

}  // namespace

TEST_CASE("a table whose events stay is written as it was", "[trace]") {
  const EventTable table = odd_table();
  const Unchanged unchanged(table);
  const EventTable again = edit_table(table, unchanged.edits());
  CHECK(trace_json(again) == trace_json(table));
  CHECK(again.kind == table.kind);
  CHECK(again.flags == table.flags);
  CHECK(again.dur_ns == table.dur_ns);
  CHECK(again.device.values() == table.device.values());
  CHECK(again.stream.values() == table.stream.values());
}

TEST_CASE("events that move have their new times in the text", "[trace]") {
  const EventTable table = odd_table();
  Unchanged edit(table);
  std::vector<std::int64_t> ts_ns(table.ts_ns), dur_ns(table.dur_ns);
  for (Row row = 0; row < table.size(); ++row) {
    if (table.flags[row] & kHasTime) ts_ns[row] += 1'000;
    dur_ns[row] *= 2;
  }
  edit.kept.back() = 0;
  const EventTable moved =
      edit_table(table, {ts_ns, dur_ns, edit.kept, edit.correlation},
                 {R"({"ph":"X","pid":7,"tid":3,"name":"more","ts":100,"dur":1})"});
  const EventTable read = read_trace_bytes(trace_json(moved), "moved");
  CHECK(trace_json(read) == trace_json(moved));
  CHECK(read.ts_ns == moved.ts_ns);
  CHECK(read.dur_ns == moved.dur_ns);
  REQUIRE(read.size() == table.size());
  CHECK(read.name_of(read.size() - 1) == "more");
  for (Row row = 0; row < read.size(); ++row) {
    if (read.name_of(row) == "twice") CHECK(read.ts_ns[row] == 31'000);
    if (read.name_of(row) == "twice") CHECK(read.dur_ns[row] == 6'000);
    if (read.name_of(row) == "open \" it") CHECK(read.dur_ns[row] == 7'500);
  }
}

TEST_CASE("columns of other lengths and texts that are no events are refused", "[trace]") {
  const EventTable table = odd_table();
  const Unchanged unchanged(table);
  const std::vector<std::uint8_t> one(1, 1);
  RowEdits edits = unchanged.edits();
  edits.kept = one;
  CHECK_THROWS_AS(edit_table(table, edits), SchemaError);
  CHECK_THROWS_AS(edit_table(table, unchanged.edits(), {"{"}), SchemaError);
  EventColumns columns;
  columns.phase = one;
  CHECK_THROWS_AS(build_table(columns), SchemaError);
}
