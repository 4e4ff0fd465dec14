#include <vector>

#include "catch.hpp"
#include "traceap/base/offsets.hpp"

using namespace traceap;

namespace {

struct Sorted {
  std::vector<std::size_t> entries;
  std::vector<std::uint32_t> offsets;
};

/// Places in `group_of`, sorted by what stands there.
Sorted sorted_by(const std::vector<std::size_t>& group_of, std::size_t groups) {
  CountingSort sort(groups);
  for (const std::size_t group : group_of) sort.count(group);
  Sorted result;
  result.entries.resize(sort.start_placing());
  for (std::size_t i = 0; i < group_of.size(); ++i) result.entries[sort.place(group_of[i])] = i;
  result.offsets = sort.take_offsets();
  return result;
}

}  // namespace

TEST_CASE("entries are grouped in the order in which they come", "[base]") {
  const Sorted sorted = sorted_by({2, 0, 2, 3, 0}, 5);
  CHECK(sorted.entries == std::vector<std::size_t>{1, 4, 0, 2, 3});
  CHECK(sorted.offsets == std::vector<std::uint32_t>{0, 2, 2, 4, 5, 5});
}

TEST_CASE("no entries and no groups have offsets too", "[base]") {
  CHECK(sorted_by({}, 3).offsets == std::vector<std::uint32_t>{0, 0, 0, 0});
  CHECK(sorted_by({}, 0).offsets == std::vector<std::uint32_t>{0});
  CHECK(sorted_by({0, 0}, 1).offsets == std::vector<std::uint32_t>{0, 2});
}
