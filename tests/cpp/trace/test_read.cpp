#include "catch.hpp"
#include "trace/packed.hpp"
#include "trace_text.hpp"
#include "traceap/base/error.hpp"
#include "traceap/trace/write.hpp"

using namespace traceap;

namespace {

const std::string kFirst =
    R"({"ph":"X","cat":"cpu_op","name":"aten::add","pid":1,"tid":"7","ts":10.5,"dur":2.25,"args":{"External id":3,"Input Dims":[[2,3],[]],"x":18446744073709551615}})";
const std::string kSecond =
    R"({"ph":"X","cat":"kernel","name":"k<int>","pid":0,"tid":7,"ts":13,"dur":1,"args":{"device":0,"stream":7,"correlation":9,"External id":3,"grid":[1,1,1],"f":0.4}})";

std::string object(const std::string& events) { return "{\"traceEvents\":[" + events + "]}"; }

EventTable load(const std::string& text, std::size_t chunk_bytes = 1 << 20, unsigned threads = 1,
                std::size_t free_templates = ReadOptions().free_templates) {
  ReadOptions options;
  options.free_templates = free_templates;
  options.threads = threads;
  options.chunk_bytes = chunk_bytes;
  return read_trace_bytes(text, "test", options);
}

/// All events as text, and what reading said: equal for equal tables.
std::string fingerprint(const EventTable& t) {
  std::string out = trace_json(t);
  for (Row r = 0; r < t.size(); ++r) {
    out += std::to_string(t.ts_ns[r]) + "," + std::to_string(t.dur_ns[r]) + "," +
           std::to_string(t.flags[r]) + "," + std::string(kind_name(t.kind[r])) + "\n";
  }
  for (const Diagnostic& d : t.diagnostics.entries()) {
    out += d.code + " " + std::to_string(d.count) + " " +
           std::to_string(d.first_byte_offset.value_or(0)) + "\n";
  }
  return out + std::to_string(t.total_objects);
}

}  // namespace

TEST_CASE("columns hold what the text says", "[trace]") {
  const EventTable t = load(object(kSecond + "," + kFirst));
  REQUIRE(t.size() == 2);
  CHECK(t.total_objects == 2);
  CHECK(t.ts_ns == std::vector<std::int64_t>{10500, 13000});
  CHECK(t.dur_ns == std::vector<std::int64_t>{2250, 1000});
  CHECK(t.name_of(0) == "aten::add");
  CHECK(t.category_of(1) == "kernel");
  CHECK(t.kind[0] == EventKind::kCpuOp);
  CHECK(t.correlation[1] == 9);
  CHECK(t.external_id[0] == 3);
  CHECK(t.stream[1] == 7);
  CHECK(t.device[1] == 0);
  CHECK(t.device[0] == -1);
  CHECK(t.correlation[0] == kNoId);
  CHECK(t.tracks[t.track[0]].tid_number() == 7);
  CHECK(t.diagnostics.entries().empty());
}

TEST_CASE("every argument can be read back", "[trace]") {
  const EventTable t = load(object(kFirst + "," + kSecond));
  CHECK(ArgReader(t, "Input Dims").json(0) == "[[2,3],[]]");
  CHECK(ArgReader(t, "x").text(0) == "18446744073709551615");
  CHECK(ArgReader(t, "f").number(1) == 0.4);
  CHECK(ArgReader(t, "correlation").integer(1) == 9);
  CHECK_FALSE(ArgReader(t, "f").has(0));
  CHECK(args_json(t, 1) ==
        R"({"device":0,"stream":7,"correlation":9,"External id":3,"grid":[1,1,1],"f":0.4})");
  CHECK(event_json(t, 0) == kFirst);
}

namespace {

/// Events whose arguments are alike in nothing: of every kind that a template can hold.
std::string unlike_events(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    const std::string n = std::to_string(i);
    text += R"({"ph":"X","id":)" + n +
            R"(,"cat":"kernel","name":"k","pid":1,"tid":2,"args":{"key)" + n + R"(":)" + n +
            R"(,"device":1,"stream":)" + std::to_string(i % 5) + R"(,"correlation":)" +
            std::to_string(3 * i) + R"(,"External id":)" + n + R"(,"text":"of )" + n + R"(","n":)" +
            std::to_string(-i) + R"(,"f":)" + n + R"(.25,"list":[)" + n +
            R"(,{"a":"\u00e9"}]},"ts":)" + std::to_string(i / 4) + R"(,"dur":1,"more":)" + n + "},";
  }
  text.pop_back();
  return text;
}

}  // namespace

