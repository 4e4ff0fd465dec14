#include "traceap/analysis/collectives/rank_collectives.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "traceap/analysis/collectives/matching.hpp"
#include "traceap/analysis/idle/timeline.hpp"
#include "traceap/base/interrupt.hpp"

namespace traceap {
namespace {

/// Groups of all ranks with one number for each. The same name with the same ranks is the same
/// group; one whose ranks a file does not know is the only one of that name that is known.
class GroupTable {
 public:
  explicit GroupTable(const std::vector<CollectiveList>& lists) {
    for (const CollectiveList& list : lists) {
      for (const ProcessGroup& group : list.groups) {
        if (!group.ranks.empty()) {
          intern(group);
          by_name_[group.name].insert(number_.at(key_of(group)));
        }
      }
    }
    named_ = number_.size();
    for (const CollectiveList& list : lists) {
      for (const ProcessGroup& group : list.groups) {
        if (group.ranks.empty() && !group.name.empty()) resolve(group);
      }
    }
  }

  std::uint32_t number(const ProcessGroup& group) {
    const std::uint32_t found = group.ranks.empty() ? resolve(group) : intern(group);
    ProcessGroup& kept = groups_[found];
    if (kept.description.empty()) kept.description = group.description;
    if (kept.size == 0) kept.size = group.size;
    return found;
  }
  std::vector<ProcessGroup> take() { return std::move(groups_); }

 private:
  using Key = std::pair<std::string, std::vector<std::int64_t>>;
  static Key key_of(const ProcessGroup& group) { return {group.name, group.ranks}; }

  std::uint32_t intern(const ProcessGroup& group) {
    const auto [it, added] =
        number_.try_emplace(key_of(group), static_cast<std::uint32_t>(groups_.size()));
    if (added) groups_.push_back(group);
    return it->second;
  }

  std::uint32_t resolve(const ProcessGroup& group) {
    const auto same_name = by_name_.find(group.name);
    if (same_name != by_name_.end() && same_name->second.size() == 1) {
      return *same_name->second.begin();
    }
    if (group.name.empty() && named_ == 1) return 0;  // all that is known is one group
    return intern({group.name, group.description, {}, 0});
  }

  std::map<Key, std::uint32_t> number_;
  std::map<std::string, std::set<std::uint32_t>> by_name_;
  std::vector<ProcessGroup> groups_;
  std::size_t named_ = 0;
};

/// What has to be equal for two collectives to be matched at all: group, and for point to point
/// work the pair of ranks.
struct StreamKey {
  std::uint32_t group;
  std::int64_t source, target;  ///< kNoId for collectives of the whole group
  friend auto operator<=>(const StreamKey&, const StreamKey&) = default;
};

struct StreamItem {
  std::uint32_t rank, index;
};

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t text[2] = {a, b};
  return hash_bytes(reinterpret_cast<const char*>(text), sizeof text);
}

/// Equal for collectives that may be the same: kind, and size where all ranks have the same.
std::uint64_t matching_key(const Collective& c) {
  CollectiveKind kind = c.kind;
  bool sized = true;
  switch (kind) {
    case CollectiveKind::kAllToAllV:
    case CollectiveKind::kSendRecv:
      kind = CollectiveKind::kAllToAll;  // even on one rank, uneven on another
      sized = false;
      break;
    case CollectiveKind::kSend:
    case CollectiveKind::kRecv:
      kind = CollectiveKind::kSend;
      break;
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kAllGather:  // uneven parts are allowed for these
    case CollectiveKind::kGather:
    case CollectiveKind::kScatter:
    case CollectiveKind::kReduceScatter:
      sized = false;
      break;
    default:
      break;
  }
  return mix(static_cast<std::uint64_t>(kind),
             sized && c.bytes ? static_cast<std::uint64_t>(*c.bytes) : 0);
}

StreamKey stream_of(const Collective& c, std::int64_t rank) {
  StreamKey key{c.group, kNoId, kNoId};
  if (!is_point_to_point(c.kind) || c.peer == kNoId || rank == kNoId) return key;
  key.source = c.kind == CollectiveKind::kSend ? rank : c.peer;
  key.target = c.kind == CollectiveKind::kSend ? c.peer : rank;
  return key;
}

/// What ranks call, by rank.
using CallLists = std::vector<std::vector<Collective>>;

class Matcher {
 public:
  Matcher(std::span<const RankInput> ranks, const CallLists& calls)
      : ranks_(ranks), calls_(calls) {}

