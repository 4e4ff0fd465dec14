#include "catch.hpp"
#include "trace_text.hpp"
#include "traceap/trace/repair.hpp"
#include "traceap/trace/write.hpp"

using namespace traceap;

namespace {

struct Repaired {
  RepairStatus status;
  std::string text;
  std::size_t end;
};

Repaired repair(const std::string& text, bool is_final = true) {
  std::string out;
  ReasonCounts counts;
  const RepairResult result = repair_event(text, 0, is_final, 0, out, counts);
  return {result.status, out, result.end};
}

}  // namespace

TEST_CASE("text with one sensible reading is mended", "[trace]") {
  const std::pair<std::string, std::string> cases[] = {
      {R"({"a":"C:\dir\x"})", R"({"a":"C:\\dir\\x"})"},
      {R"({"a":"C:\dir\", "b":1})", R"({"a":"C:\\dir\\","b":1})"},
      {"{\"a\":\"x\ny\tz\"}", R"({"a":"x\u000ay\u0009z"})"},
      {"{\"a\":\"x\xff\xc3\xa9\"}", "{\"a\":\"x\xef\xbf\xbd\xc3\xa9\"}"},
      {R"({"a":"say "hi" now","b":1})", R"({"a":"say \"hi\" now","b":1})"},
      {R"({"a":"foo, "b":1})", R"({"a":"foo","b":1})"},
      {R"({"a":1 "b":2})", R"({"a":1,"b":2})"},
      {R"({"a":"x" "b":2})", R"({"a":"x","b":2})"},
      {R"({"a":1,,"b":2,})", R"({"a":1,"b":2})"},
      {R"({"a":[1 2,,3,]})", R"({"a":[1,2,3]})"},
      {R"({"a":NaN,"b":-inf})", R"({"a":"NaN","b":"-inf"})"},
      {R"({"a":True,"b":None})", R"({"a":true,"b":null})"},
      {R"({"a":1.,"b":2})", R"({"a":null,"b":2})"},
      {R"({"a":,"b":2})", R"({"a":null,"b":2})"},
      {R"({name:"x",dur:3})", R"({"name":"x","dur":3})"},
      {R"({"a":[1,2})", R"({"a":[1,2]})"},
      {R"({"a":{"b":1,"c":2 ]})", R"({"a":{"b":1,"c":2}})"},
      {R"({"a":1 {"ph":"X"}})", R"({"a":1})"},
      {R"({"a":1, {"ph":"X"}})", R"({"a":1})"},
  };
  for (const auto& [text, expected] : cases) {
    CAPTURE(text);
    const Repaired r = repair(text);
    CHECK(r.status == RepairStatus::kKept);
    CHECK(r.text == expected);
  }
}

TEST_CASE("text without a sensible reading is skipped up to the next event", "[trace]") {
  const std::string next = R"({"ph":"X","ts":1})";
  for (const std::string& text :
       {R"({"a":{;}},)" + next, R"({1:2},)" + next, R"({"a" 1},)" + next, R"({"a":::},)" + next}) {
    CAPTURE(text);
    const Repaired r = repair(text);
    CHECK(r.status == RepairStatus::kSkipped);
    CHECK(text.substr(r.end) == next);
  }
}

TEST_CASE("a decision waits for the text that it needs", "[trace]") {
  const std::string text =
      R"({"ph":"X","name":"a "b" c","args":{"x":[1,2],"y":"C:\d\", "z":1},"dur":12,"ts":3})";
  for (std::size_t size = 1; size < text.size(); ++size) {
    CAPTURE(text.substr(0, size));
    CHECK(repair(text.substr(0, size), false).status == RepairStatus::kNeedMore);
    CHECK(repair(text.substr(0, size), true).status == RepairStatus::kSkipped);
  }
  CHECK(repair(text, false).status == RepairStatus::kKept);
}

TEST_CASE("2,000-fold nesting and a name of 5 MB are kept", "[trace]") {
  const std::string deep = std::string(2000, '[') + std::string(2000, ']');
  const std::string name(5'000'000, 'n');
  TraceText trace;
  trace.host("cpu_op", name, 1, 1).host("cpu_op", "deep", 2, 1, "\"d\":" + deep);
  const EventTable t = trace.table();
  REQUIRE(t.size() == 2);
  CHECK(t.name_of(0) == name);
  CHECK(ArgReader(t, "d").json(1) == deep);
}

TEST_CASE("wrong types leave the rest of the event usable", "[trace]") {
  const EventTable t = read_trace_bytes(
      R"([{"ph":"X","name":5,"cat":["x"],"pid":null,"tid":{"a":1},"ts":1,"dur":2},)"
      R"({"ph":"X","name":"no ts","pid":1,"tid":1,"dur":2},{"ph":"X","name":"bad ts","pid":1,"tid":1,"ts":"x","dur":2},)"
      R"({"ph":"X","name":"null dur","pid":1,"tid":1,"ts":3,"dur":null},{"ph":"X","name":"bad dur","pid":1,"tid":1,"ts":4,"dur":{}},)"
      R"({"ph":"X","name":"negative","pid":1,"tid":1,"ts":5,"dur":-1},{"name":"no ph"},{},)"
      R"({"ph":"X","name":"quoted","pid":1,"tid":1,"ts":"6.5","dur":" 1","args":{"correlation":"12","stream":"7"}}])",
      "test");
  CHECK(t.total_objects == 9);
  REQUIRE(t.size() == 5);
  CHECK(t.name_of(0) == "5");
  CHECK(t.is_complete(0));
  CHECK_FALSE(t.is_complete(1));
  CHECK(t.correlation[4] == 12);
  CHECK(t.ts_ns[4] == 6500);
  const std::pair<const char*, std::uint64_t> counts[] = {
      {"missing_start", 1},     {"bad_start", 1},     {"missing_duration", 1}, {"bad_duration", 1},
      {"negative_duration", 1}, {"missing_phase", 2}, {"number_in_quotes", 1}};
  for (const auto& [code, count] : counts) {
    CAPTURE(code);
    CHECK(t.diagnostics.count(code) == count);
  }
  const EventTable back = read_trace_bytes(trace_json(t), "test");
  CHECK(trace_json(back) == trace_json(t));
}

TEST_CASE("a control character in place of a value never passes for a slot", "[trace]") {
  for (char slot = 1; slot < 0x20; ++slot) {
    const std::string byte(1, slot);
    for (const std::string& args : {"\"a\":" + byte, "\"a\":[" + byte + "]",
                                    "\"correlation\":" + byte, std::string("\"a\":5")}) {
      TraceText trace;
      trace.host("cpu_op", "before", 1, 1, "\"a\":5").host("cpu_op", "x", 2, 1, args);
      trace.raw("{\"ph\":\"X\",\"name\":\"y\",\"pid\":1,\"tid\":" + byte + ",\"ts\":3,\"dur\":1}");
      const EventTable t = trace.table();
      CHECK(trace_json(read_trace_bytes(trace_json(t), "test")) == trace_json(t));
    }
  }
}
