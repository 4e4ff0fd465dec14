// Note [Binding predecessor]: an event starts when the last of its dependencies is met, so of all
// edges that lead to a point the one whose source is latest decided its time. What lies between
// the two is the path's next piece; going on from the source, the pieces tile the time back to
// the first point that has no predecessor. Equal times are settled by evidence.

#include "traceap/analysis/dependencies/critical_path.hpp"

#include <algorithm>
#include <limits>

#include "traceap/analysis/idle/host_cursor.hpp"
#include "traceap/analysis/idle/idle.hpp"
#include "traceap/base/interrupt.hpp"

namespace traceap {
namespace {

constexpr std::uint8_t kUndecided = 0xff;

PathCause host_cause(Phase phase) {
  switch (phase) {
    case Phase::kInput:
      return PathCause::kDataLoading;
    case Phase::kForward:
      return PathCause::kHostForward;
    case Phase::kBackward:
      return PathCause::kHostBackward;
    case Phase::kOptimizer:
      return PathCause::kHostOptimizer;
    case Phase::kOther:
      break;
  }
  return PathCause::kHostOther;
}

PathCause gpu_cause(GpuClass gpu_class) {
  if (gpu_class == GpuClass::kCommunication) return PathCause::kCommunication;
  return gpu_class == GpuClass::kMemcpy ? PathCause::kCopy : PathCause::kGpuCompute;
}

/// What the time of a rank's rows goes into.
class RankCauses {
 public:
  explicit RankCauses(const GraphRank& rank)
      : table_(*rank.table),
        tree_(*rank.tree),
        model_(table_, tree_),
        inherited_(table_.size(), kUndecided) {
    // Parents precede their children in host_rows.
    for (const Row row : tree_.host_rows) {
      poll_interrupt();
      const std::uint8_t own = decide(row);
      const Row parent = tree_.parent[row];
      inherited_[row] = own != kUndecided || parent == kNoRow ? own : inherited_[parent];
    }
  }

  PathCause of_host_row(Row row) const {
    if (row == kNoRow) return PathCause::kHostGap;
    if (inherited_[row] != kUndecided) return static_cast<PathCause>(inherited_[row]);
    switch (model_.activity(row)) {
      case HostActivity::kSynchronize:
        return PathCause::kSynchronization;
      case HostActivity::kSyncCopy:
        return PathCause::kCopy;
      case HostActivity::kAsyncCopy:
        if (model_.is_blocking_copy(row)) return PathCause::kCopy;
        break;
      case HostActivity::kAllocator:
        return is_start_up(row) ? PathCause::kCompilation : PathCause::kAllocator;
      case HostActivity::kApiCall:
        if (table_.dur_ns[row] >= kLongCallNs && model_.is_first_use(row)) {
          return PathCause::kCompilation;
        }
        break;
      case HostActivity::kMarker:
        if (tree_.phase[row] == Phase::kOther) return PathCause::kHostGap;
        break;
      default:
        break;
    }
    return host_cause(tree_.phase[row]);
  }

  /// cudaFree(0) and the like create the context.
  bool is_start_up(Row call) const {
    return table_.dur_ns[call] >= kLongCallNs && model_.before_first_launch(call);
  }

  PathCause of_gpu_row(Row row) const { return gpu_cause(tree_.gpu_class[row]); }

 private:
  /// Activities that also claim what runs below them.
  std::uint8_t decide(Row row) const {
    const auto code = [](PathCause cause) { return static_cast<std::uint8_t>(cause); };
    switch (model_.activity(row)) {
      case HostActivity::kDataLoading:
        return code(PathCause::kDataLoading);
      case HostActivity::kCompilation:
        return code(PathCause::kCompilation);
      case HostActivity::kProfiler:
        return code(PathCause::kProfiler);
      case HostActivity::kCommunicationWait:
      case HostActivity::kHostCollective:
        return code(PathCause::kCommunication);
      default:
        return kUndecided;
    }
  }

  const EventTable& table_;
  const EventTree& tree_;
  HostModel model_;
  std::vector<std::uint8_t> inherited_;  ///< by row: cause of the innermost row that decides
};

/// Takes the pieces of a path, from the last to the first.
class PathPieces {
 public:
  virtual ~PathPieces() = default;
  virtual void add(const PathSegment& piece) = 0;
};

class PathWalker {
 public:
  PathWalker(const DependencyGraph& graph, std::span<const GraphRank> ranks, Interval range,
             PathPieces& pieces)
      : graph_(graph), ranks_(ranks), range_(range), pieces_(pieces) {
    for (const GraphRank& rank : ranks) causes_.emplace_back(rank);
  }

