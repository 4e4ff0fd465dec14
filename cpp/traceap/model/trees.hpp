#pragma once
// Decision trees that were learned elsewhere, as flat arrays: boosted trees, isolation forests.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace traceap {

/// The splits of all trees behind each other. A child >= 0 is a split, a child < 0 the leaf ~child.
struct TreeArrays {
  std::vector<std::int32_t> feature;  ///< [splits] the column that is compared
  std::vector<double> threshold;      ///< [splits] left where the value is at most this
  std::vector<std::int32_t> left;     ///< [splits]
  std::vector<std::int32_t> right;    ///< [splits]
  std::vector<double> leaf;           ///< [leaves] what a tree adds to its output
  std::vector<std::int32_t> root;     ///< [trees] as a child
  std::vector<std::int32_t> output;   ///< [trees] the output that a tree adds to
  std::int32_t column_count = 0;
  std::int32_t output_count = 1;
};

/// Trees whose arrays have been checked: no index leads out of them, and as every child stands
/// behind its parent, every walk ends.
class Trees {
 public:
  /// Throws SchemaError for arrays that are no trees, such as damaged weights.
  explicit Trees(TreeArrays arrays);

  std::size_t column_count() const { return static_cast<std::size_t>(arrays_.column_count); }
  std::size_t output_count() const { return static_cast<std::size_t>(arrays_.output_count); }
  const TreeArrays& arrays() const { return arrays_; }

  /// Row-major [rows, output_count]: sums of leaves. `values` is row-major [rows, column_count];
  /// throws SchemaError if its size is no multiple of column_count. What is not a number goes
  /// right.
  std::vector<double> sums(std::span<const double> values) const;

 private:
  double leaf_of(std::int32_t node, const double* row) const;

  TreeArrays arrays_;
};

}  // namespace traceap
