#pragma once
// A graph with one edit after the other, ready to be replayed. Private to simulation/.

#include <cstdint>
#include <span>
#include <vector>

#include "traceap/simulation/edited_order.hpp"
#include "traceap/simulation/replay.hpp"

namespace traceap {

/// Edges between positions of a graph's order by destination, each list in the order in which they
/// were added.
class EdgesByDestination {
 public:
  explicit EdgesByDestination(const ExecutionGraph& graph)
      : graph_(graph), leads_to_(graph.size(), 0) {}

  /// Takes the place of the edges before. They must lie inside the graph.
  void assign(std::vector<PlainEdge> edges);
  /// The same for edges between points.
  void assign_points(std::span<const PlainEdge> edges);
  bool empty() const { return edges_.empty(); }

  /// visit(edge) of all edges to a position.
  template <typename Visit>
  void to(Point destination, Visit visit) const {
    if (!leads_to_[destination]) return;
    for (auto it = first_to(destination); it != edges_.end() && it->destination == destination;
         ++it) {
      visit(*it);
    }
  }

 private:
  std::vector<PlainEdge>::const_iterator first_to(Point destination) const;

  const ExecutionGraph& graph_;
  std::vector<PlainEdge> edges_;
  std::vector<std::uint8_t> leads_to_;  // by position
};

/// Edges between points as edges between their positions.
std::vector<PlainEdge> edges_by_position(const ExecutionGraph& graph,
                                         std::span<const PlainEdge> edges);
/// By slot of the layout: is the edge one of these?
std::vector<std::uint8_t> slots_of(const ExecutionGraph& graph, std::span<const EdgeId> edges);

class Replayer;

/// One of several replays. Times are by position in the graph's order.
struct Pass {
  const Replayer* replayer;
  std::span<std::int64_t> time_ns;
  /// Of the copy before, in a chain; empty: this is the first.
  std::span<const std::int64_t> before;
};

/// So many go side by side: while one waits for memory, the others go on. Four take 1.8 times as
/// long as one.
inline constexpr std::size_t kMostPasses = 4;

/// Times of all points in each pass, of which all are the first copy or none is. `carries` lead to
/// a copy from the one before, in all passes.
void run_passes(std::span<const Pass> passes, const EdgesByDestination& carries);

/// A graph with an edit. The lags are copied once; an edit touches its own edges alone, and puts
/// them back.
class Replayer {
 public:
  Replayer(const ExecutionGraph& graph, const ReplayOptions& options);

  /// Takes the place of the edit before; nullptr: none. Throws like replay.
  void edit(const GraphDelta* delta);
  /// Added edges of the edit that close a cycle.
  const std::vector<std::uint32_t>& left_out() const { return left_out_; }
  /// Does the edit need an order of its own?
  bool is_reordered() const { return !reordered_.empty(); }

 private:
  template <std::size_t kPasses>
  friend class Passes;

  std::int64_t own_lag_ns(EdgeId edge) const;
  void restore();
  void patch(const GraphDelta& delta);
  void add(const GraphDelta& delta);

  const ExecutionGraph& graph_;
  ReplayOptions options_;
  std::vector<std::int64_t> lag_ns_;  // by slot; kNever for edges that are gone
  std::vector<std::uint8_t> held_;    // by position
  const GraphDelta* edit_ = nullptr;
  EdgesByDestination added_, carried_;
  std::vector<std::uint32_t> reordered_;  // positions; empty: as they are
  std::vector<std::uint32_t> left_out_;
};

}  // namespace traceap
