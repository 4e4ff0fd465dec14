#include <algorithm>
#include <cmath>

#include "exercises.hpp"
#include "traceap/analysis/collectives/lateness.hpp"
#include "traceap/analysis/collectives/meetings.hpp"
#include "traceap/analysis/collectives/missing_ranks.hpp"
#include "traceap/analysis/collectives/peers.hpp"
#include "traceap/analysis/dependencies/critical_path.hpp"
#include "traceap/base/error.hpp"
#include "traceap/detect/rules.hpp"
#include "traceap/simulation/replay.hpp"

namespace traceap::fuzz {
namespace {

std::vector<RankInput> inputs_of(std::span<const RankPtr> ranks, Choices& choices) {
  std::vector<RankInput> inputs;
  for (const RankPtr& rank : ranks) {
    std::int64_t number = static_cast<std::int64_t>(inputs.size());
    if (choices.flag()) number = rank->table.distributed.rank.value_or(kNoId);
    inputs.push_back({&rank->table, &rank->tree, number});
  }
  return inputs;
}

std::vector<GraphRank> graph_of(std::span<const RankPtr> ranks, const RankCollectives& all) {
  std::vector<GraphRank> parts;
  for (const RankPtr& rank : ranks) {
    const std::int64_t shift_ns = all.clocks.shift_ns(static_cast<std::uint32_t>(parts.size()));
    parts.push_back({&rank->table, &rank->tree, shift_ns == kNoId ? 0 : -shift_ns});
  }
  return parts;
}

void check_collectives(const RankCollectives& all, std::span<const RankInput> ranks) {
  std::size_t parts = 0;
  for (const CollectiveMatch& match : all.matches) {
    check(match.first == parts, "parts of a match stand beside each other");
    parts += match.count;
    check(match.group < all.groups.size(), "a match has a group");
    for (const CollectivePart& part : all.parts_of(match)) {
      check(part.rank < ranks.size() && part.call.row < ranks[part.rank].table->size(), "a part");
      check(part.wait_ns >= 0 && part.exposed_ns >= 0, "what a part waited");
    }
  }
  check(parts == all.parts.size(), "every part is one of a match");
  const MissingRanks missing = find_missing_ranks(all, ranks);
  for (const std::uint32_t list : missing.list_of) check(list < missing.lists.size(), "a list");
  check(expected_ranks(all, ranks).size() == all.groups.size(), "ranks of each group");
}

void check_lateness(const RankCollectives& all, std::span<const RankInput> ranks) {
  const std::vector<RankLateness> lateness = measure_lateness(all, ranks, kMaterialShare);
  const std::vector<PeerView> views = build_peer_views(all, lateness, ranks);
  check(lateness.size() == ranks.size() && views.size() == ranks.size(), "one for each rank");
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    check(lateness[i].cause_share >= 0 && lateness[i].cause_share <= 1, "a cause's share");
    Signals signals = build_signals(*ranks[i].table, *ranks[i].tree);
    signals.peers = views[i];
    check(detect_all(signals).size() == all_rules().size(), "every rule says something");
  }
}

void check_path(std::span<const GraphRank> ranks, const Meetings& meetings, Interval range) {
  const DependencyGraph graph = build_dependency_graph(ranks, meetings);
  for (Point point = 0; point < graph.size(); ++point) {
    for (std::uint32_t e = graph.in_offsets[point]; e < graph.in_offsets[point + 1]; ++e) {
      check(graph.time_ns[graph.source[e]] <= graph.time_ns[point], "edges lead forward");
    }
  }
  const CriticalPath path = find_critical_path(graph, ranks, range);
  Sum total;
  for (const std::int64_t ns : path.total_ns) total += ns;
  check(total == range.length_ns(), "causes add up to the range");
  std::int64_t reached_ns = range.start_ns;
  for (const PathSegment& segment : path.segments) {
    check(segment.start_ns == reached_ns, "segments tile the range");
    reached_ns = segment.end_ns;
  }
  check(path.segments.empty() || reached_ns == range.end_ns, "segments reach the end");
  const PathCauses causes = find_path_causes(graph, ranks, range);
  check(causes.cause.size() == causes.end_ns.size(), "each cause has an end");
  check(causes.end_ns.empty() || causes.end_ns.back() == range.end_ns, "causes reach the end");
}

GraphDelta delta_of(const ExecutionGraph& graph, Choices& choices) {
  GraphDelta delta;
  const std::size_t edges = graph.lag_ns.size();
  for (std::size_t left = choices.below(4); left > 0; --left) {
    const auto edge = static_cast<EdgeId>(edges == 0 ? 0 : choices.below(edges));
    switch (choices.below(3)) {
      case 0:
        delta.set_lag(edge, std::clamp(choices.number(), -kMaxTimeNs, kMaxTimeNs));
        break;
      case 1:
        delta.drop(edge);
        break;
      default:
        delta.add(static_cast<Point>(choices.below(graph.size() + 1)),
                  static_cast<Point>(choices.below(graph.size() + 1)), choices.number() % 1000);
    }
  }
  return delta;
}

void check_edit(const ExecutionGraph& graph, Choices& choices) {
  try {
    const GraphDelta delta = delta_of(graph, choices);
    const auto time_ns = replay(graph, delta);
    check(time_ns == replay(graph, delta), "a replay repeats");
    const auto copies = static_cast<std::uint32_t>(choices.below(4));
    const PlainEdge carry{static_cast<Point>(choices.below(graph.size() + 1)),
                          static_cast<Point>(choices.below(graph.size() + 1)), 5};
    const auto chain = replay_chain(graph, std::span(&carry, 1), copies, delta);
    check(chain.size() == std::size_t{copies} * graph.size(), "a time for each point and copy");
  } catch (const SchemaError&) {  // an edge that is not there, or a cycle
  }
}

void check_replays(std::span<const GraphRank> ranks, const Meetings& meetings, Choices& choices) {
  ExecutionOptions options;
  options.explicit_only = choices.flag();
  options.queue_depth = choices.flag() ? static_cast<std::uint32_t>(choices.below(4)) : kQueueDepth;
  const ExecutionGraph graph = build_execution_graph(ranks, meetings, options);
  check(replay(graph) == graph.points.time_ns, "a replay gives back the measured times");
  for (const EdgeId edge : binding_edges(graph, replay(graph, {}, {.with_residuals = false}),
                                         {.with_residuals = false})) {
    check(edge == kNoEdge || edge < graph.lag_ns.size(), "a binding edge is an edge");
  }
  check_edit(graph, choices);
}

/// A graph that no trace gave: nodes and edges from the choices alone.
void check_plain_graph(Choices& choices) {
  std::vector<std::int64_t> durations(choices.below(5));
  for (std::int64_t& ns : durations) ns = choices.number();
  std::vector<PlainEdge> edges(choices.below(5));
  for (PlainEdge& edge : edges) edge = {choices.byte(), choices.byte(), choices.number()};
  try {
    check_edit(build_plain_graph(durations, edges), choices);
  } catch (const SchemaError&) {  // a time beyond bounds, a cycle, no such node
  }
}

}  // namespace

void exercise_ranks(std::span<const RankPtr> ranks, Choices& choices) {
  const std::vector<RankInput> inputs = inputs_of(ranks, choices);
  const RankCollectives all = build_rank_collectives(inputs);
  check_collectives(all, inputs);
  check_lateness(all, inputs);
  std::vector<std::uint32_t> places(ranks.size());
  for (std::uint32_t i = 0; i < places.size(); ++i) places[i] = i;
  const Meetings meetings = find_meetings(all, places);
  const std::vector<GraphRank> parts = graph_of(ranks, all);
  check_path(parts, meetings, ranks[choices.below(ranks.size())]->tree.profiled);
  check_replays(parts, meetings, choices);
  check_plain_graph(choices);
}

}  // namespace traceap::fuzz