  /// Parts without times; matches are numbered in no order.
  std::vector<CollectivePart> run() {
    std::map<StreamKey, std::vector<StreamItem>> streams;
    for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
      for (std::uint32_t i = 0; i < calls_[r].size(); ++i) {
        poll_interrupt();
        streams[stream_of(calls_[r][i], ranks_[r].rank)].push_back({r, i});
      }
    }
    for (const auto& [key, items] : streams) match_stream(key, items);
    return std::move(parts_);
  }

 private:
  const Collective& at(StreamItem item) const { return calls_[item.rank][item.index]; }

  void match_stream(const StreamKey& key, const std::vector<StreamItem>& items) {
    const bool lone = key.source == kNoId && is_lone_point_to_point(items);
    if (lone) {
      for (const StreamItem& item : items) add_part(matches_++, item);
      return;
    }
    const bool sequenced = std::all_of(items.begin(), items.end(), [&](StreamItem item) {
      return at(item).sequence != kNoId && key.source == kNoId;
    });
    if (sequenced) {
      match_by_sequence(items);
    } else {
      match_by_order(items);
    }
  }

  /// Sends and receives whose peers are unknown can't be told apart.
  bool is_lone_point_to_point(const std::vector<StreamItem>& items) const {
    return std::all_of(items.begin(), items.end(),
                       [&](StreamItem item) { return is_point_to_point(at(item).kind); });
  }

  /// A coalesced group counts once, so a number may come several times; then in order.
  void match_by_sequence(const std::vector<StreamItem>& items) {
    using Key = std::tuple<std::int64_t, CollectiveKind, std::uint32_t>;
    std::map<std::tuple<std::uint32_t, std::int64_t, CollectiveKind>, std::uint32_t> seen;
    std::map<Key, std::uint32_t> match_of;
    for (const StreamItem& item : items) {
      const Collective& c = at(item);
      CollectiveKind kind = c.kind;
      if (kind == CollectiveKind::kAllToAllV) kind = CollectiveKind::kAllToAll;
      const std::uint32_t occurrence = seen[{item.rank, c.sequence, kind}]++;
      const auto [it, added] = match_of.try_emplace({c.sequence, kind, occurrence}, matches_);
      if (added) ++matches_;
      add_part(it->second, item);
    }
  }

  void match_by_order(const std::vector<StreamItem>& items) {
    std::vector<std::uint32_t> rank_of_sequence;
    std::vector<std::vector<SequenceItem>> sequences;
    std::vector<std::vector<StreamItem>> sources;
    for (const StreamItem& item : items) {
      if (rank_of_sequence.empty() || rank_of_sequence.back() != item.rank) {
        rank_of_sequence.push_back(item.rank);
        sequences.emplace_back();
        sources.emplace_back();
      }
      const Collective& c = at(item);
      const std::int64_t end_ns = ranks_[item.rank].table->end_ns(c.row);
      sequences.back().push_back({matching_key(c), end_ns, ends_together(c.kind)});
      sources.back().push_back(item);
    }
    const MatchedSlots slots = match_sequences(sequences, budget_);
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      for (std::size_t i = 0; i < sources[s].size(); ++i) {
        add_part(matches_ + slots.slot_of[s][i], sources[s][i]);
      }
    }
    matches_ += static_cast<std::uint32_t>(slots.slots());
  }

  void add_part(std::uint32_t match, StreamItem item) {
    parts_.push_back({.match = match, .rank = item.rank, .index = item.index});
  }

  std::span<const RankInput> ranks_;
  const CallLists& calls_;
  std::vector<CollectivePart> parts_;
  std::uint32_t matches_ = 0;
  AlignmentBudget budget_;
};

void sort_parts(RankCollectives& out) {
  std::sort(out.parts.begin(), out.parts.end(),
            [](const CollectivePart& a, const CollectivePart& b) {
              return std::tie(a.match, a.rank, a.index) < std::tie(b.match, b.rank, b.index);
            });
}