  /// Returns the point from which it walks back.
  Point walk() {
    if (range_.end_ns <= range_.start_ns) return kNoPoint;
    const Point anchor = find_anchor();
    Point at = anchor;
    if (at == kNoPoint || graph_.time_ns[at] <= range_.start_ns) {
      add_unknown(range_.start_ns, range_.end_ns, kNoPoint);
      return anchor;
    }
    add_unknown(graph_.time_ns[at], range_.end_ns, at);
    // A path visits a point once; the limit holds even if edges ran in a circle.
    for (Point steps = 0; steps < graph_.size(); ++steps) {
      poll_interrupt();
      if (graph_.time_ns[at] <= range_.start_ns) break;
      const Step step = binding_step(at);
      if (step.edge == kNoEdge) break;
      add_step(at, step);
      at = graph_.source[step.edge];
    }
    add_unknown(range_.start_ns, graph_.time_ns[at], at);
    return anchor;
  }

 private:
  static constexpr std::uint32_t kNoEdge = std::numeric_limits<std::uint32_t>::max();
  struct Step {
    std::uint32_t edge = kNoEdge;
    std::int64_t margin_ns = kNoId;
  };

  /// Threads beside the main one end whenever they do; a watchdog's last poll decides nothing.
  Point find_anchor() const {
    Point anchor = kNoPoint;
    bool any_main = false;
    for (const Lane& lane : graph_.lanes) any_main = any_main || is_main(lane);
    for (const Lane& lane : graph_.lanes) {
      if (lane.kind == Lane::kThread && any_main && !is_main(lane)) continue;
      for (Point p = lane.kind == Lane::kThread ? lane.end - 1 : lane.begin; p < lane.end; ++p) {
        if (anchor == kNoPoint || graph_.time_ns[p] > graph_.time_ns[anchor]) anchor = p;
      }
    }
    return anchor;
  }
  bool is_main(const Lane& lane) const {
    return lane.kind == Lane::kThread && lane.index == ranks_[lane.rank].tree->main_track;
  }

  Step binding_step(Point at) const {
    Step best;
    for (std::uint32_t e = graph_.in_offsets[at]; e < graph_.in_offsets[at + 1]; ++e) {
      if (best.edge == kNoEdge) {
        best.edge = e;
        continue;
      }
      const std::int64_t gained = time_of(e) - time_of(best.edge);
      const bool better =
          gained > 0 || (gained == 0 && graph_.evidence[e] < graph_.evidence[best.edge]);
      const std::int64_t margin = gained > 0 ? gained : -gained;
      if (better) {
        best = {e, margin};
      } else {
        best.margin_ns = best.margin_ns == kNoId ? margin : std::min(best.margin_ns, margin);
      }
    }
    return best;
  }
  std::int64_t time_of(std::uint32_t edge) const { return graph_.time_ns[graph_.source[edge]]; }

  void add_step(Point at, const Step& step) {
    const Row owner = graph_.owner[step.edge];
    const Interval time{time_of(step.edge), graph_.time_ns[at]};
    const Lane& lane = graph_.lanes[graph_.lane[at]];
    const DependencyKind kind = graph_.kind[step.edge];
    add({.start_ns = time.start_ns,
         .end_ns = time.end_ns,
         .rank = lane.rank,
         .row = owner,
         .lane_index = lane.index,
         .lane_kind = lane.kind,
         .cause = cause_of(lane.rank, kind, owner, time.length_ns()),
         .kind = kind,
         .evidence = graph_.evidence[step.edge],
         .margin_ns = step.margin_ns});
  }

  PathCause cause_of(std::uint32_t rank, DependencyKind kind, Row owner,
                     std::int64_t length_ns) const {
    const bool expected = length_ns <= kLaunchLatencyBoundNs;
    switch (kind) {
      case DependencyKind::kProgramOrder:
        return causes_[rank].of_host_row(owner);
      case DependencyKind::kExecution:
        return causes_[rank].of_gpu_row(owner);
      case DependencyKind::kRendezvous:
        return PathCause::kCommunication;
      case DependencyKind::kLaunch:
        return launch_cause(rank, owner, expected);
      case DependencyKind::kStreamOrder:
      case DependencyKind::kStreamWait:
      case DependencyKind::kDeviceBusy:
        return expected ? PathCause::kGpuGap : PathCause::kUnknown;
      case DependencyKind::kHostWait:
        return PathCause::kSynchronization;
      case DependencyKind::kThreadStart:
      case DependencyKind::kThreadJoin:
        return PathCause::kHostGap;
      case DependencyKind::kWorkerPace:
        return PathCause::kDataLoading;
      case DependencyKind::kDeviceOrder:
      case DependencyKind::kQueueLimit:  // this and the next: in simulations only
      case DependencyKind::kCopyEngine:
      case DependencyKind::kGraphOrder:
      case DependencyKind::kTensor:
        break;
    }
    return PathCause::kUnknown;
  }

