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
  bool leads_to(Point destination) const { return leads_to_[destination] != 0; }
  /// Sum of the lags, whatever their sign; see Note [Bounded times].
  std::uint64_t span_ns() const { return span_ns_; }

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
  std::uint64_t span_ns_ = 0;
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
  /// Number of the copy.
  std::uint32_t copy = 0;
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
  /// `orders`: where to look for those of edits, if anywhere; it must outlive this.
  Replayer(const ExecutionGraph& graph, const ReplayOptions& options,
           KnownOrders* orders = nullptr);

  /// Takes the place of the edit before; nullptr: none. Throws like replay.
  void edit(const GraphDelta* delta);
  /// Added edges of the edit that close a cycle.
  const std::vector<std::uint32_t>& left_out() const { return order().left_out; }
  /// Does the edit need an order of its own?
  bool is_reordered() const { return !order().order.empty(); }
  /// Sum of all lags, as that of EdgesByDestination.
  std::uint64_t span_ns() const {
    return own_span_ns_ + edit_span_ns_ + added_.span_ns() + carried_.span_ns();
  }

 private:
  template <std::size_t kPasses, bool kBounded>
  friend class Passes;

  std::int64_t own_lag_ns(EdgeId edge) const;
  void restore();
  void patch(const GraphDelta& delta);
  void add(const GraphDelta& delta);
  const EditedOrder& order() const { return order_ ? *order_ : kAsItIs; }

  static const EditedOrder kAsItIs;

  const ExecutionGraph& graph_;
  ReplayOptions options_;
  KnownOrders* orders_;
  std::vector<std::int64_t> lag_ns_;  // by slot; kNever for edges that are gone
  std::vector<std::uint8_t> held_;    // by position
  std::uint64_t own_span_ns_ = 0;     // of the graph's lags
  std::uint64_t edit_span_ns_ = 0;    // of those that the edit sets
  const GraphDelta* edit_ = nullptr;
  EdgesByDestination added_, carried_;
  KnownOrders::Shared order_;  // the edit's; nullptr: as it is
};

}  // namespace traceap
