#include <cmath>
#include <limits>
#include <vector>

#include "catch.hpp"
#include "traceap/base/error.hpp"
#include "traceap/model/trees.hpp"

using namespace traceap;

namespace {

/// Output 0: column 0 <= 1 ? 10 : (column 1 <= -2 ? 20 : 30). Output 1: always 5.
TreeArrays two_trees() {
  return {.feature = {0, 1},
          .threshold = {1.0, -2.0},
          .left = {~0, ~1},
          .right = {1, ~2},
          .leaf = {10.0, 20.0, 30.0, 5.0},
          .root = {0, ~3},
          .output = {0, 1},
          .column_count = 2,
          .output_count = 2};
}

}  // namespace

TEST_CASE("a row goes left where its value is at most the threshold", "[model]") {
  const Trees trees(two_trees());
  const std::vector<double> rows{1.0, 0.0, 1.5, -2.0, 1.5, -1.9};
  CHECK(trees.sums(rows) == std::vector<double>{10, 5, 20, 5, 30, 5});
  CHECK(trees.sums({}).empty());
}

TEST_CASE("trees of one output add up", "[model]") {
  TreeArrays arrays = two_trees();
  arrays.output = {0, 0};
  arrays.output_count = 1;
  CHECK(Trees(arrays).sums(std::vector<double>{0.0, 0.0}) == std::vector<double>{15});
}

TEST_CASE("no trees give zeros, odd values a leaf", "[model]") {
  CHECK(Trees({.column_count = 3}).sums(std::vector<double>{1, 2, 3}) == std::vector<double>{0});
  const Trees trees(two_trees());
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(trees.sums(std::vector<double>{std::nan(""), std::nan("")})[0] == 30);
  CHECK(trees.sums(std::vector<double>{-infinity, infinity})[0] == 10);
}

TEST_CASE("rows of another width are refused", "[model]") {
  CHECK_THROWS_AS(Trees(two_trees()).sums(std::vector<double>{1, 2, 3}), SchemaError);
}

TEST_CASE("arrays that are no trees are refused", "[model]") {
  const auto refused = [](auto change) {
    TreeArrays arrays = two_trees();
    change(arrays);
    CHECK_THROWS_AS(Trees(arrays), SchemaError);
  };
  refused([](TreeArrays& a) { a.feature[0] = 2; });
  refused([](TreeArrays& a) { a.feature[0] = -1; });
  refused([](TreeArrays& a) { a.threshold[1] = std::nan(""); });
  refused([](TreeArrays& a) { a.threshold.pop_back(); });
  refused([](TreeArrays& a) { a.left[0] = 0; });   // its own parent: a walk without end
  refused([](TreeArrays& a) { a.right[1] = 0; });  // back
  refused([](TreeArrays& a) { a.right[1] = 2; });
  refused([](TreeArrays& a) { a.left[1] = ~4; });
  refused([](TreeArrays& a) { a.left[1] = std::numeric_limits<std::int32_t>::min(); });
  refused([](TreeArrays& a) { a.leaf[2] = std::numeric_limits<double>::infinity(); });
  refused([](TreeArrays& a) { a.root[0] = 7; });
  refused([](TreeArrays& a) { a.root[1] = ~4; });
  refused([](TreeArrays& a) { a.output[0] = 2; });
  refused([](TreeArrays& a) { a.output.pop_back(); });
  refused([](TreeArrays& a) { a.output_count = 0; });
  refused([](TreeArrays& a) { a.column_count = -1; });
}