TEST_CASE("arguments that never repeat are packed with their events", "[trace]") {
  const std::string text = unlike_events(300);
  const EventTable interned = load(object(text)), packed = load(object(text), 1 << 20, 1, 2);
  CHECK(interned.args.templates.size() == 300);
  CHECK(packed.args.templates.size() < 60);
  CHECK(fingerprint(packed) == fingerprint(interned));
  CHECK(packed.args.values.size() < text.size());
  for (const char* key : {"key7", "key299", "device", "stream", "correlation", "External id",
                          "text", "n", "f", "list", "more", "a", ""}) {
    CAPTURE(key);
    const ArgReader one(packed, key), other(interned, key);
    for (Row r = 0; r < packed.size(); ++r) {
      REQUIRE(one.has(r) == other.has(r));
      REQUIRE(one.integer(r) == other.integer(r));
      REQUIRE(one.number(r) == other.number(r));
      REQUIRE(one.text(r) == other.text(r));
      REQUIRE(one.json(r) == other.json(r));
      REQUIRE(args_json(packed, r) == args_json(interned, r));
    }
  }
}

TEST_CASE("events that differ in packed arguments alone have one order", "[trace]") {
  std::vector<std::string> events;
  for (int i = 0; i < 60; ++i) {
    events.push_back(R"({"ph":"X","name":"k","pid":1,"tid":2,"ts":1,"dur":1,"args":{"k)" +
                     std::to_string(i * 7 % 60) + R"(":)" + std::to_string(i % 3) + "}}");
  }
  const auto loaded = [&](std::size_t free_templates) {
    std::string text;
    for (const std::string& event : events) text += (text.empty() ? "" : ",") + event;
    return fingerprint(load(object(text), 1 << 20, 1, free_templates));
  };
  const std::string expected = loaded(1000);
  for (const std::size_t free_templates : {0U, 5U, 30U}) CHECK(loaded(free_templates) == expected);
  std::reverse(events.begin(), events.end());
  for (const std::size_t free_templates : {0U, 5U, 30U}) CHECK(loaded(free_templates) == expected);
}

TEST_CASE("templates that repeat are interned, however many there are", "[trace]") {
  std::string text;
  for (int round = 0; round < 40; ++round) text += unlike_events(50) + ",";
  text.pop_back();
  // The first of each is packed, until so many events were read that the pool may grow.
  CHECK(load(object(text), 1 << 20, 1, 2).args.templates.size() == 51);
}

TEST_CASE("a bad escape in packed arguments is mended", "[trace]") {
  std::string text = unlike_events(40);
  text += R"(,{"ph":"X","name":"k","pid":1,"tid":2,"ts":99,"dur":1,"args":{"path":"C:\dir"}})";
  const EventTable t = load(object(text), 1 << 20, 1, 2);
  CHECK(ArgReader(t, "path").text(40) == "C:\\dir");
  CHECK(t.diagnostics.entries().size() == 1);
  CHECK(fingerprint(t) == fingerprint(load(object(text))));
}

TEST_CASE("equal strings and integers make one track", "[trace]") {
  const EventTable t = load(object(R"({"ph":"i","name":"a","pid":5,"tid":"25738","ts":1},)"
                                   R"({"ph":"i","name":"b","pid":"5","tid":25738,"ts":2})"));
  CHECK(t.tracks.size() == 1);
}

