#include <algorithm>
#include <array>

#include "exercises.hpp"
#include "traceap/analysis/compat/compat_nesting.hpp"
#include "traceap/analysis/compat/hta_graph.hpp"

namespace traceap::fuzz {
namespace {

void check_nesting(const Rank& rank, bool python_frames) {
  const CompatNesting nesting = build_compat_nesting(rank.table, {python_frames});
  check(nesting.parent.size() == rank.size(), "a parent for each row");
  check(nesting.subtree_end.size() == nesting.rows.size(), "an end for each kept row");
  for (const Row row : nesting.parent) check_row(rank.table, row);
  for (std::size_t i = 0; i < nesting.rows.size(); ++i) {
    check(nesting.subtree_end[i] > i && nesting.subtree_end[i] <= nesting.rows.size(), "an end");
  }
}

void check_path(const Rank& rank, Choices& choices) {
  static constexpr std::array<std::string_view, 4> kAnnotations{"", "ProfilerStep", "aten", "e"};
  HtaOptions options;
  options.annotation = choices.of(kAnnotations);
  options.first_instance = static_cast<std::uint32_t>(choices.below(3));
  options.last_instance = options.first_instance + static_cast<std::uint32_t>(choices.below(3));
  options.zero_weight_launch_edges = !choices.flag();
  options.keep_last_step = choices.flag();
  options.runtime_lock = options.merge_backward = options.limit_kernel_gaps = !choices.flag();
  const HtaPath path = find_hta_path(rank.table, options);
  for (const HtaEdge& edge : path.path_edges) {
    check(std::max(edge.begin, edge.end) < path.node_us.size(), "an edge between nodes");
    check_row(rank.table, edge.row);
  }
}

}  // namespace

void exercise_compat(const Rank& rank, Choices& choices) {
  check_nesting(rank, choices.flag());
  check_path(rank, choices);
}

}  // namespace traceap::fuzz
