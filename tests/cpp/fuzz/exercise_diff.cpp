#include "exercises.hpp"
#include "traceap/analysis/compare/comparable_names.hpp"
#include "traceap/analysis/compare/tree_diff.hpp"

namespace traceap::fuzz {
namespace {

/// One code per name stands for the shapes.
std::vector<std::int32_t> dims_of(const Rank& rank) {
  std::vector<std::int32_t> dims(rank.size());
  for (Row row = 0; row < rank.size(); ++row) dims[row] = static_cast<std::int32_t>(row % 3) - 1;
  return dims;
}

void check_diff(const TreeDiff& diff, std::span<const DiffPair> pairs) {
  check_offsets(diff.pair_offsets, pairs.size(), diff.before_row.size());
  for (std::size_t pair = 0; pair < pairs.size(); ++pair) {
    for (std::uint32_t n = diff.pair_offsets[pair]; n < diff.pair_offsets[pair + 1]; ++n) {
      check_row(pairs[pair].before.table, diff.before_row[n]);
      check_row(pairs[pair].after.table, diff.after_row[n]);
      check(diff.before_row[n] != kNoRow || diff.after_row[n] != kNoRow, "a node is a row");
      check(diff.parent[n] == kNoNode || diff.parent[n] < n, "parents before their children");
      check(diff.variant[n] < diff.variant_context.size(), "a node has a variant");
    }
  }
  for (const std::uint32_t context : diff.variant_context) {
    check(context < diff.context_parent.size(), "a variant has a context");
  }
}

/// A trace compared with itself differs in nothing.
void check_itself(const TreeDiff& diff) {
  for (std::size_t n = 0; n < diff.before_row.size(); ++n) {
    check(diff.before_row[n] == diff.after_row[n], "each call of a trace is itself");
  }
}

}  // namespace

void exercise_diff(std::span<const RankPtr> before, std::span<const RankPtr> after) {
  std::vector<std::vector<std::int32_t>> dims;
  dims.reserve(2 * before.size());
  const auto side = [&](const Rank& rank) {
    dims.push_back(dims_of(rank));
    return DiffSide{rank.table, rank.tree, rank.costs, dims.back()};
  };
  std::vector<DiffPair> pairs;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const DiffSide first = side(*before[i]);
    pairs.push_back({first, side(*after[i])});
  }
  const TreeDiff diff = build_tree_diff(pairs);
  check_diff(diff, pairs);
  if (before.data() == after.data()) check_itself(diff);
  for (StringId id = 0; id < before[0]->table.strings.size(); ++id) {
    (void)vendor_free_name(comparable_name(before[0]->table.strings[id]));
  }
}

}  // namespace traceap::fuzz
