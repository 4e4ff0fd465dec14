#include "traceap/analysis/collectives/missing_ranks.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace traceap {
namespace {

/// What decides who is missing: group, ranks that are here, the other side of a send or recv.
using Situation = std::tuple<std::uint32_t, std::vector<std::uint32_t>, std::int64_t>;

Situation situation_of(const RankCollectives& all, const CollectiveMatch& match) {
  std::vector<std::uint32_t> here;
  for (const CollectivePart& part : all.parts_of(match)) here.push_back(part.rank);
  const bool pair = is_point_to_point(match.kind) || match.kind == CollectiveKind::kSendRecv;
  const Collective& first = all.parts[match.first].call;
  return {match.group, std::move(here), pair ? first.peer : kNoId};
}

}  // namespace

std::vector<std::vector<std::int64_t>> expected_ranks(const RankCollectives& all,
                                                      std::span<const RankInput> ranks) {
  std::vector<std::set<std::int64_t>> used(all.groups.size());
  for (const CollectivePart& part : all.parts) {
    used[part.call.group].insert(number_of(ranks, part.rank));
  }
  std::vector<std::vector<std::int64_t>> expected;
  for (std::size_t g = 0; g < used.size(); ++g) {
    const std::vector<std::int64_t>& recorded = all.groups[g].ranks;
    expected.push_back(recorded.empty() ? std::vector(used[g].begin(), used[g].end()) : recorded);
  }
  return expected;
}

MissingRanks find_missing_ranks(const RankCollectives& all, std::span<const RankInput> ranks) {
  const std::vector<std::vector<std::int64_t>> expected = expected_ranks(all, ranks);
  MissingRanks missing{{}, {{}}};
  std::map<std::vector<std::int64_t>, std::uint32_t> number{{{}, 0}};
  std::map<Situation, std::uint32_t> known;
  for (const CollectiveMatch& match : all.matches) {
    const auto [entry, added] = known.try_emplace(situation_of(all, match), 0);
    if (added) {
      const auto& [group, here, peer] = entry->first;
      std::vector<std::int64_t> members;
      if (peer == kNoId) {
        members = expected[group];
      } else if (here.size() <= 1) {
        members.push_back(peer);
      }
      std::set<std::int64_t> present;
      for (const std::uint32_t r : here) present.insert(number_of(ranks, r));
      std::erase_if(members, [&](std::int64_t rank) { return present.contains(rank); });
      const auto next = static_cast<std::uint32_t>(missing.lists.size());
      const auto [list, is_new] = number.try_emplace(members, next);
      if (is_new) missing.lists.push_back(std::move(members));
      entry->second = list->second;
    }
    missing.list_of.push_back(entry->second);
  }
  return missing;
}

}  // namespace traceap
