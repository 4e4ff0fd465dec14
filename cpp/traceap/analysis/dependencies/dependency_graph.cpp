// Points and the edges of threads, streams, launches, hand-overs and collectives; what waits for
// what is in graph_waits.cpp.
//
// Note [Points of a thread]: rows of a thread nest, so its points are the beginnings and ends of
// its rows in order, and each stretch between two neighbours belongs to the innermost open row. A
// row that overlaps its neighbour instead of nesting closes it where it begins itself; ends that
// stick out of their parent by the nesting tolerance push the parent's end back. So times of a
// thread never decrease.
//
// Note [Silent thread]: the autograd engine runs backward on threads of its own while the thread
// that called it records nothing. Work of such a thread that lies between two neighbouring points
// of the calling thread was therefore handed over at the first and awaited at the second. What only
// blocks (a monitor, a writer, the feeder of a queue) was handed nothing, and nobody awaits it.

#include "traceap/analysis/dependencies/dependency_graph.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "traceap/analysis/dependencies/blocked_frames.hpp"
#include "traceap/analysis/dependencies/graph_builder.hpp"
#include "traceap/base/error.hpp"
#include "traceap/base/interrupt.hpp"
#include "traceap/base/intervals.hpp"
#include "traceap/base/offsets.hpp"
#include "traceap/tree/name_traits.hpp"

namespace traceap {

// ---------------------------------------------------------------------------------- builder

void GraphBuilder::start_lane(std::uint32_t rank, Lane::Kind kind, std::uint32_t index) {
  graph_.lanes.push_back({rank, kind, index, graph_.size(), graph_.size()});
}

void GraphBuilder::end_lane() { graph_.lanes.back().end = graph_.size(); }

Point GraphBuilder::add_point(std::int64_t time_ns, Row row, bool is_end) {
  graph_.time_ns.push_back(time_ns);
  graph_.row.push_back(row);
  graph_.lane.push_back(static_cast<std::uint32_t>(graph_.lanes.size() - 1));
  graph_.is_end.push_back(is_end);
  return graph_.size() - 1;
}

void GraphBuilder::add_edge(Point source, Point destination, Row owner, DependencyKind kind,
                            Evidence evidence) {
  edges_.push_back({source, destination, owner, kind, evidence});
}

bool GraphBuilder::add_edge_within(std::int64_t jitter_ns, Point source, Point destination,
                                   Row owner, DependencyKind kind, Evidence evidence) {
  const std::int64_t limit = graph_.time_ns[destination];
  if (graph_.time_ns[source] > limit) {
    // Only the end of a GPU event may move, and not before its own beginning.
    const bool movable = graph_.is_end[source] && source > 0 && graph_.time_ns[source - 1] <= limit;
    if (!movable || graph_.time_ns[source] - limit > jitter_ns) return false;
    graph_.time_ns[source] = limit;
  }
  add_edge(source, destination, owner, kind, evidence);
  return true;
}

Point GraphBuilder::point_before(const Lane& thread, std::int64_t time_ns, bool inclusive) const {
  const auto first = graph_.time_ns.begin() + thread.begin;
  const auto last = graph_.time_ns.begin() + thread.end;
  const auto after =
      inclusive ? std::upper_bound(first, last, time_ns) : std::lower_bound(first, last, time_ns);
  if (after == first) return kNoPoint;
  return static_cast<Point>(after - graph_.time_ns.begin()) - 1;
}

DependencyGraph GraphBuilder::finish() {
  CountingSort by_destination(graph_.size());
  for (const Edge& edge : edges_) by_destination.count(edge.destination);
  by_destination.start_placing();
  graph_.source.resize(edges_.size());
  graph_.owner.resize(edges_.size());
  graph_.kind.resize(edges_.size());
  graph_.evidence.resize(edges_.size());
  for (const Edge& edge : edges_) {
    const std::uint32_t at = by_destination.place(edge.destination);
    graph_.source[at] = edge.source;
    graph_.owner[at] = edge.owner;
    graph_.kind[at] = edge.kind;
    graph_.evidence[at] = edge.evidence;
  }
  graph_.in_offsets = by_destination.take_offsets();
  return std::move(graph_);
}

namespace {

// A thread that was idle for longer was woken up by somebody.
constexpr std::int64_t kWokenNs = 300'000;
// A thread that waits for another one goes on this soon after it.
constexpr std::int64_t kJoinNs = 100'000;

/// See Note [Points of a thread].
class ThreadWalker {
 public:
  ThreadWalker(GraphBuilder& builder, const GraphRank& rank, RankPoints& points)
      : builder_(builder), table_(*rank.table), offset_ns_(rank.offset_ns), points_(points) {}

