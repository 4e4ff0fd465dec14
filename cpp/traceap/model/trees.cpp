#include "traceap/model/trees.hpp"

#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "traceap/base/error.hpp"
#include "traceap/base/interrupt.hpp"

namespace traceap {
namespace {

// So that every index fits into the arrays' type, and sizes that are multiplied do not overflow.
constexpr std::size_t kMaxNodes = std::size_t{1} << 28;

void require(bool holds, const std::string& message) {
  if (!holds) throw SchemaError("trees: " + message);
}

void check_sizes(const TreeArrays& a) {
  const std::size_t splits = a.feature.size();
  require(a.threshold.size() == splits && a.left.size() == splits && a.right.size() == splits,
          "feature, threshold, left and right differ in length");
  require(a.output.size() == a.root.size(), "root and output differ in length");
  require(splits <= kMaxNodes && a.leaf.size() <= kMaxNodes, "too many nodes");
  require(a.column_count > 0 && a.output_count > 0, "there are no columns, or no outputs");
}

bool is_leaf(const TreeArrays& a, std::int32_t child) {
  return child < 0 && static_cast<std::size_t>(~child) < a.leaf.size();
}

bool is_split(const TreeArrays& a, std::int32_t child) {
  return child >= 0 && static_cast<std::size_t>(child) < a.feature.size();
}

void check_splits(const TreeArrays& a) {
  for (std::size_t i = 0; i < a.feature.size(); ++i) {
    poll_interrupt();
    const auto where = [&](std::string_view what) {
      return "split " + std::to_string(i) + ": " + std::string(what);
    };
    require(a.feature[i] >= 0 && a.feature[i] < a.column_count, where("no such column"));
    require(!std::isnan(a.threshold[i]), where("the threshold is not a number"));
    for (const std::int32_t child : {a.left[i], a.right[i]}) {
      const bool behind = is_split(a, child) && static_cast<std::size_t>(child) > i;
      require(behind || is_leaf(a, child), where("a child leads nowhere, or back"));
    }
  }
}

void check_trees(const TreeArrays& a) {
  for (std::size_t t = 0; t < a.root.size(); ++t) {
    const std::string tree = "tree " + std::to_string(t);
    require(is_split(a, a.root[t]) || is_leaf(a, a.root[t]), tree + " has no such root");
    require(a.output[t] >= 0 && a.output[t] < a.output_count, tree + " has no such output");
  }
  for (const double leaf : a.leaf) require(std::isfinite(leaf), "a leaf is not finite");
}

}  // namespace

Trees::Trees(TreeArrays arrays) : arrays_(std::move(arrays)) {
  check_sizes(arrays_);
  check_splits(arrays_);
  check_trees(arrays_);
}

double Trees::leaf_of(std::int32_t node, const double* row) const {
  while (node >= 0) {
    const auto split = static_cast<std::size_t>(node);
    const double value = row[arrays_.feature[split]];
    node = value <= arrays_.threshold[split] ? arrays_.left[split] : arrays_.right[split];
  }
  return arrays_.leaf[static_cast<std::size_t>(~node)];
}

std::vector<double> Trees::sums(std::span<const double> values) const {
  if (values.size() % column_count() != 0) {
    throw SchemaError("trees: the values are no rows of " + std::to_string(column_count()));
  }
  const std::size_t rows = values.size() / column_count();
  std::vector<double> sums(rows * output_count(), 0.0);
  for (std::size_t r = 0; r < rows; ++r) {
    const double* row = values.data() + r * column_count();
    double* out = sums.data() + r * output_count();
    for (std::size_t t = 0; t < arrays_.root.size(); ++t) {
      poll_interrupt();
      out[arrays_.output[t]] += leaf_of(arrays_.root[t], row);
    }
  }
  return sums;
}

}  // namespace traceap
