// Text made to be slow, large or ambiguous. Where the time would grow with the square of the text,
// there is so much of it that the test would not end today.

#include "catch.hpp"
#include "traceap/base/error.hpp"
#include "traceap/trace/read.hpp"
#include "traceap/trace/write.hpp"

using namespace traceap;

namespace {

const std::string kEvent = R"({"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":1})";

std::string object(const std::string& events) { return "{\"traceEvents\":[" + events + "]}"; }

std::string repeated(const std::string& unit, std::size_t bytes) {
  std::string text;
  text.reserve(bytes + unit.size());
  while (text.size() < bytes) text += unit;
  return text;
}

EventTable load(const std::string& text, std::size_t chunk_bytes = 1 << 20, unsigned threads = 1) {
  ReadOptions options;
  options.threads = threads;
  options.chunk_bytes = chunk_bytes;
  return read_trace_bytes(text, "test", options);
}

/// The table and what reading said, or its error.
std::string described(const std::string& text, std::size_t chunk_bytes, unsigned threads = 1) {
  try {
    const EventTable table = load(text, chunk_bytes, threads);
    std::string out = trace_json(table) + std::to_string(table.total_objects);
    for (const Diagnostic& d : table.diagnostics.entries()) {
      out += " " + d.code + " " + std::to_string(d.count) + "@" +
             std::to_string(d.first_byte_offset.value_or(0));
    }
    return out;
  } catch (const ParseError& error) {
    return error.what();
  }
}

constexpr std::size_t kMiB = std::size_t{1} << 20;

}  // namespace

TEST_CASE("a lone quote costs no look at the whole string", "[trace]") {
  const std::string quotes = std::string(4 * kMiB, ' ') + repeated("\" x", 4 * kMiB);
  const EventTable t =
      load(object(R"({"ph":"X","name":")" + quotes + R"(","pid":1,"tid":1,"ts":1,"dur":1})"));
  REQUIRE(t.size() == 1);
  CHECK(t.name_of(0) == quotes);
}

