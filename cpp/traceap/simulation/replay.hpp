#pragma once
// The engine: when everything happens, in a graph as it is or with an edit.

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "traceap/simulation/execution_graph.hpp"
#include "traceap/simulation/graph_delta.hpp"

namespace traceap {

struct ReplayOptions {
  bool with_residuals = true;
};

/// Time of a point that does not happen in a copy of a chain.
inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::min();

/// Time of each point, ns of the common clock; times stop at the ends of 64 bits. O(points +
/// edges), deterministic. Added edges that close a cycle are left out (closing_edges). Throws
/// SchemaError for an edit that names edges or points outside the graph.
std::vector<std::int64_t> replay(const ExecutionGraph& graph, const GraphDelta& delta = {},
                                 const ReplayOptions& options = {});

/// Copies of the run one behind the other, for traces of one iteration: `carries` lead from points
/// of a copy to points of the next. A point that nothing leads to happens as measured in the first
/// copy, and in the others only if a carry leads there; otherwise it and what needs nothing else
/// is kNever. Returns copies x points. O(copies x (points + edges + carries)). Throws like replay.
std::vector<std::int64_t> replay_chain(const ExecutionGraph& graph,
                                       std::span<const PlainEdge> carries, std::uint32_t copies,
                                       const GraphDelta& delta = {},
                                       const ReplayOptions& options = {});

/// Added edges of an edit, by index, that every replay leaves out because they close a cycle: those
/// that contradict the measured times most.
std::vector<std::uint32_t> closing_edges(const ExecutionGraph& graph, const GraphDelta& delta);

/// Whose ends are asked for: points grouped by step.
struct StepWork {
  std::span<const Point> points;
  std::span<const std::uint32_t> offsets;  ///< steps + 1

  std::size_t steps() const { return offsets.size() - 1; }
};

/// What many edits do to the ends of steps.
struct BatchEnds {
  std::vector<std::int64_t> end_ns;  ///< deltas x copies x steps; kNever for steps without points
  std::vector<std::uint32_t> left_out;  ///< by delta: added edges that would have closed a cycle
};

/// Replays many edits of one graph, and keeps what each replay needs of its own for the next batch.
class BatchReplayer {
 public:
  /// `graph` must outlive this; `work` and `carries`, as replay_chain takes them, are copied.
  /// Throws SchemaError as replay_chain does, for offsets that don't ascend to the number of
  /// points, and for points outside the graph.
  BatchReplayer(const ExecutionGraph& graph, const StepWork& work,
                std::span<const PlainEdge> carries = {});
  ~BatchReplayer();
  BatchReplayer(const BatchReplayer&) = delete;
  BatchReplayer& operator=(const BatchReplayer&) = delete;

  /// When all work of each step has ended, with each edit (nullptr: none): the maxima over the work
  /// of what replay_chain returns, on as many threads as that is worth. One call at a time: others
  /// wait. Throws like replay.
  BatchEnds run(std::span<const GraphDelta* const> deltas, std::uint32_t copies = 1,
                const ReplayOptions& options = {});
  std::size_t steps() const;

  struct State;  ///< of replay_batch.cpp

 private:
  std::unique_ptr<State> state_;
};

/// The edge on which each point waited longest in a replay; kNoEdge for points without edges.
std::vector<EdgeId> binding_edges(const ExecutionGraph& graph,
                                  std::span<const std::int64_t> time_ns,
                                  const ReplayOptions& options = {});

}  // namespace traceap
