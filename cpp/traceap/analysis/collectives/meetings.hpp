#pragma once
// Where ranks of a graph meet: matched collectives whose end needs every member.

#include <cstdint>
#include <span>
#include <vector>

#include "traceap/analysis/collectives/rank_collectives.hpp"

namespace traceap {

/// One rank's event of a collective.
struct CollectiveMember {
  std::uint32_t rank;  ///< index of the rank in the graph
  Row row;
};

/// Ragged: the members of meeting i stand from offsets[i] to offsets[i + 1].
struct Meetings {
  std::vector<std::uint32_t> offsets{0};
  std::vector<CollectiveMember> members;

  std::size_t size() const { return offsets.size() - 1; }
  std::span<const CollectiveMember> operator[](std::size_t i) const {
    return std::span(members).subspan(offsets[i], offsets[i + 1] - offsets[i]);
  }
  void add(std::span<const CollectiveMember> met) {
    members.insert(members.end(), met.begin(), met.end());
    offsets.push_back(static_cast<std::uint32_t>(members.size()));
  }
};

/// Collectives of kinds that end together, and pairs of send and recv. `places`: for each rank of
/// the graph its index among the matched ones; those that are not in it are left out. By time.
Meetings find_meetings(const RankCollectives& all, std::span<const std::uint32_t> places);

}  // namespace traceap
