#pragma once
// How ranks come from Python to a graph of dependencies.

#include <memory>
#include <tuple>
#include <vector>

#include "traceap/analysis/dependencies/dependency_graph.hpp"
#include "traceap/bindings/handles.hpp"

namespace traceap::bindings {

/// Table, tree, offset in ns.
using RankArgument = std::tuple<TablePtr, std::shared_ptr<BoundTree>, std::int64_t>;

/// Views of the tables and trees, which the caller keeps alive. Throws SchemaError where a tree was
/// built from another table.
inline std::vector<GraphRank> graph_ranks(const std::vector<RankArgument>& ranks) {
  std::vector<GraphRank> parts;
  for (const auto& [table, tree, offset_ns] : ranks) {
    parts.push_back({table.get(), &tree_of(table, *tree), offset_ns});
  }
  return parts;
}

}  // namespace traceap::bindings
