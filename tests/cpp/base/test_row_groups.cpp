#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "catch.hpp"
#include "traceap/base/row_groups.hpp"

using namespace traceap;

namespace {

using Key = std::vector<std::int64_t>;

RowGroups grouped(const std::vector<Key>& keys) {
  const std::vector<std::span<const std::int64_t>> spans(keys.begin(), keys.end());
  return group_rows(spans);
}

Key random_key(std::mt19937_64& random, std::size_t rows, std::int64_t distinct) {
  std::uniform_int_distribution<std::int64_t> pick(-distinct / 2, distinct / 2);
  Key key(rows);
  for (auto& value : key) value = pick(random) << 40;  // low bits equal: the hash has to spread
  return key;
}

}  // namespace

TEST_CASE("groups are numbered by their first row and hold their rows in order") {
  const RowGroups groups = grouped({{7, -1, 7, 7, -1}, {0, 0, 1, 0, 0}});
  CHECK(groups.first == Key{0, 1, 2});
  CHECK(groups.index == Key{0, 1, 2, 0, 1});
  CHECK(groups.rows == Key{0, 3, 1, 4, 2});
  CHECK(groups.offsets == Key{0, 2, 4, 5});
}

TEST_CASE("no rows make no groups") {
  const RowGroups groups = grouped({{}});
  CHECK(groups.size() == 0);
  CHECK(groups.offsets == Key{0});
  CHECK(group_quantiles(groups, {}, 0.5).empty());
}

TEST_CASE("groups are those of a map, also with more groups than the table begins with") {
  std::mt19937_64 random(7);
  for (const std::int64_t distinct : {1, 30, 5000}) {
    const std::vector<Key> keys{random_key(random, 6000, distinct), random_key(random, 6000, 4)};
    const RowGroups groups = grouped(keys);
    std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> seen;
    for (std::size_t row = 0; row < keys[0].size(); ++row) {
      const auto next = static_cast<std::int64_t>(seen.size());
      const auto [entry, fresh] = seen.try_emplace({keys[0][row], keys[1][row]}, next);
      REQUIRE(groups.index[row] == entry->second);
      if (fresh) REQUIRE(groups.first[static_cast<std::size_t>(next)] == std::int64_t(row));
    }
    REQUIRE(groups.size() == seen.size());
  }
}

TEST_CASE("quantiles lie between neighbours, NaN counts as largest") {
  const RowGroups groups = grouped({{0, 0, 0, 1, 0, 2, 2}});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> values{40, 10, 20, 5, 30, nan, 1};
  CHECK(group_quantiles(groups, values, 0.5)[0] == 25);
  CHECK(group_quantiles(groups, values, 0.95)[0] == Approx(38.5));
  CHECK(group_quantiles(groups, values, 0)[0] == 10);
  CHECK(group_quantiles(groups, values, 1)[0] == 40);
  CHECK(group_quantiles(groups, values, 0.5)[1] == 5);
  CHECK(group_quantiles(groups, values, 0)[2] == 1);
  CHECK(std::isnan(group_quantiles(groups, values, 1)[2]));
}