TEST_CASE("shapes of files that are usable", "[trace]") {
  const std::string both = kFirst + "," + kSecond;
  for (const std::string& text :
       {object(both), "[" + both + "]", "[" + both, kFirst + "\n" + kSecond + "\n",
        "\xef\xbb\xbf" + object(both), "{\"a\":{\"b\":[1]},\"traceEvents\":[" + both + "],\"z\":1}",
        "{\"schemaVersion\":1}\n" + kFirst + "\n" + kSecond, "\n\n " + object(both) + "\n",
        object(both) + "\n", packed_gzip(object(both)),
        packed_gzip("{\"traceEvents\":[" + kFirst + ",") + packed_gzip(kSecond + "]}"),
        "{\"traceEvents\":[" + both + ",],}",
        "{\r\n\"traceEvents\":[\r\n" + both + "\r\n]\r\n}\r\n",
        "{\"traceEvents\":[" + kFirst + "],\"x\":1,\"traceEvents\":[" + kSecond + "]}",
        "{\"ph\":\"X\",\"traceEvents\":[" + both + "]}"}) {
    CAPTURE(text);
    const EventTable t = load(text);
    CHECK(t.size() == 2);
    CHECK(t.dur_ns == std::vector<std::int64_t>{2250, 1000});
  }
}

TEST_CASE("metadata before and after the events is kept", "[trace]") {
  const EventTable t = load(
      R"({"deviceProperties":[{"id":1,"name":"H200","computeMajor":9,"numSms":132}],"traceEvents":[)" +
      kFirst +
      R"(],"distributedInfo":{"rank":3,"world_size":8,"backend":"nccl"},"traceName":"a b"})");
  CHECK(t.metadata.size() == 3);
  REQUIRE(t.devices.size() == 1);
  CHECK(t.devices[0].name == "H200");
  CHECK(t.devices[0].compute_major == 9);
  CHECK(t.distributed.rank == 3);
  CHECK(t.distributed.world_size == 8);
}

TEST_CASE("metadata that is no JSON is mended or dropped, and counted", "[trace]") {
  const EventTable t = load(
      "{\"path\":\"C:\\dir\\x\",\"half\":1.,\"list\":[1,2},\"k\xff\":\"v\xff\",\"fine\":[1],"
      "\"traceEvents\":[" +
      kFirst + "]}");
  REQUIRE(t.metadata.size() == 4);  // the list that a brace closes has no one reading
  CHECK(t.metadata[0].second == R"("C:\\dir\\x")");
  CHECK(t.metadata[1].second == "null");
  CHECK(t.metadata[2].first == "k\xef\xbf\xbd");
  CHECK(t.metadata[2].second == "\"v\xef\xbf\xbd\"");
  CHECK(t.diagnostics.count("bad_metadata") == 4);
  CHECK(load(trace_json(t)).metadata == t.metadata);
}

TEST_CASE("zstd is read, several frames too", "[trace]") {
  CHECK(load(packed_zstd(object(kFirst))).size() == 1);
  CHECK(
      load(packed_zstd("{\"traceEvents\":[" + kFirst + ",") + packed_zstd(kSecond + "]}")).size() ==
      2);
}

TEST_CASE("B and E become complete events, by name where there is one", "[trace]") {
  const EventTable t = load(object(
      R"({"ph":"B","name":"out","pid":1,"tid":1,"ts":1},{"ph":"B","name":"in","pid":1,"tid":1,"ts":2},)"
      R"({"ph":"E","pid":1,"tid":1,"ts":3},{"ph":"E","name":"out","pid":1,"tid":1,"ts":9},{"ph":"E","pid":1,"tid":1,"ts":10},)"
      R"({"ph":"B","name":"open","pid":1,"tid":2,"ts":5})"));
  CHECK(t.size() == 6);
  CHECK(t.name_of(0) == "out");
  CHECK(t.dur_ns[0] == 8000);
  CHECK(t.dur_ns[1] == 1000);
  CHECK(t.is_complete(0));
  CHECK(t.diagnostics.count("unmatched_begin") == 1);
  CHECK(t.diagnostics.count("unmatched_end") == 1);
}

TEST_CASE("a B event and an E event that lie centuries apart are no pair", "[trace]") {
  const EventTable t =
      load(object(R"({"ph":"B","name":"a","pid":1,"tid":1,"ts":-1701236147625736},)"
                  R"({"ph":"E","pid":1,"tid":1,"ts":1701236147625786})"));
  CHECK(t.size() == 2);
  CHECK(!t.is_complete(0));
  CHECK(t.diagnostics.count("unmatched_begin") == 1);
  CHECK(t.diagnostics.count("unmatched_end") == 1);
}

