#include <cstring>
#include <set>
#include <string>

#include "catch.hpp"
#include "traceap/base/string_pool.hpp"

using namespace traceap;

TEST_CASE("a string has one id, ids are dense", "[base]") {
  StringPool pool;
  CHECK(pool.intern("a") == 0);
  CHECK(pool.intern("") == 1);
  CHECK(pool.intern(std::string_view("\0", 1)) == 2);  // a zero byte is text as any other
  CHECK(pool.intern(std::string_view("a\0", 2)) == 3);
  CHECK(pool.intern("a") == 0);
  CHECK(pool.intern("") == 1);
  CHECK(pool.size() == 4);
  CHECK(pool.text_bytes() == 4);
  CHECK(pool[3] == std::string_view("a\0", 2));
}

TEST_CASE("only what was put in is found", "[base]") {
  StringPool pool;
  CHECK(pool.find("") == kNoString);
  const StringId id = pool.intern("aten::add");
  CHECK(pool.find("aten::add") == id);
  CHECK(pool.find("aten::add_") == kNoString);
  CHECK(pool.find("aten::ad") == kNoString);
  CHECK(pool.find("") == kNoString);
}

TEST_CASE("ids and views outlive the growth and the move of a pool", "[base]") {
  constexpr StringId kCount = 50'000;
  const auto text = [](StringId i) { return "name " + std::to_string(i * 7919); };
  StringPool pool;
  std::vector<std::string_view> views;
  for (StringId i = 0; i < kCount; ++i) {
    REQUIRE(pool.intern(text(i)) == i);
    views.push_back(pool[i]);
  }
  const StringPool moved = std::move(pool);
  REQUIRE(moved.size() == kCount);
  for (StringId i = 0; i < kCount; ++i) {
    REQUIRE(views[i] == text(i));
    REQUIRE(moved[i].data() == views[i].data());
    REQUIRE(moved.find(text(i)) == i);
  }
}

TEST_CASE("strings longer than a block of memory are kept whole", "[base]") {
  StringPool pool;
  const std::string longest(3 << 20, 'x');
  pool.intern("before");
  const StringId id = pool.intern(longest);
  pool.intern("after");
  CHECK(pool[id] == longest);
  CHECK(pool[id - 1] == "before");
  CHECK(pool[id + 1] == "after");
  CHECK(pool.find(longest) == id);
}

TEST_CASE("the hash sees the length and every byte", "[base]") {
  std::set<std::uint64_t> seen;
  for (std::size_t size = 0; size <= 100; ++size) {
    std::string text(size, 'a');
    REQUIRE(seen.insert(hash_bytes(text.data(), size)).second);
    for (char& c : text) {
      c = 'b';
      REQUIRE(seen.insert(hash_bytes(text.data(), size)).second);
      c = 'a';
    }
  }
}

TEST_CASE("nobody can choose strings that collide", "[base]") {
  // With constants that everybody knows, a first word equal to one of them makes the hash of all
  // strings that begin with it the same.
  constexpr std::uint64_t kOfWyhash[] = {0xa0761d6478bd642f, 0xe7037ed1a0b428db,
                                         0x8ebc6af09c88c6e3};
  for (const std::uint64_t word : kOfWyhash) {
    StringPool pool;
    constexpr StringId kStrings = 400'000;
    for (StringId i = 0; i < kStrings; ++i) {
      char text[16];
      const std::uint64_t first = word ^ sizeof text, second = i;
      std::memcpy(text, &first, 8);
      std::memcpy(text + 8, &second, 8);
      pool.intern({text, sizeof text});
    }
    CHECK(pool.size() == kStrings);
  }
}

TEST_CASE("a pool takes over the strings of another one", "[base]") {
  StringPool pool, other, empty;
  pool.intern("a");
  pool.intern("b");
  other.intern("b");
  const std::string longest(3 << 20, 'x');
  other.intern(longest);
  other.intern("");
  const char* const text = other[1].data();
  CHECK(pool.absorb(std::move(other)) == std::vector<StringId>{1, 2, 3});
  CHECK(other.size() == 0);
  CHECK(other.intern("c") == 0);
  CHECK(pool.size() == 4);
  CHECK(pool.text_bytes() == 2 + longest.size());
  CHECK(pool[2].data() == text);  // taken over and not copied
  CHECK(pool.find(longest) == 2);
  CHECK(pool.absorb(StringPool()).empty());
  CHECK(empty.absorb(std::move(pool)) == std::vector<StringId>{0, 1, 2, 3});
  CHECK(empty[2].data() == text);
  CHECK(empty.intern("d") == 4);
}
