#include "catch.hpp"
#include "traceap/table/json_text.hpp"

using namespace traceap;

TEST_CASE("microseconds become nanoseconds exactly, half to even", "[table]") {
  CHECK(parse_us_as_ns("1623142623460111") == 1623142623460111000);
  CHECK(parse_us_as_ns("5.4") == 5400);
  CHECK(parse_us_as_ns("1700000000000000.123") == 1700000000000000123);
  CHECK(parse_us_as_ns("0.0005") == 0);  // half, even
  CHECK(parse_us_as_ns("0.0015") == 2);  // half, odd
  CHECK(parse_us_as_ns("0.00150000001") == 2);
  CHECK(parse_us_as_ns("0.0025") == 2);
  CHECK(parse_us_as_ns("-1.5") == -1500);
  CHECK(parse_us_as_ns("1.5e3") == 1500000);
  CHECK(parse_us_as_ns("15E-1") == 1500);
  CHECK(parse_us_as_ns("1e-999999999999") == 0);
  CHECK(parse_us_as_ns("0e999999999999") == 0);
}

TEST_CASE("what is no time in range is refused", "[table]") {
  for (const char* text : {"", "-", "1.", ".5", "1e", "01", "nan", "1e30", "99999999999999999999",
                           "0x10", "1.2.3", "12a", "1.23x"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_us_as_ns(text).has_value());
  }
}

TEST_CASE("times come back as they were", "[table]") {
  for (const std::int64_t ns :
       {0LL, 1LL, 999LL, 1000LL, 1230LL, -1LL, -1500LL, 1623142623460111001LL}) {
    std::string text;
    append_ns_as_us(text, ns);
    CAPTURE(text);
    CHECK(parse_us_as_ns(text) == ns);
  }
}

TEST_CASE("integers keep their text or are none", "[table]") {
  CHECK(parse_int64("0") == 0);
  CHECK(parse_int64("-7") == -7);
  CHECK(parse_int64("9223372036854775807") == INT64_MAX);
  for (const char* text : {"", "-", "-0", "007", "9223372036854775808", "1.0", "1e3", " 1", "+1"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_int64(text).has_value());
  }
}

TEST_CASE("JSON is judged by the grammar", "[table]") {
  for (const char* text :
       {"{}", "[]", "[[],{}]", R"({"a":[1,-2.5e3,"x\n\u00e9",true,null]})", " { \"a\" : 1 } "}) {
    CAPTURE(text);
    CHECK(is_valid_json(text));
  }
  CHECK(is_valid_json("{\"a\":\x12}", Slots::kAllowed));
  CHECK_FALSE(is_valid_json("{\"a\":\x12}"));
  for (const char* text :
       {"", "{", "}", "[1,]", "{,}", "{\"a\"}", "{\"a\":}", "[1 2]", "{\"a\":1,}", "[}",
        "{\"a\":nan}", R"(["\x"])", "[\"\n\"]", "01", "[1]]", "{1:2}"}) {
    CAPTURE(text);
    CHECK_FALSE(is_valid_json(text));
  }
}

TEST_CASE("escapes are undone, bad ones kept and told", "[table]") {
  std::uint32_t bad_escapes = 0;
  CHECK(unescape_json(R"(a\"b\\c\/\n\u00e9\ud83d\ude00)", &bad_escapes) ==
        "a\"b\\c/\n\xc3\xa9\xf0\x9f\x98\x80");
  CHECK(bad_escapes == 0);
  CHECK(unescape_json(R"(C:\dir\qux\u12)", &bad_escapes) == R"(C:\dir\qux\u12)");
  CHECK(bad_escapes == 3);
  CHECK(unescape_json(R"(\ud800x)") == "\xef\xbf\xbdx");
}

TEST_CASE("strings are written as valid JSON whatever they hold", "[table]") {
  std::string out;
  append_json_string(out, std::string("a\"\\\n\x01\xff\xc3\xa9", 8));
  CHECK(out == "\"a\\\"\\\\\\u000a\\u0001\xef\xbf\xbd\xc3\xa9\"");
  CHECK(is_valid_json(out));
}

TEST_CASE("packed integers come back", "[table]") {
  std::vector<std::uint8_t> bytes;
  const std::vector<std::int64_t> values{0, -1, 1, 63, 64, -65, INT64_MAX, INT64_MIN + 1};
  for (const std::int64_t v : values) append_varint(bytes, v);
  const std::uint8_t* p = bytes.data();
  for (const std::int64_t v : values) CHECK(read_varint(p) == v);
  CHECK(p == bytes.data() + bytes.size());
}