TEST_CASE("the order of events in the file does not matter", "[trace]") {
  const std::string a =
      R"({"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":5,"args":{"External id":2}})";
  const std::string b =
      R"({"ph":"X","name":"b","pid":1,"tid":1,"ts":1,"dur":5,"args":{"External id":1}})";
  const std::string c = R"({"ph":"X","name":"c","pid":1,"tid":1,"ts":1,"dur":9})";
  const std::string d = R"({"ph":"X","name":"c","pid":1,"tid":1,"ts":1,"dur":9,"args":{"n":4}})";
  const std::string one = trace_json(load(object(a + "," + b + "," + c + "," + d)));
  CHECK(one == trace_json(load(object(d + "," + b + "," + a + "," + c))));
  CHECK(load(object(a + "," + b + "," + c)).name_of(1) == "b");
}

TEST_CASE("times and ranges at the edge of int64", "[trace]") {
  const EventTable t = load(object(
      R"({"ph":"X","name":"a","pid":1,"tid":1,"ts":-2000000000000000,"dur":1},)"
      R"({"ph":"X","name":"b","pid":1,"tid":1,"ts":2000000000000000,"dur":1},)"
      R"({"ph":"X","name":"c","pid":1,"tid":1,"ts":9e18,"dur":1},{"ph":"M","name":"m","pid":1})"));
  REQUIRE(t.size() == 3);
  CHECK(t.phase[0] == 'M');
  CHECK(t.name_of(1) == "a");
  CHECK(t.ts_ns[2] == 2000000000000000000);
  CHECK(t.diagnostics.count("bad_start") == 1);
}

TEST_CASE("what is written loads to an equal table", "[trace]") {
  const EventTable t = load(
      "{\"top\":{\"k\":[1,\"\\u00e9\"]},\"traceEvents\":[" + kFirst + "," + kSecond +
      R"(,{"ph":"s","id":5,"pid":1,"tid":7,"ts":11,"cat":"ac2g","name":"ac2g"},{"ph":"f","id":"0x1f","pid":0,"tid":"stream 7","ts":13.001,"bp":"e","cat":"ac2g","name":"ac2g"})" +
      "]}");
  const EventTable back = load(trace_json(t));
  CHECK(fingerprint(back) == fingerprint(t));
  CHECK(back.metadata == t.metadata);
}

TEST_CASE("chunk borders and threads change nothing", "[trace]") {
  std::string text = "{\"a\":[{\"ph\":1},{\"ph\":2}],\"traceEvents\":[";
  for (int i = 0; i < 40; ++i) {
    text += i % 3 ? kFirst : kSecond;
    if (i % 7 == 1)
      text +=
          R"(,{"ph":"X","name":"li},{\"ph\":\"X\"","pid":1,"tid":1,"ts":1,"dur":1,"args":{"l":[{"name":1},{"name":2}]}})";
    if (i % 9 == 2) text += R"(,{"ph":"X","name":"lone"quote","pid":1,"tid":1,"ts":3,"dur":1})";
    if (i % 11 == 3)
      text +=
          ",{\"ph\":\"X\",\"name\":\"tab\there \xff\",\"pid\":1,\"tid\":1,\"ts\":3,\"dur\":NaN}";
    if (i % 13 == 4)
      text += ",,{\"ph\":\"X\" \"name\":\"c:\\dir\",\"pid\":1,\"tid\":1,\"ts\":\"3\",\"dur\":1,}";
    if (i < 39) text += i % 5 ? ", \n" : ",";
  }
  text += "],\"b\":{\"ph\":[{\"name\":3},{\"name\":4}]}}";
  const std::string expected = fingerprint(load(text));
  for (std::size_t chunk = 1; chunk < 400; chunk += chunk < 40 ? 1 : 13) {
    CAPTURE(chunk);
    CHECK(fingerprint(load(text, chunk)) == expected);
    CHECK(fingerprint(load(text, chunk, 3)) == expected);
  }
}