void align(std::span<const RankInput> ranks, const CallLists& calls, RankCollectives& out) {
  std::vector<ClockReading> readings;
  for (const CollectivePart& part : out.parts) {
    const Collective& c = calls[part.rank][part.index];
    if (!ends_together(c.kind)) continue;
    readings.push_back({part.match, part.rank, ranks[part.rank].table->end_ns(c.row)});
  }
  out.clocks = align_clocks(readings, ranks.size());
  for (std::uint32_t r = 0; r < ranks.size(); ++r) {
    const Interval own = recorded_bounds(*ranks[r].table);
    // Only an event longer than any recording ends so late that it does not bear the shift.
    if (own.end_ns - out.clocks.shift_ns(r) > 2 * kMaxTimeNs) out.clocks.clocks[r].applied = false;
    const std::int64_t shift_ns = out.clocks.shift_ns(r);
    out.recorded.push_back({own.start_ns - shift_ns, own.end_ns - shift_ns});
  }
}

void place_in_time(std::span<const RankInput> ranks, const CallLists& calls, RankCollectives& out) {
  std::vector<CoverIndex> compute(ranks.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (calls[r].empty()) continue;
    compute[r] = CoverIndex(build_gpu_intervals(*ranks[r].table, *ranks[r].tree).compute);
  }
  for (CollectivePart& part : out.parts) {
    const EventTable& table = *ranks[part.rank].table;
    const Row row = calls[part.rank][part.index].row;
    const Interval own{table.ts_ns[row], table.end_ns(row)};
    part.exposed_ns = own.length_ns() - compute[part.rank].covered_ns(own);
    part.start_ns = out.clocks.to_common(part.rank, own.start_ns);
    part.end_ns = part.start_ns + own.length_ns();  // a drift within one kernel is nothing
  }
}

/// Numbers matches by the start of their first part on the common clock.
void number_by_time(RankCollectives& out) {
  const std::size_t matches = out.parts.empty() ? 0 : std::size_t{out.parts.back().match} + 1;
  std::vector<std::int64_t> first(matches, std::numeric_limits<std::int64_t>::max());
  for (const CollectivePart& part : out.parts) {
    first[part.match] = std::min(first[part.match], part.start_ns);
  }
  std::vector<std::uint32_t> order(matches), place(matches);
  for (std::uint32_t m = 0; m < matches; ++m) order[m] = m;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return first[a] < first[b]; });
  for (std::uint32_t i = 0; i < matches; ++i) place[order[i]] = i;
  for (CollectivePart& part : out.parts) part.match = place[part.match];
  sort_parts(out);
}

/// Every call has become one part.
void take_calls(CallLists& calls, RankCollectives& out) {
  for (CollectivePart& part : out.parts) {
    part.call = std::move(calls[part.rank][part.index]);
    part.bytes = part.call.bytes.value_or(kNoId);
  }
}

/// By the ranks that know it: a kernel's name alone says "unknown" or "send_recv".
CollectiveKind kind_of(std::span<const CollectivePart> parts) {
  const auto first_of = [&](auto holds) {
    const auto found = std::find_if(parts.begin(), parts.end(), [&](const CollectivePart& part) {
      return holds(part.call.kind);
    });
    return found == parts.end() ? CollectiveKind::kUnknown : found->call.kind;
  };
  const CollectiveKind paired = first_of(is_point_to_point);
  if (paired != CollectiveKind::kUnknown) {
    return parts.size() > 1 ? CollectiveKind::kSendRecv : paired;
  }
  const CollectiveKind uneven =
      first_of([](CollectiveKind kind) { return kind == CollectiveKind::kAllToAllV; });
  if (uneven != CollectiveKind::kUnknown) return uneven;
  const CollectiveKind known = first_of([](CollectiveKind kind) {
    return kind != CollectiveKind::kUnknown && kind != CollectiveKind::kSendRecv;
  });
  return known != CollectiveKind::kUnknown ? known : parts.front().call.kind;
}

/// Does a rank leave an exchange of tokens before the last one has come? The first of two launches
/// only sends.
bool leaves_early(std::span<const CollectivePart> parts, std::int64_t latest_start_ns) {
  return std::any_of(parts.begin(), parts.end(), [&](const CollectivePart& part) {
    return is_expert_exchange(part.call.kind) && part.end_ns < latest_start_ns;
  });
}

