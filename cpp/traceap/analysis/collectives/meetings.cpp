#include "traceap/analysis/collectives/meetings.hpp"

#include <algorithm>

#include "traceap/base/error.hpp"

namespace traceap {
namespace {

constexpr std::uint32_t kNotInGraph = std::numeric_limits<std::uint32_t>::max();

bool is_paired(CollectiveKind kind) {
  return is_point_to_point(kind) || kind == CollectiveKind::kSendRecv;
}

bool do_meet(const CollectiveMatch& match, std::span<const CollectivePart> parts) {
  if (parts.size() < 2) return false;
  if (is_expert_exchange(match.kind) && !match.synchronising) return false;
  const auto all = [&](auto holds) {
    return std::all_of(parts.begin(), parts.end(),
                       [&](const CollectivePart& part) { return holds(part.call.kind); });
  };
  return all(ends_together) || (parts.size() == 2 && all(is_paired));
}

}  // namespace

Meetings find_meetings(const RankCollectives& all, std::span<const std::uint32_t> places) {
  std::vector<std::uint32_t> in_graph(all.recorded.size(), kNotInGraph);
  for (std::uint32_t i = 0; i < places.size(); ++i) {
    if (places[i] >= in_graph.size()) throw OptionError("places: there is no such rank");
    in_graph[places[i]] = i;
  }
  Meetings meetings;
  std::vector<CollectiveMember> met;
  for (const CollectiveMatch& match : all.matches) {
    const std::span<const CollectivePart> parts = all.parts_of(match);
    if (!do_meet(match, parts)) continue;
    met.clear();
    for (const CollectivePart& part : parts) {
      if (in_graph[part.rank] != kNotInGraph) met.push_back({in_graph[part.rank], part.call.row});
    }
    if (!met.empty()) meetings.add(met);
  }
  return meetings;
}

}  // namespace traceap