  void open(Row row, Row parent) {
    const std::int64_t start_ns = table_.ts_ns[row] + offset_ns_;
    while (!stack_.empty() && stack_.back() != parent) close(start_ns);
    points_.begin[row] = add(std::max(now_ns_, start_ns), row, false);
    stack_.push_back(row);
  }
  void finish() {
    while (!stack_.empty()) close(std::numeric_limits<std::int64_t>::max());
  }

 private:
  void close(std::int64_t limit_ns) {
    const Row row = stack_.back();
    const std::int64_t end_ns = std::min(table_.end_ns(row) + offset_ns_, limit_ns);
    points_.end[row] = add(std::max(now_ns_, end_ns), row, true);
    stack_.pop_back();
  }
  Point add(std::int64_t time_ns, Row row, bool is_end) {
    const Point point = builder_.add_point(time_ns, row, is_end);
    if (previous_ != kNoPoint) {
      builder_.add_edge(previous_, point, stack_.empty() ? kNoRow : stack_.back(),
                        DependencyKind::kProgramOrder, Evidence::kExplicit);
    }
    now_ns_ = time_ns;
    previous_ = point;
    return point;
  }

  GraphBuilder& builder_;
  const EventTable& table_;
  std::int64_t offset_ns_;
  RankPoints& points_;
  std::vector<Row> stack_;
  std::int64_t now_ns_ = std::numeric_limits<std::int64_t>::min();
  Point previous_ = kNoPoint;
};

/// Adds one rank's points and all edges within it.
class RankLinker {
 public:
  RankLinker(GraphBuilder& builder, const GraphRank& rank, std::uint32_t index)
      : builder_(builder),
        rank_(rank),
        index_(index),
        table_(*rank.table),
        tree_(*rank.tree),
        points_(builder.points(index)),
        traits_(classify_names(table_.strings)),
        blocked_(table_, tree_) {
    points_.begin.assign(table_.size(), kNoPoint);
    points_.end.assign(table_.size(), kNoPoint);
  }

  void link() {
    for (const TrackId track : tree_.host_tracks) add_thread(track);
    for (std::uint32_t s = 0; s < tree_.streams.size(); ++s) add_stream(s);
    for (const Row row : tree_.gpu_rows) link_launch(row);
    link_orphans();
    link_waits(builder_, rank_, index_);
    link_threads();
  }

 private:
  void add_thread(TrackId track) {
    builder_.start_lane(index_, Lane::kThread, track);
    ThreadWalker walker(builder_, rank_, points_);
    for (std::uint32_t i = tree_.host_offsets[track]; i < tree_.host_offsets[track + 1]; ++i) {
      poll_interrupt();
      walker.open(tree_.host_rows[i], tree_.parent[tree_.host_rows[i]]);
    }
    walker.finish();
    builder_.end_lane();
  }

  /// Work that overlaps on one stream (graphs, dependent launches) is in order of its beginnings.
  void add_stream(std::uint32_t stream) {
    builder_.start_lane(index_, Lane::kStream, stream);
    const std::int64_t shift = rank_.offset_ns + tree_.launch_delay_correction_ns;
    Row previous = kNoRow, last = kNoRow;  // begun last, ended last
    for (const Row row : tree_.streams[stream].rows) {
      const std::int64_t start_ns = table_.ts_ns[row] + shift;
      const Point begin = points_.begin[row] = builder_.add_point(start_ns, row, false);
      const Point end = points_.end[row] =
          builder_.add_point(start_ns + table_.dur_ns[row], row, true);
      builder_.add_edge(begin, end, row, DependencyKind::kExecution, Evidence::kExplicit);
      if (previous != kNoRow) link_stream_order(row, previous, last);
      if (last == kNoRow || table_.end_ns(row) >= table_.end_ns(last)) last = row;
      previous = row;
    }
    builder_.end_lane();
  }
  void link_stream_order(Row row, Row previous, Row last) {
    const Point begin = points_.begin[row];
    if (builder_.time_ns(points_.end[last]) <= builder_.time_ns(begin)) {
      builder_.add_edge(points_.end[last], begin, row, DependencyKind::kStreamOrder,
                        Evidence::kExplicit);
    } else {
      builder_.add_edge(points_.begin[previous], begin, previous, DependencyKind::kExecution,
                        Evidence::kExplicit);
    }
  }