TEST_CASE("a thread is one track however its name is escaped", "[trace]") {
  const auto event = [](const std::string& tid) {
    return R"({"ph":"X","name":"a","pid":1,"tid":)" + tid + R"(,"ts":1,"dur":1})";
  };
  const EventTable t = load(object(event(R"("ab")") + "," + event(R"("\u0061b")") + "," +
                                   event("7") + "," + event(R"("7")")));
  REQUIRE(t.tracks.size() == 2);
  CHECK(t.tracks[0].tid == "7");
  CHECK(t.tracks[1].tid == "ab");
}

TEST_CASE("what is counted does not hang on chunk borders", "[trace]") {
  const std::string plain = R"({"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":1})";
  const std::string unreadable = R"({"ph":"X","name":-"b","pid":1,"tid":1,"ts":1,"dur":1})";
  const std::string no_event = R"({"ph":"X","name":"cu\a","pid":1,"tid":1,"dur":1})";
  const std::string text = object("," + plain + plain + "," + unreadable + "," + plain + plain +
                                  ",," + no_event + "," + unreadable + "," + no_event + "," +
                                  plain + "," + unreadable + "," + no_event + plain + ",");
  const EventTable whole = load(text);
  CHECK(whole.diagnostics.count("missing_comma") == 3);
  CHECK(whole.diagnostics.count("extra_comma") == 3);
  CHECK(whole.diagnostics.count("unreadable_event") == 3);
  CHECK(whole.diagnostics.count("missing_start") == 3);
  CHECK(whole.diagnostics.count("bare_backslash") == 0);
  for (std::size_t chunk = 1; chunk < 600; ++chunk) {
    CAPTURE(chunk);
    CHECK(fingerprint(load(text, chunk)) == fingerprint(whole));
    if (chunk % 20 == 0) CHECK(fingerprint(load(text, chunk, 3)) == fingerprint(whole));
  }
}

TEST_CASE("events that start together are in one order, mended with their neighbours or not",
          "[trace]") {
  const auto event = [](const std::string& args) {
    return R"({"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":1,"args": {)" + args + "}}";
  };
  const std::string text = object(event(R"("b": 1)") + "," + event(R"("a" : 1)") +
                                  R"(,{"ph":"X","name":"lone"quote"},)" + event(R"("a": 2)"));
  for (std::size_t chunk = 1; chunk < 300; ++chunk) {
    const EventTable t = load(text, chunk);
    CAPTURE(chunk);
    REQUIRE(t.size() == 3);
    CHECK(ArgReader(t, "a").integer(0) == 1);
    CHECK(ArgReader(t, "a").integer(1) == 2);
    CHECK(ArgReader(t, "b").integer(2) == 1);
  }
}

TEST_CASE("events without a category have one order, whatever stands in place of it", "[trace]") {
  const auto event = [](const std::string& rest) {
    return R"({"ph":"M","name":"m","pid":0)" + rest + "}";
  };
  // More than an insertion sort takes, so that what is held to be equal changes places.
  for (const std::string category : {"[1, 2]", "\"\"", "{}"}) {
    std::string expected;
    for (int at = 0; at <= 20; ++at) {
      std::string text;
      for (int i = 0; i <= 20; ++i) {
        text += (i == 0 ? "" : ",") + event(i == at ? ",\"cat\":" + category : ",\"tid\":0");
      }
      const std::string written = trace_json(load(object(text)));
      if (at == 0) expected = written;
      CAPTURE(category, at);
      CHECK(written == expected);
    }
  }
}

TEST_CASE("threads read a long text whose chunks end inside events", "[trace]") {
  // Lists of look-alike events, in which the reader cuts, after names of changing length, so that
  // chunks end anywhere; and quotes that simdjson refuses.
  std::string text = "{\"traceEvents\":[";
  for (int i = 0; i < 3000; ++i) {
    const auto length = static_cast<std::size_t>(i % 61);
    text += R"({"ph":"X","name":")" + std::string(length, 'x') + R"(","pid":1,"tid":1,"ts":)" +
            std::to_string(i) +
            R"(,"dur":1,"args":{"l":[{"name":1},{"name":2},{"name":3},{"name":4}]}},)";
    if (i % 10 == 0) text += R"({"ph":"X","name":"lone"quote","pid":1,"tid":1,"ts":3,"dur":1},)";
  }
  text += kFirst + "],\"b\":1}";
  const std::string expected = fingerprint(load(text));
  for (const std::size_t chunk : {300U, 5000U, 20'000U, 100'000U}) {
    for (const unsigned threads : {2U, 4U}) {
      CAPTURE(chunk, threads);
      CHECK(fingerprint(load(text, chunk, threads)) == expected);
    }
  }
}

