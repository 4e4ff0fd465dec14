#include <random>
#include <unordered_map>

#include "catch.hpp"
#include "traceap/base/flat_map.hpp"

using namespace traceap;

TEST_CASE("A flat map holds what a map of the standard library does") {
  std::mt19937 random(7);
  FlatMap<int> flat;
  std::unordered_map<std::uint64_t, int> known;
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t key = mix(0, random() % 5'000);
    flat[key] += i;
    known[key] += i;
  }
  REQUIRE(flat.size() == known.size());
  for (const auto& [key, value] : known) REQUIRE(*flat.find(key) == value);
  std::size_t visited = 0;
  flat.for_each([&](std::uint64_t key, int value) {
    REQUIRE(known.at(key) == value);
    ++visited;
  });
  REQUIRE(visited == known.size());
  REQUIRE(flat.find(mix(0, 5'000)) == nullptr);
  REQUIRE(FlatMap<int>().find(1) == nullptr);
}

TEST_CASE("Hashes of small numbers are those of no other pair") {
  std::unordered_map<std::uint64_t, std::pair<std::uint64_t, std::uint64_t>> pairs;
  for (std::uint64_t a = 0; a < 300; ++a) {
    for (std::uint64_t b = 0; b < 300; ++b) pairs.emplace(mix(a, b), std::pair(a, b));
  }
  REQUIRE(pairs.size() == 300 * 300);
}
