#pragma once
// Two call trees made one: which call of one recording is which of the other.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "traceap/analysis/costs/gpu_costs.hpp"
#include "traceap/base/string_pool.hpp"
#include "traceap/table/event_table.hpp"
#include "traceap/tree/event_tree.hpp"

namespace traceap {

/// By what two calls were taken for the same; their parents are the same in any case.
enum class MatchedBy : std::uint8_t {
  kNameAndShape = 0,
  kName,
  kPosition,   ///< renamed: the only ones left between two matched neighbours
  kUnmatched,  ///< in one recording only
};

/// One recording of a rank. `dims` has a code per row, -1 where absent; equal codes on both sides
/// mean equal shapes.
struct DiffSide {
  const EventTable& table;
  const EventTree& tree;
  const GpuCosts& costs;
  std::span<const std::int32_t> dims;
};

struct DiffPair {
  DiffSide before, after;
};

inline constexpr std::uint32_t kNoNode = 0xffffffffU;

/// Calls that launch GPU work (all operators where a side has no GPU events): operators, ranges
/// and nn.Module frames. Python's other frames and API calls are no nodes: what they do belongs to
/// the node around them. So are steps, ranges or module frames where only one side has them at all.
struct TreeDiff {
  // Nodes: all pairs after each other, each in pre-order.
  std::vector<std::uint32_t> pair_offsets;  ///< pairs + 1
  std::vector<Row> before_row, after_row;   ///< kNoRow on the side that lacks it
  std::vector<std::uint32_t> parent;        ///< node, or kNoNode
  std::vector<std::uint16_t> depth;         ///< saturates
  std::vector<MatchedBy> matched_by;
  std::vector<std::uint32_t> variant;  ///< of its context

  // Contexts: calls of one name below calls of one context, whichever call of it. A call that has
  // no partner belongs to the context of its name nevertheless.
  std::vector<std::uint32_t> context_parent;            ///< kNoNode at the top
  std::vector<StringId> context_before, context_after;  ///< comparable name; kNoString: none there
  // Variants of a context: calls of equal shapes.
  std::vector<std::uint32_t> variant_context;
  std::vector<std::int32_t> variant_before_dims, variant_after_dims;  ///< codes; -1 absent
  std::vector<MatchedBy> variant_matched_by;                          ///< the best of its calls
  StringPool names;

  /// Per pair and row: the node of a host row, or the innermost around it; of a GPU event that of
  /// its launch, else of its op. kNoNode if there is none.
  std::vector<std::vector<std::uint32_t>> before_node, after_node;
};

/// Threads are paired first: the main ones, the others by what they run. Then, from the top, the
/// children of a matched pair are aligned (align_sequences), names freed of numbers and vendors,
/// equal shapes and equal subtrees deciding between equal names. A call without partner that only
/// wraps calls which have one is opened: its children are aligned in its place. So are different
/// calls on both sides that wrap the same ones.
/// O(n log n) where the recordings are alike.
TreeDiff build_tree_diff(std::span<const DiffPair> pairs);

}  // namespace traceap
