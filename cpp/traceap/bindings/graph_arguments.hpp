#pragma once
// How ranks and matched collectives come from Python to a graph of dependencies.

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "traceap/analysis/dependencies/dependency_graph.hpp"
#include "traceap/bindings/handles.hpp"

namespace traceap::bindings {

/// Table, tree, offset in ns.
using RankArgument = std::tuple<TablePtr, std::shared_ptr<BoundTree>, std::int64_t>;
/// (rank index, GPU row) of each member of one collective.
using MemberArgument = std::vector<std::pair<std::uint32_t, Row>>;

/// Views of the tables and trees, which the caller keeps alive. Throws SchemaError where a tree was
/// built from another table.
inline std::vector<GraphRank> graph_ranks(const std::vector<RankArgument>& ranks) {
  std::vector<GraphRank> parts;
  for (const auto& [table, tree, offset_ns] : ranks) {
    parts.push_back({table.get(), &tree_of(table, *tree), offset_ns});
  }
  return parts;
}

inline std::vector<CollectiveMembers> graph_collectives(
    const std::vector<MemberArgument>& collectives) {
  std::vector<CollectiveMembers> groups(collectives.size());
  for (std::size_t i = 0; i < collectives.size(); ++i) {
    for (const auto& [rank, row] : collectives[i]) groups[i].push_back({rank, row});
  }
  return groups;
}

}  // namespace traceap::bindings