  /// From the end of the call, or from its beginning where the work starts while the call is open;
  /// where it starts even before (clocks), from what the thread did then.
  void link_launch(Row row) {
    const Row call = tree_.launch[row];
    if (call == kNoRow || points_.begin[call] == kNoPoint) return;
    const Point begin = points_.begin[row];
    const std::int64_t start_ns = builder_.time_ns(begin);
    Point source = points_.end[call];
    Row owner = row;
    if (builder_.time_ns(source) > start_ns) {
      source = points_.begin[call];
      owner = call;
    }
    if (builder_.time_ns(source) > start_ns) {
      source = builder_.point_before(builder_.lane_of(source), start_ns, true);
    }
    if (source == kNoPoint) return;
    builder_.add_edge(source, begin, owner, DependencyKind::kLaunch, Evidence::kExplicit);
  }

  /// GPU work without a launch in the trace follows what ended last on its device.
  void link_orphans() {
    std::vector<Row> by_end(tree_.gpu_rows);
    std::stable_sort(by_end.begin(), by_end.end(),
                     [&](Row a, Row b) { return table_.end_ns(a) < table_.end_ns(b); });
    for (const Row row : tree_.gpu_rows) {
      poll_interrupt();
      if (tree_.launch[row] != kNoRow) continue;
      auto ended = std::partition_point(by_end.begin(), by_end.end(), [&](Row other) {
        return table_.end_ns(other) <= table_.ts_ns[row];
      });
      constexpr int kMostBack = 16;  // events of other devices in between
      for (int i = 0; i < kMostBack && ended != by_end.begin(); ++i) {
        const Row other = *--ended;
        const bool same_stream = tree_.stream_of[other] == tree_.stream_of[row];
        if (same_stream) break;  // stream order says it already
        if (device_of(other) != device_of(row) || table_.ts_ns[other] >= table_.ts_ns[row])
          continue;
        builder_.add_edge(points_.end[other], points_.begin[row], kNoRow,
                          DependencyKind::kDeviceOrder, Evidence::kAssumed);
        break;
      }
    }
  }
  std::int32_t device_of(Row row) const { return tree_.streams[tree_.stream_of[row]].device; }

  // ---- threads

  void link_threads() {
    const std::vector<Lane> lanes = threads();
    const auto caller = std::find_if(lanes.begin(), lanes.end(), [&](const Lane& lane) {
      return lane.index == tree_.main_track;
    });
    if (caller == lanes.end()) return;
    for (const Lane& lane : lanes) {
      if (lane.index != tree_.main_track) link_thread(lane.index, *caller);
    }
  }

  std::vector<Lane> threads() const {
    std::vector<Lane> lanes;
    for (const Lane& lane : builder_.lanes()) {
      if (lane.rank == index_ && lane.kind == Lane::kThread) lanes.push_back(lane);
    }
    return lanes;
  }

  /// See Note [Silent thread].
  void link_thread(TrackId track, const Lane& caller) {
    const bool is_engine = runs_backward(track);
    Point silent_since = kNoPoint;  // of the caller, for the root before
    std::int64_t previous_end_ns = std::numeric_limits<std::int64_t>::min();
    Row previous = kNoRow;
    const auto join = [&] {
      if (previous != kNoRow && silent_since != kNoPoint) {
        link_join(previous, silent_since, caller, is_engine);
      }
    };
    for (std::uint32_t i = tree_.host_offsets[track]; i < tree_.host_offsets[track + 1];
         i = tree_.subtree_end[i]) {
      if (blocked_.only_blocks(i)) continue;
      const Row root = tree_.host_rows[i];
      const std::int64_t start_ns = builder_.time_ns(points_.begin[root]);
      const Point since = builder_.point_before(caller, start_ns, false);
      if (since != silent_since || previous == kNoRow) {
        join();
        const bool woken = previous == kNoRow || start_ns - previous_end_ns >= kWokenNs;
        const bool handed = is_engine && is_silent(caller, since, root);
        if (since != kNoPoint && (handed || woken)) {
          builder_.add_edge(since, points_.begin[root], kNoRow, DependencyKind::kThreadStart,
                            handed ? Evidence::kInferred : Evidence::kAssumed);
        }
        silent_since = since;
      }
      previous = root;
      previous_end_ns = builder_.time_ns(points_.end[root]);
    }
    join();
  }

  /// Does the caller record nothing until `root` has ended?
  bool is_silent(const Lane& caller, Point since, Row root) const {
    if (since == kNoPoint || since + 1 >= caller.end) return false;
    return builder_.time_ns(since + 1) >= builder_.time_ns(points_.end[root]);
  }