  /// The owner is the call where the work began while it was open: then a long time is the call's
  /// own, such as staging what is to be copied.
  PathCause launch_cause(std::uint32_t rank, Row owner, bool expected) const {
    if (is_gpu(ranks_[rank].table->kind[owner])) {
      return expected ? PathCause::kLaunchLatency : PathCause::kUnknown;
    }
    const PathCause host = causes_[rank].of_host_row(owner);
    return expected && host != PathCause::kCopy ? PathCause::kLaunchLatency : host;
  }

  void add_unknown(std::int64_t start_ns, std::int64_t end_ns, Point near) {
    const Lane lane =
        near == kNoPoint ? Lane{0, Lane::kCollectives, 0, 0, 0} : graph_.lanes[graph_.lane[near]];
    add({.start_ns = start_ns,
         .end_ns = end_ns,
         .rank = lane.rank,
         .row = kNoRow,
         .lane_index = lane.index,
         .lane_kind = lane.kind,
         .cause = PathCause::kUnknown,
         .kind = DependencyKind::kProgramOrder,
         .evidence = Evidence::kAssumed,
         .margin_ns = kNoId});
  }

  void add(PathSegment segment) {
    segment.start_ns = std::max(segment.start_ns, range_.start_ns);
    segment.end_ns = std::min(segment.end_ns, range_.end_ns);
    if (segment.end_ns > segment.start_ns) pieces_.add(segment);
  }

  const DependencyGraph& graph_;
  std::span<const GraphRank> ranks_;
  const Interval range_;
  PathPieces& pieces_;
  std::vector<RankCauses> causes_;
};

class Segments final : public PathPieces {
 public:
  explicit Segments(CriticalPath& path) : path_(path) {}
  void add(const PathSegment& piece) override {
    const std::int64_t length_ns = piece.end_ns - piece.start_ns;
    path_.total_ns[static_cast<std::size_t>(piece.cause)] += length_ns;
    if (piece.evidence == Evidence::kAssumed || piece.cause == PathCause::kUnknown) {
      path_.assumed_ns += length_ns;
    }
    if (!path_.segments.empty() && continues(path_.segments.back(), piece)) {
      path_.segments.back().start_ns = piece.start_ns;
    } else {
      path_.segments.push_back(piece);
    }
  }

 private:
  /// Stretches of one row between children of no length, and the like.
  static bool continues(const PathSegment& later, const PathSegment& earlier) {
    return later.row == earlier.row && later.rank == earlier.rank &&
           later.lane_kind == earlier.lane_kind && later.lane_index == earlier.lane_index &&
           later.kind == earlier.kind && later.cause == earlier.cause &&
           later.evidence == earlier.evidence && later.margin_ns == kNoId &&
           earlier.margin_ns == kNoId;
  }

  CriticalPath& path_;
};

class Causes final : public PathPieces {
 public:
  explicit Causes(PathCauses& causes) : causes_(causes) {}
  void add(const PathSegment& piece) override {
    if (!causes_.cause.empty() && causes_.cause.back() == piece.cause) return;
    causes_.cause.push_back(piece.cause);
    causes_.end_ns.push_back(piece.end_ns);
  }

 private:
  PathCauses& causes_;
};

}  // namespace

std::string_view path_cause_name(PathCause cause) {
  static constexpr std::array<std::string_view, kPathCauseCount> kNames{
      "data_loading",   "host_forward", "host_backward", "host_optimizer", "host_other",
      "host_gap",       "compilation",  "allocator",     "profiler",       "synchronization",
      "launch_latency", "gpu_compute",  "communication", "copy",           "gpu_gap",
      "unknown"};
  return kNames[static_cast<std::size_t>(cause)];
}

CriticalPath find_critical_path(const DependencyGraph& graph, std::span<const GraphRank> ranks,
                                Interval range) {
  CriticalPath path;
  path.range = range;
  path.points = graph.size();
  path.edges = graph.edges();
  path.segments.reserve(path.points + 2);  // the most there can be; what is left is not touched
  Segments segments(path);
  path.anchor = PathWalker(graph, ranks, range, segments).walk();
  std::reverse(path.segments.begin(), path.segments.end());
  return path;
}

PathCauses find_path_causes(const DependencyGraph& graph, std::span<const GraphRank> ranks,
                            Interval range) {
  PathCauses found;
  Causes causes(found);
  PathWalker(graph, ranks, range, causes).walk();
  std::reverse(found.cause.begin(), found.cause.end());
  std::reverse(found.end_ns.begin(), found.end_ns.end());
  return found;
}

}  // namespace traceap
