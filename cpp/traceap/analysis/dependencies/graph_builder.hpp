#pragma once
// Collects points and edges of a DependencyGraph. Private to analysis/.

#include <cstdint>
#include <vector>

#include "traceap/analysis/dependencies/dependency_graph.hpp"

namespace traceap {

/// Clocks of host and GPU agree to a few microseconds: a wait whose GPU work ends this much after
/// the call returned is still that wait.
inline constexpr std::int64_t kClockJitterNs = 20'000;

/// Points of one rank by row.
struct RankPoints {
  std::vector<Point> begin, end;  ///< by row; kNoPoint for rows that have none
};

class GraphBuilder {
 public:
  explicit GraphBuilder(std::size_t ranks) : points_(ranks) {}

  void start_lane(std::uint32_t rank, Lane::Kind kind, std::uint32_t index);
  void end_lane();
  Point add_point(std::int64_t time_ns, Row row, bool is_end);
  void add_edge(Point source, Point destination, Row owner, DependencyKind kind, Evidence evidence);
  /// The same where clocks may disagree a little: an end that lies up to `jitter_ns` behind the
  /// destination is moved to it. Returns whether the edge was added.
  bool add_edge_within(std::int64_t jitter_ns, Point source, Point destination, Row owner,
                       DependencyKind kind, Evidence evidence);

  std::int64_t time_ns(Point point) const { return graph_.time_ns[point]; }
  const std::vector<Lane>& lanes() const { return graph_.lanes; }
  const Lane& lane_of(Point point) const { return graph_.lanes[graph_.lane[point]]; }
  RankPoints& points(std::uint32_t rank) { return points_[rank]; }
  /// Latest point of a thread that lies before (with `inclusive`, or at) a time; kNoPoint: none.
  Point point_before(const Lane& thread, std::int64_t time_ns, bool inclusive) const;

  DependencyGraph finish();

 private:
  struct Edge {
    Point source, destination;
    Row owner;
    DependencyKind kind;
    Evidence evidence;
  };
  DependencyGraph graph_;
  std::vector<RankPoints> points_;
  std::vector<Edge> edges_;
};

/// Adds the edges of one rank that come from calls which wait: streams for streams, the host for
/// the GPU. O(n log n).
void link_waits(GraphBuilder& builder, const GraphRank& rank, std::uint32_t rank_index);

}  // namespace traceap