  void link_join(Row last, Point since, const Lane& caller, bool is_engine) {
    if (!is_silent(caller, since, last)) return;
    const Point next = since + 1;
    const std::int64_t late = builder_.time_ns(next) - builder_.time_ns(points_.end[last]);
    if (!is_engine && (table_.kind[last] != EventKind::kCpuOp || late > kJoinNs)) return;
    builder_.add_edge(points_.end[last], next, kNoRow, DependencyKind::kThreadJoin,
                      is_engine ? Evidence::kInferred : Evidence::kAssumed);
  }

  bool runs_backward(TrackId track) const {
    for (std::uint32_t i = tree_.host_offsets[track]; i < tree_.host_offsets[track + 1];
         i = tree_.subtree_end[i]) {
      if (traits_[table_.name[tree_.host_rows[i]]] & kTraitBackwardNode) return true;
    }
    return false;
  }

  GraphBuilder& builder_;
  const GraphRank& rank_;
  const std::uint32_t index_;
  const EventTable& table_;
  const EventTree& tree_;
  RankPoints& points_;
  std::vector<NameTraits> traits_;
  BlockedFrames blocked_;
};

/// The data of a collective moves from the moment when its last rank has begun: every end follows
/// the meeting point, which follows every beginning.
void link_collective(GraphBuilder& builder, std::span<const CollectiveMember> members) {
  std::int64_t met_ns = std::numeric_limits<std::int64_t>::min();
  for (const CollectiveMember& m : members) {
    met_ns = std::max(met_ns, builder.time_ns(builder.points(m.rank).begin[m.row]));
  }
  const Point met = builder.add_point(met_ns, kNoRow, false);
  for (const CollectiveMember& m : members) {
    const RankPoints& points = builder.points(m.rank);
    builder.add_edge(points.begin[m.row], met, kNoRow, DependencyKind::kRendezvous,
                     Evidence::kExplicit);
    if (builder.time_ns(points.end[m.row]) < met_ns) continue;  // clocks: it can't have waited
    builder.add_edge(met, points.end[m.row], m.row, DependencyKind::kRendezvous,
                     Evidence::kExplicit);
  }
}

bool has_points(GraphBuilder& builder, std::size_t ranks, const CollectiveMember& member) {
  if (member.rank >= ranks) return false;
  const RankPoints& points = builder.points(member.rank);
  return member.row < points.begin.size() && points.begin[member.row] != kNoPoint;
}

/// Shifted times must leave room for their differences in 64 bits.
void check_offset(const GraphRank& rank) {
  const EventTable& table = *rank.table;
  const std::int64_t offset_ns = rank.offset_ns;
  const auto fits = [](std::int64_t ns, std::int64_t most) { return ns >= -most && ns <= most; };
  bool all_fit = fits(offset_ns, kMaxTimeNs);
  for (Row row = 0; all_fit && offset_ns != 0 && row < table.size(); ++row) {
    poll_interrupt();
    all_fit = fits(table.ts_ns[row] + offset_ns, 2 * kMaxTimeNs) &&
              fits(table.end_ns(row) + offset_ns, 2 * kMaxTimeNs);
  }
  if (all_fit) return;
  throw SchemaError("offset_ns: one that leaves all times within " +
                    std::to_string(2 * kMaxTimeNs) + " ns of 0 was expected, not " +
                    std::to_string(offset_ns));
}

}  // namespace

std::string_view dependency_kind_name(DependencyKind kind) {
  static constexpr std::array<std::string_view, kDependencyKindCount> kNames{
      "program_order", "execution",   "stream_order", "launch",      "stream_wait", "host_wait",
      "thread_start",  "thread_join", "device_order", "device_busy", "rendezvous",  "queue_limit",
      "copy_engine",   "graph_order", "tensor",       "worker_pace"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string_view evidence_name(Evidence evidence) {
  static constexpr std::array<std::string_view, kEvidenceCount> kNames{"explicit", "inferred",
                                                                       "assumed"};
  return kNames[static_cast<std::size_t>(evidence)];
}

DependencyGraph build_dependency_graph(std::span<const GraphRank> ranks, const Meetings& meetings) {
  GraphBuilder builder(ranks.size());
  for (const GraphRank& rank : ranks) check_offset(rank);
  for (std::uint32_t i = 0; i < ranks.size(); ++i) RankLinker(builder, ranks[i], i).link();
  builder.start_lane(0, Lane::kCollectives, 0);
  std::vector<CollectiveMember> present;
  for (std::size_t i = 0; i < meetings.size(); ++i) {
    present.clear();
    for (const CollectiveMember& member : meetings[i]) {
      if (has_points(builder, ranks.size(), member)) present.push_back(member);
    }
    if (present.size() > 1) link_collective(builder, present);
  }
  builder.end_lane();
  return builder.finish();
}

}  // namespace traceap