TEST_CASE("truncation anywhere keeps the whole events before it", "[trace]") {
  const std::string text = object(kFirst + ",\n" + kSecond + ",\n" + kFirst);
  const std::size_t ends[] = {16 + kFirst.size(), 16 + kFirst.size() + 2 + kSecond.size(),
                              text.size() - 2};
  for (std::size_t size = ends[0]; size < text.size(); ++size) {
    CAPTURE(size);
    const EventTable t = load(text.substr(0, size), 64);
    CHECK(t.size() == (size >= ends[2] ? 3u : size >= ends[1] ? 2u : 1u));
    CHECK(t.diagnostics.count("unclosed_trace") == 1);
  }
}

TEST_CASE("a compressed stream that breaks keeps what came before", "[trace]") {
  std::string text = "{\"traceEvents\":[";
  for (int i = 0; i < 5000; ++i) text += kFirst + ",\n";
  const std::string packed = packed_gzip(text + kSecond + "]}");
  for (const double part : {0.3, 0.6, 0.9}) {
    const EventTable t =
        load(packed.substr(0, static_cast<std::size_t>(static_cast<double>(packed.size()) * part)));
    CHECK(t.size() > 0);
    CHECK(t.diagnostics.count("damaged_stream") == 1);
  }
}

TEST_CASE("a damaged stream gives one table, whatever the chunks and threads", "[trace]") {
  const std::string text = object(kFirst + ",\n" + kSecond + ",\n" + kFirst);
  for (const std::string& packed : {packed_gzip(text), packed_zstd(text)}) {
    for (std::size_t at = packed.size() / 2; at < packed.size(); at += 3) {
      CAPTURE(at);
      std::string damaged = packed;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x40);
      const auto read = [&](std::size_t chunk, unsigned threads) {
        try {
          return fingerprint(load(damaged, chunk, threads));
        } catch (const ParseError& error) {
          return std::string(error.what());
        }
      };
      const std::string expected = read(1 << 20, 1);
      for (const std::size_t chunk : {1U, 7U, 100U, 4096U}) CHECK(read(chunk, 1) == expected);
      CHECK(read(100, 3) == expected);
    }
  }
}

TEST_CASE("a file without an event is an error of one sentence", "[trace]") {
  for (const std::string& text :
       {std::string(), std::string("\n\n"), std::string("{}"), std::string("[]"),
        std::string("null"), std::string("hello"), std::string("{\"traceEvents\":[]}"),
        std::string("{\"traceEvents\":{}}"), std::string("{\"traceEvents\":[1,2]}"),
        std::string(1000, '\0'), std::string(1000, '['), std::string(1000, '{'),
        std::string("\x1f\x8b\x08"), std::string("{\"a\":1")}) {
    CAPTURE(text.substr(0, 40));
    CHECK_THROWS_AS(load(text), ParseError);
  }
  CHECK_THROWS_AS(read_trace("/nonexistent/trace.json"), ParseError);
  CHECK_THROWS_AS(read_trace("/tmp"), ParseError);
}

TEST_CASE("an event longer than the limit is skipped, the others are kept", "[trace]") {
  ReadOptions options;
  options.threads = 1;
  options.chunk_bytes = 1000;
  options.max_event_bytes = 5000;
  const std::string longest =
      R"({"ph":"X","name":")" + std::string(50000, 'x') + R"(","pid":1,"tid":1,"ts":1,"dur":1})";
  const EventTable t = read_trace_bytes(
      object(kFirst + "," + longest + "," + kSecond + "," + kFirst), "test", options);
  CHECK(t.size() == 3);
  CHECK(t.diagnostics.count("event_too_long") == 1);
  options.max_event_bytes = 1 << 20;
  CHECK(read_trace_bytes(object(kFirst + "," + longest + "," + kSecond), "test", options).size() ==
        3);
}
