#include <cstdint>
#include <limits>
#include <vector>

#include "catch.hpp"
#include "traceap/base/ids.hpp"
#include "traceap/base/narrow_column.hpp"

using namespace traceap;

namespace {

using Ids = NarrowColumn<std::int64_t, kNoId>;
using Codes = NarrowColumn<std::uint32_t, kNoString>;

const std::vector<std::int64_t> kEdges{0,
                                       254,
                                       kNoId,
                                       255,
                                       65'534,
                                       65'535,
                                       4'294'967'294,
                                       4'294'967'295,
                                       -1,
                                       std::numeric_limits<std::int64_t>::max(),
                                       std::numeric_limits<std::int64_t>::min() + 1};

}  // namespace

TEST_CASE("a narrow column gives back every value, whichever needs it wider", "[base]") {
  for (std::size_t count = 0; count <= kEdges.size(); ++count) {
    const std::vector<std::int64_t> values(kEdges.begin(),
                                           kEdges.begin() + static_cast<std::ptrdiff_t>(count));
    Ids one_by_one, at_once;
    for (const std::int64_t value : values) one_by_one.push_back(value);
    at_once.append(values);
    CHECK(one_by_one.values() == values);
    CHECK(at_once.values() == values);
  }
}

TEST_CASE("the highest code of every width is a value of the next one", "[base]") {
  Codes codes;
  const std::vector<std::uint32_t> values{255, kNoString, 65'535, 7, kNoString - 1};
  for (const std::uint32_t value : values) codes.push_back(value);
  CHECK(codes.values() == values);
}

TEST_CASE("setting a value widens the others with it", "[base]") {
  Ids ids;
  ids.append(std::vector<std::int64_t>{1, kNoId, 3});
  ids.set(1, 1'000'000'000'000);
  ids.set(0, kNoId);
  CHECK(ids.values() == std::vector<std::int64_t>{kNoId, 1'000'000'000'000, 3});
}

TEST_CASE("rows are picked at every width", "[base]") {
  for (const std::int64_t largest :
       {std::int64_t{9}, std::int64_t{900}, std::int64_t{90'000}, std::int64_t{9'000'000'000}}) {
    Ids ids;
    ids.append(std::vector<std::int64_t>{largest, kNoId, 2});
    const std::vector<std::uint32_t> rows{2, 1, 0, 0};
    CHECK(ids.pick(rows).values() == std::vector<std::int64_t>{2, kNoId, largest, largest});
  }
}