TEST_CASE("a token that is no event costs no look at the whole chunk", "[trace]") {
  for (const std::string unit : {R"({"ph":1},1,)", R"({"ph":1},"a",)", R"({"ph":1},[,)"}) {
    CAPTURE(unit);
    const EventTable t = load(object(kEvent + "," + repeated(unit, 8 * kMiB) + kEvent), 16 * kMiB);
    CHECK(t.size() == 2);
    CHECK(t.diagnostics.count("not_an_object") > 600'000);
  }
}

TEST_CASE("a closed array costs no look at what was read ahead", "[trace]") {
  for (const unsigned threads : {1U, 4U}) {
    const std::string empty = repeated(R"("traceEvents":[],)", 5 * kMiB);
    CHECK(load("{" + empty + "\"traceEvents\":[" + kEvent + "]}", kMiB, threads).size() == 1);
    const std::string full =
        repeated("\"traceEvents\":[" + kEvent + "],\"a\":{\"b\":[1]},", 5 * kMiB);
    const EventTable t = load("{" + full + "\"z\":1}", kMiB, threads);
    CHECK(t.size() > 50'000);
    CHECK(t.metadata.size() == 10'000);
    CHECK(t.diagnostics.count("members_left_out") == t.size() + 1 - 10'000);
  }
}

TEST_CASE("arrays of any length give one table, whatever the chunks and threads", "[trace]") {
  std::string text = "{";
  for (const int events : {0, 1, 0, 40, 3, 0, 0, 200, 7, 1}) {
    text += "\"m" + std::to_string(events) + "\":[{\"ph\":1},2],\"traceEvents\":[";
    for (int i = 0; i < events; ++i) {
      if (i > 0) text += ",";
      text += R"({"ph":"X","name":"n)" + std::to_string(i) + R"(","pid":1,"tid":1,"ts":)" +
              std::to_string(i) + R"(,"dur":1,"args":{"l":[{"name":1},{"name":2}]}})";
    }
    text += "],";
  }
  text += "\"end\":1} \n\n ";
  const std::string expected = described(text, kMiB);
  CHECK(load(text).size() == 252);
  for (const std::size_t chunk : {1U, 2U, 7U, 50U, 333U, 1024U, 5000U}) {
    for (const unsigned threads : {1U, 3U}) {
      CAPTURE(chunk, threads);
      CHECK(described(text, chunk, threads) == expected);
      CHECK(described(text + "x", chunk, threads) == described(text + "x", kMiB));
    }
  }
}

TEST_CASE("a process name is kept once, whatever the number of its threads", "[trace]") {
  std::string events = R"({"ph":"M","name":"process_name","pid":1,"args":{"name":"p)" +
                       repeated("\xc3\xa9", 4 * kMiB) + "\"}}";
  for (int i = 0; i < 100'000; ++i) {
    events += R"(,{"ph":"i","name":"a","pid":1,"tid":)" + std::to_string(i) + R"(,"ts":1})";
  }
  const EventTable t = load(object(events));
  REQUIRE(t.tracks.size() == 100'001);
  CHECK(t.tracks[0].process == t.tracks[100'000].process);
  CHECK(t.tracks[5].process_name() ==
        "p" + repeated("\xc3\xa9", 1022));   // 1,024 end in a character
  CHECK(args_json(t, 0).size() > 4 * kMiB);  // the event keeps it all
}

TEST_CASE("what is undecided at a chunk's end waits for the next chunk", "[trace]") {
  const std::string head = "{\"traceEvents\":[" + kEvent + ",";
  const std::string tail = "," + kEvent + "]}";
  for (const std::string& odd :
       {std::string(R"({"ph":"X","name":"a" ,b   :1,"ts":1,"dur":1})"), std::string("[1],[2]"),
        std::string("[1, [] , 2"), std::string(R"(x ] , "traceEvents" : [ [ )"),
        std::string(R"({"ph"::::} junk { "na)" + std::string(300, 'x') + R"(" : 1 })"),
        std::string(R"({"ph":x"M","name":1,"args":{"name":2}})"),
        std::string(R"( , , {"ph":"i","ts":1} {"ph":"i","ts":2} , {"ph":"i","ts":3} {;} , )"),
        std::string(R"({"ph":"X",)" + std::string(200, ' ') + R"({  "ph"  :"X","ts":1})")}) {
    CAPTURE(odd);
    const std::string text = head + odd + tail;
    const std::string expected = described(text, kMiB);
    for (std::size_t chunk = 1; chunk < 2 * text.size(); chunk += 3) {
      CAPTURE(chunk);
      REQUIRE(described(text, chunk) == expected);
    }
  }
}

TEST_CASE("an event's text does not depend on what else is in its chunk", "[trace]") {
  const std::string spaced =
      R"({ "ph" : "X", "name": "a", "ts": 1,  "dur": 1, "args": {"x": [1, 2]} })";
  const std::string path =
      R"({"ph": "X", "name": "C:\dir", "ts": 1, "dur": 1, "args": {"p": "\q"}})";
  const std::string text =
      object(spaced + ",\n " + path + ",\n{\"ph\":\"i\",\"name\":\"\x01\",\"ts\":2},\n" + spaced +
             "," + path);
  const std::string expected = described(text, kMiB);
  CHECK(expected.find(R"("dur": 1, "args": {"x": [1, 2]} })") != std::string::npos);
  for (const std::size_t chunk : {1U, 20U, 100U, 300U}) CHECK(described(text, chunk) == expected);
}

TEST_CASE("more text than memory should hold is left out and said", "[trace]") {
  const std::string many = repeated("\"k\":1,", kMiB);
  for (const std::string& text : {"{" + many + "\"traceEvents\":[" + kEvent + "]}",
                                  "{\"traceEvents\":[" + kEvent + "]," + many + "\"z\":1}"}) {
    const EventTable t = load(text);
    CHECK(t.size() == 1);
    CHECK(t.metadata.size() == 10'000);
    CHECK(t.diagnostics.count("members_left_out") > 160'000);
  }
  const EventTable devices = load("{\"deviceProperties\":[" + repeated("{},", kMiB) +
                                  "{}],\"traceEvents\":[" + kEvent + "]}");
  CHECK(devices.devices.size() == 1024);
  CHECK(devices.diagnostics.count("members_left_out") > 300'000);
}

TEST_CASE("an event somewhat above the limit is left out and nothing else", "[trace]") {
  ReadOptions options;
  options.threads = 1;
  options.max_event_bytes = 5000;
  const std::string list = repeated(R"({"name":1},{"ph":"X","ts":1},)", 8000);
  const std::string text =
      object(kEvent + R"(,{"ph":"X","ts":1,"args":{"l":[[)" + list + "1]]}}," + kEvent);
  for (const std::size_t chunk : {100U, 1000U, 7000U, 1U << 20}) {
    CAPTURE(chunk);
    options.chunk_bytes = chunk;
    const EventTable t = read_trace_bytes(text, "test", options);
    CHECK(t.size() == 2);
    CHECK(t.diagnostics.entries().size() == 1);
    CHECK(t.diagnostics.count("event_too_long") == 1);
  }
}

TEST_CASE("blank text is passed over, however much of it there is", "[trace]") {
  const std::string blank(20 * kMiB, ' ');
  const EventTable t =
      load(blank + "{\"traceEvents\":[" + blank + kEvent + blank + "]" + blank + "}" + blank);
  CHECK(t.size() == 1);
  CHECK(t.diagnostics.entries().empty());
}
