#pragma once
// Rows grouped by equal keys, and order statistics of each group: what every table with a row per
// name, per operator or per stream is made of.

#include <cstdint>
#include <span>
#include <vector>

namespace traceap {

struct RowGroups {
  /// First row of each group; ascending, so groups are in order of their first row.
  std::vector<std::int64_t> first;
  /// Group of each row.
  std::vector<std::int64_t> index;
  /// All rows, group by group, ascending within each.
  std::vector<std::int64_t> rows;
  /// [groups + 1]: where each group begins in `rows`.
  std::vector<std::int64_t> offsets;

  std::size_t size() const { return first.size(); }
};

/// Groups of rows whose keys are all equal. Keys have equal lengths; there is at least one.
/// O(rows * keys).
RowGroups group_rows(std::span<const std::span<const std::int64_t>> keys);

/// The q-quantile (q in [0, 1]) of each group's values, linear between neighbours: definition 7 of
/// Hyndman and Fan, Sample Quantiles in Statistical Packages, 1996. NaN sorts last. O(rows).
std::vector<double> group_quantiles(const RowGroups& groups, std::span<const double> values,
                                    double q);

}  // namespace traceap
