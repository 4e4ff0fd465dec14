#include <map>
#include <random>

#include "catch.hpp"
#include "traceap/base/error.hpp"
#include "traceap/simulation/edge_lags.hpp"

using namespace traceap;

namespace {

using Numbers = std::vector<std::int64_t>;

LagView view_of(const EdgeLags& lags) { return {lags.edges, lags.lags_ns}; }

}  // namespace

TEST_CASE("Of two lags for one edge the later holds, few or many") {
  for (const std::int64_t edges : {10, 1'000, 100'000}) {
    std::mt19937 random(static_cast<unsigned>(edges));
    std::vector<EdgeLags> changes(3);
    std::map<std::int64_t, std::int64_t> expected;
    for (EdgeLags& change : changes) {
      for (int i = 0; i < 200; ++i) {
        change.edges.push_back(static_cast<std::int64_t>(random()) % edges);
        change.lags_ns.push_back(static_cast<std::int64_t>(random()) % 1'000);
        expected[change.edges.back()] = change.lags_ns.back();
      }
    }
    const std::vector<LagView> views{view_of(changes[0]), view_of(changes[1]), view_of(changes[2])};
    const EdgeLags found = later_lags(views);
    EdgeLags wanted;
    for (const auto& [edge, lag_ns] : expected) {
      wanted.edges.push_back(edge);
      wanted.lags_ns.push_back(lag_ns);
    }
    CHECK(found.edges == wanted.edges);
    CHECK(found.lags_ns == wanted.lags_ns);
  }
  CHECK(later_lags({}).edges.empty());
}

TEST_CASE("Numbers that no edge has are refused") {
  const Numbers edges{5, -1}, lags{1, 2};
  const std::vector<LagView> changes{{edges, lags}};
  CHECK_THROWS_AS(later_lags(changes), SchemaError);
  const Numbers cost{10}, outside{1}, lag{3};
  CHECK_THROWS_AS(both_lags(cost, {outside, lag}, {outside, lag}), SchemaError);
}

TEST_CASE("Where both change an edge their ratios are multiplied") {
  const Numbers cost{100, 100, 0, 0, 7, 5'000'000'000};
  const Numbers one{0, 1, 2, 4, 5}, one_ns{50, 30, 8, 3, 5'000'000'000};
  const Numbers other{1, 2, 3, 4, 5}, other_ns{50, 5, 9, 4, 9'000'000'000'000'000'000};
  const EdgeLags both = both_lags(cost, {one, one_ns}, {other, other_ns});
  CHECK(both.edges == Numbers{0, 1, 2, 3, 4, 5});
  // 30/100 of 50/100; what costs nothing has no ratio; 3 * 4/7 rounds up; the last stops at 64
  // bits.
  CHECK(both.lags_ns == Numbers{50, 15, 8, 9, 2, 9'000'000'000'000'000'000});
  const Numbers most{9'000'000'000'000'000'000}, unit{1}, edge{0};
  CHECK(both_lags(unit, {edge, most}, {edge, most}).lags_ns.front() > most.front());
}
