#pragma once
// A graph with one edit after the other, ready to be replayed. Private to simulation/.

#include <cstdint>
#include <span>
#include <vector>

#include "traceap/simulation/edited_order.hpp"
#include "traceap/simulation/replay.hpp"

namespace traceap {

/// Edges by destination, each list in the order in which they were added.
class EdgesByDestination {
 public:
  explicit EdgesByDestination(Point points) : leads_to_(points, 0) {}

  /// Takes the place of the edges before. They must lie inside the graph.
  void assign(std::vector<PlainEdge> edges);
  bool empty() const { return edges_.empty(); }

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

  std::vector<PlainEdge> edges_;
  std::vector<std::uint8_t> leads_to_;  // by point
};

/// The lags are copied once; an edit touches its own edges alone, and puts them back.
class Replayer {
 public:
  Replayer(const ExecutionGraph& graph, const ReplayOptions& options);

  /// Takes the place of the edit before; nullptr: none. Throws like replay.
  void edit(const GraphDelta* delta);
  /// Added edges of the edit that close a cycle.
  const std::vector<std::uint32_t>& left_out() const { return left_out_; }

  /// Times of all points.
  void run(std::span<std::int64_t> time_ns) const;
  /// ... of one more copy behind the one at `before`.
  void run_behind(std::span<const std::int64_t> before, const EdgesByDestination& carries,
                  std::span<std::int64_t> time_ns) const;

 private:
  const std::vector<Point>& order() const { return reordered_.empty() ? graph_.order : reordered_; }
  std::int64_t own_lag_ns(EdgeId edge) const;
  void restore();
  void patch(const GraphDelta& delta);

  const ExecutionGraph& graph_;
  ReplayOptions options_;
  std::vector<std::int64_t> lag_ns_;  // by edge; kNever for edges that are gone
  const GraphDelta* edit_ = nullptr;
  EdgesByDestination added_;
  std::vector<Point> reordered_;
  std::vector<std::uint32_t> left_out_;
};

}  // namespace traceap
