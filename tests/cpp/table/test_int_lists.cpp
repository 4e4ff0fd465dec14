#include <string>

#include "catch.hpp"
#include "traceap/table/int_lists.hpp"

using namespace traceap;

namespace {

/// What a walk visits, as text; "?" for a number that does not fit.
std::string visited(std::string_view text) {
  struct {
    std::string log;
    void open() { log += '['; }
    void close() { log += ']'; }
    void number(std::optional<std::int64_t> value) {
      log += (value ? std::to_string(*value) : "?") + ' ';
    }
  } visitor;
  walk_int_lists(text, visitor);
  return visitor.log;
}

}  // namespace

TEST_CASE("brackets and integers are visited in their order", "[table]") {
  CHECK(visited("[[8, 1024], [], [[-4], [5]]]") == "[[8 1024 ][][[-4 ][5 ]]]");
  CHECK(visited("[0, 1, ..., 7]") == "[0 1 7 ]");
  CHECK(visited("12") == "12 ");
  CHECK(visited("") == "");
}

TEST_CASE("what is no list of integers is passed over", "[table]") {
  CHECK(visited("]]--5-a[-]-") == "]]-5 []");
  CHECK(visited("[9223372036854775807, 9223372036854775808, 1]") == "[9223372036854775807 ? 1 ]");
  CHECK(visited("[\"a\", null, true, 2]") == "[2 ]");
}
