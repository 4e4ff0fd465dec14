// Note [Launch queue]: a CUDA stream takes a limited number of launches; the next launch call
// returns once there is room. On V100, A100 and H100 (CUDA 10 to 12) the call of launch i + 1021
// ends 4 to 7 us behind the begin of launch i's work wherever it blocks, and never before it. The
// depth is the smallest from there to the nominal 1,024 that the measured times nowhere break; a
// stream on which none fits has another limit, and gets no edges. HIP's queues are deeper than
// what traces reach.
//
// Note [Copy engines]: a device has an engine or more for each direction of copies. Where copies of
// one direction never overlap they share one, and keep their measured order.
//
// Note [Captured graphs]: one call launches many events and the trace has no dependencies between
// them. On each stream they follow each other; what starts on another stream follows what ended
// last before, or began with the graph's first, at the measured distance.

#include "traceap/simulation/resources.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "traceap/analysis/idle/host_activity.hpp"
#include "traceap/base/interrupt.hpp"
#include "traceap/base/offsets.hpp"

namespace traceap {
namespace {

constexpr std::int64_t kClockSlackNs = 1'000;

class ResourceLinker {
 public:
  ResourceLinker(const ExecutionGraph& graph, std::span<const GraphRank> ranks,
                 const ExecutionOptions& options, std::vector<TypedEdge>& edges)
      : graph_(graph), ranks_(ranks), options_(options), edges_(edges) {}

  void link(std::size_t rank) {
    rank_ = rank;
    for (const Stream& stream : tree().streams) link_queue(stream);
    link_copies();
    link_graphs();
  }

 private:
  const EventTable& table() const { return *ranks_[rank_].table; }
  const EventTree& tree() const { return *ranks_[rank_].tree; }
  Point begin(Row row) const { return graph_.begin_of[rank_][row]; }
  Point end(Row row) const { return graph_.end_of[rank_][row]; }
  std::int64_t time(Point point) const { return graph_.points.time_ns[point]; }

  bool add(Point source, Point destination, Row owner, DependencyKind kind, Evidence evidence) {
    if (source == kNoPoint || destination == kNoPoint) return false;
    if (time(source) > time(destination)) return false;
    edges_.push_back({source, destination, owner, kind, evidence});
    return true;
  }

  // ---- queues, see Note [Launch queue]

  struct Launch {
    Row call, work;
  };
  /// Calls that put work on a stream in their order, each with the first work that it launched.
  std::vector<Launch> launches_of(const Stream& stream) const {
    std::vector<Launch> launches;
    for (const Row work : stream.rows) {
      const Row call = tree().launch[work];
      if (call == kNoRow || end(call) == kNoPoint || !table().name_of(call).starts_with("cu")) {
        continue;
      }
      launches.push_back({call, work});
    }
    std::stable_sort(launches.begin(), launches.end(), [&](const Launch& a, const Launch& b) {
      return time(end(a.call)) < time(end(b.call));
    });
    const auto same = [](const Launch& a, const Launch& b) { return a.call == b.call; };
    launches.erase(std::unique(launches.begin(), launches.end(), same), launches.end());
    return launches;
  }

  bool fits(const std::vector<Launch>& launches, std::size_t depth) const {
    for (std::size_t i = 0; i + depth < launches.size(); ++i) {
      const std::int64_t began_ns = time(begin(launches[i].work));
      if (began_ns > time(end(launches[i + depth].call)) + kClockSlackNs) return false;
    }
    return true;
  }

  void link_queue(const Stream& stream) {
    if (options_.queue_depth == 0) return;
    const std::vector<Launch> launches = launches_of(stream);
    std::size_t depth = options_.queue_depth;
    while (depth < kNominalQueueDepth && !fits(launches, depth)) ++depth;
    if (!fits(launches, depth)) return;
    for (std::size_t i = 0; i + depth < launches.size(); ++i) {
      const Row call = launches[i + depth].call;
      add(begin(launches[i].work), end(call), call, DependencyKind::kQueueLimit,
          Evidence::kInferred);
    }
  }

  // ---- copies, see Note [Copy engines]

  void link_copies() {
    std::map<std::pair<std::int32_t, CopyDirection>, std::vector<Row>> copies;
    for (const Row row : tree().gpu_rows) {
      poll_interrupt();
      const CopyDirection direction = tree().copy_direction[row];
      if (!is_host_device(direction)) continue;  // kernels or engines do these, as the driver likes
      copies[{tree().streams[tree().stream_of[row]].device, direction}].push_back(row);
    }
    for (const auto& [engine, rows] : copies) link_engine(rows);
  }
  void link_engine(const std::vector<Row>& rows) {
    for (std::size_t i = 1; i < rows.size(); ++i) {
      if (time(end(rows[i - 1])) > time(begin(rows[i])) + kClockSlackNs) return;
    }
    for (std::size_t i = 1; i < rows.size(); ++i) {
      if (tree().stream_of[rows[i - 1]] == tree().stream_of[rows[i]]) continue;
      add(end(rows[i - 1]), begin(rows[i]), rows[i], DependencyKind::kCopyEngine,
          Evidence::kInferred);
    }
  }