/// See Note [Kernels that wait inside]. Nothing where the arrivals of ranks have to tell, or
/// nothing does.
std::optional<std::int64_t> transfer_inside(std::span<const CollectivePart> parts) {
  std::optional<std::int64_t> transfer_ns;
  const auto bound = [&](std::int64_t ns) { transfer_ns = std::min(transfer_ns.value_or(ns), ns); };
  const bool meets = parts.size() > 1 && std::all_of(parts.begin(), parts.end(), [](const auto& p) {
                       return is_expert_exchange(p.call.kind);
                     });
  for (const CollectivePart& part : parts) {
    if (meets) bound(part.duration_ns());
    if (part.call.transfer_ns != kNoId) bound(part.call.transfer_ns);
  }
  if (!transfer_ns) return std::nullopt;
  for (const CollectivePart& part : parts) bound(part.duration_ns());
  return transfer_ns;
}

CollectiveMatch describe(const RankCollectives& out, std::uint32_t first, std::uint32_t count) {
  const std::span<const CollectivePart> parts = std::span(out.parts).subspan(first, count);
  const auto component = [&](const CollectivePart& part) {
    return out.clocks.clocks[part.rank].component;
  };
  const auto latest = std::max_element(
      parts.begin(), parts.end(),
      [](const CollectivePart& a, const CollectivePart& b) { return a.start_ns < b.start_ns; });
  const CollectiveKind kind = kind_of(parts);
  const bool comparable = count > 1 && std::all_of(parts.begin(), parts.end(), [&](const auto& p) {
                            return component(p) == component(parts.front());
                          });
  return {.first = first,
          .count = count,
          .group = parts.front().call.group,
          .kind = kind,
          .comparable = comparable,
          .split = comparable,
          .synchronising = ends_together(kind) && !leaves_early(parts, latest->start_ns),
          .latest_start_ns = latest->start_ns,
          .latest_rank = comparable ? latest->rank : kNoRank};
}

/// Matches and what each part waited. See Note [Waiting and transfer].
void describe_matches(RankCollectives& out) {
  for (std::uint32_t first = 0; first < out.parts.size();) {
    std::uint32_t end = first;
    while (end < out.parts.size() && out.parts[end].match == out.parts[first].match) ++end;
    CollectiveMatch match = describe(out, first, end - first);
    const auto transfer_ns = transfer_inside(out.parts_of(match));
    match.split = match.split || transfer_ns;
    for (; first < end; ++first) {
      CollectivePart& part = out.parts[first];
      const std::int64_t lead_ns = match.latest_start_ns - part.start_ns;
      part.wait_ns = transfer_ns        ? part.duration_ns() - *transfer_ns
                     : match.comparable ? std::min(lead_ns, part.duration_ns())
                                        : 0;
    }
    out.matches.push_back(match);
  }
}

}  // namespace

Interval recorded_bounds(const EventTable& table) {
  Interval bounds{0, 0};
  bool any = false;
  for (Row row = 0; row < table.size(); ++row) {
    poll_interrupt();
    if (!table.is_complete(row)) continue;
    if (!any) bounds = {table.ts_ns[row], table.end_ns(row)};
    any = true;
    bounds.end_ns = std::max(bounds.end_ns, table.end_ns(row));
  }
  return bounds;
}

RankCollectives build_rank_collectives(std::span<const RankInput> ranks) {
  RankCollectives out;
  std::vector<CollectiveList> lists;
  for (const RankInput& rank : ranks) {
    lists.push_back(build_collectives(*rank.table, *rank.tree));
  }
  GroupTable groups(lists);
  CallLists calls;
  for (CollectiveList& list : lists) {
    std::vector<std::uint32_t> number;
    for (const ProcessGroup& group : list.groups) number.push_back(groups.number(group));
    for (Collective& c : list.collectives) c.group = number[c.group];
    calls.push_back(std::move(list.collectives));
  }
  out.groups = groups.take();
  out.parts = Matcher(ranks, calls).run();
  sort_parts(out);
  align(ranks, calls, out);
  place_in_time(ranks, calls, out);
  number_by_time(out);
  take_calls(calls, out);
  describe_matches(out);
  return out;
}

}  // namespace traceap