  // ---- graphs, see Note [Captured graphs]

  void link_graphs() {
    std::vector<Row> events;
    for (Row call = 0; call < table().size(); ++call) {
      poll_interrupt();
      const auto launched = tree().launched_by(call);
      if (launched.size() < 2) continue;
      events.assign(launched.begin(), launched.end());
      std::stable_sort(events.begin(), events.end(),
                       [&](Row a, Row b) { return time(begin(a)) < time(begin(b)); });
      link_graph(events);
    }
  }
  void link_graph(const std::vector<Row>& events) {
    const std::uint32_t stream = tree().stream_of[events.front()];
    const bool one_stream = std::all_of(events.begin(), events.end(),
                                        [&](Row row) { return tree().stream_of[row] == stream; });
    if (one_stream) return;
    std::vector<Row> by_end = events;
    std::stable_sort(by_end.begin(), by_end.end(),
                     [&](Row a, Row b) { return time(end(a)) < time(end(b)); });
    std::size_t ended = 0;
    for (const Row row : events) {
      if (row == events.front()) continue;
      while (ended < by_end.size() && time(end(by_end[ended])) <= time(begin(row))) ++ended;
      // An event of no length that begins and ends here precedes itself in this order.
      std::size_t last = ended;
      while (last > 0 && by_end[last - 1] == row) --last;
      const Row before = last > 0 ? by_end[last - 1] : kNoRow;
      if (before == kNoRow) {
        add(begin(events.front()), begin(row), row, DependencyKind::kGraphOrder,
            Evidence::kAssumed);
      } else if (tree().stream_of[before] != tree().stream_of[row]) {
        add(end(before), begin(row), row, DependencyKind::kGraphOrder, Evidence::kAssumed);
      }
    }
  }

  const ExecutionGraph& graph_;
  std::span<const GraphRank> ranks_;
  const ExecutionOptions& options_;
  std::vector<TypedEdge>& edges_;
  std::size_t rank_ = 0;
};

}  // namespace

std::vector<TypedEdge> resource_edges(const ExecutionGraph& graph, std::span<const GraphRank> ranks,
                                      const ExecutionOptions& options) {
  std::vector<TypedEdge> edges;
  ResourceLinker linker(graph, ranks, options, edges);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) linker.link(rank);
  return edges;
}

void insert_edges(DependencyGraph& graph, std::span<const TypedEdge> edges) {
  if (edges.empty()) return;
  CountingSort sort(graph.size());
  for (const TypedEdge& edge : edges) sort.count(edge.destination);
  std::vector<std::uint32_t> by_destination(sort.start_placing());
  for (std::uint32_t i = 0; i < edges.size(); ++i) {
    by_destination[sort.place(edges[i].destination)] = i;
  }
  const std::vector<std::uint32_t> offsets = sort.take_offsets();
  const std::size_t total = graph.edges() + edges.size();
  DependencyGraph merged;
  merged.source.reserve(total);
  merged.owner.reserve(total);
  merged.kind.reserve(total);
  merged.evidence.reserve(total);
  const auto push = [&](Point source, Row owner, DependencyKind kind, Evidence evidence) {
    merged.source.push_back(source);
    merged.owner.push_back(owner);
    merged.kind.push_back(kind);
    merged.evidence.push_back(evidence);
  };
  for (Point p = 0; p < graph.size(); ++p) {
    poll_interrupt();
    for (std::uint32_t e = graph.in_offsets[p]; e < graph.in_offsets[p + 1]; ++e) {
      push(graph.source[e], graph.owner[e], graph.kind[e], graph.evidence[e]);
    }
    for (std::uint32_t i = offsets[p]; i < offsets[p + 1]; ++i) {
      const TypedEdge& edge = edges[by_destination[i]];
      push(edge.source, edge.owner, edge.kind, edge.evidence);
    }
  }
  for (Point p = 0; p <= graph.size(); ++p) graph.in_offsets[p] += offsets[p];
  graph.source = std::move(merged.source);
  graph.owner = std::move(merged.owner);
  graph.kind = std::move(merged.kind);
  graph.evidence = std::move(merged.evidence);
}

}  // namespace traceap
