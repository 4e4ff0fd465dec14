// Note [The same edge]: two edges are the same if they are of one kind, between the same lanes and
// names (begins or ends), and come as the same in number among such edges of their step. A step
// without such an edge in any other gets what edges of the same kind and names cost in the others,
// on whatever lanes and in whatever number; else edges of the kind, else all edges. Where the rank
// has no other step, the steps of other ranks stand in (kind, else all); where there is no other
// step at all nothing is known, and it costs nothing. So no edge gets its own measured cost.
//
// Means, because a host now and then takes long for one of its many short stretches: medians of
// these sum up to less than a step takes, by 3 to 9 % on public traces.

#include "traceap/simulation/held_out.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <utility>

#include "traceap/base/error.hpp"
#include "traceap/base/flat_map.hpp"
#include "traceap/base/interrupt.hpp"
#include "traceap/base/offsets.hpp"
#include "traceap/base/sums.hpp"

namespace traceap {
namespace {

struct Sum {
  std::int64_t ns = 0;
  std::int64_t count = 0;

  void add(std::int64_t more_ns) {
    add_to(ns, more_ns);
    ++count;
  }
  /// The mean of what is left without a part; a time that an edit can set.
  std::int64_t mean_without(const Sum& part) const {
    std::int64_t left_ns = 0;
    if (__builtin_sub_overflow(ns, part.ns, &left_ns)) left_ns = ns;  // stopped at 64 bits
    return std::clamp(left_ns / (count - part.count), -kMaxTimeNs, kMaxTimeNs);
  }
};

/// An edge that leads into a step.
struct Member {
  EdgeId edge;
  Point point;
  std::uint32_t like;    ///< class of edges between the same lanes and names
  std::uint32_t number;  ///< among those of its step
};

class HeldOut {
 public:
  HeldOut(const ExecutionGraph& graph, std::span<const std::uint32_t> step_of, std::uint32_t steps)
      : graph_(graph), points_(graph.points), step_of_(step_of), cost_ns_(points_.edges()) {
    for (EdgeId e = 0; e < cost_ns_.size(); ++e) {
      cost_ns_[e] = add_saturated(graph.lag_ns[e], graph.residual_ns[e]);
    }
    find_members();
    number_members(steps);
  }

  std::vector<std::int64_t> lags() const {
    std::vector<std::int64_t> lags(cost_ns_);
    std::vector<Member> open = settle_same(lags);
    for (const auto key_of : kWiderClasses) {
      if (open.empty()) break;
      open = settle_class(open, key_of, lags);
    }
    for (const Member& m : open) lags[m.edge] = 0;
    return lags;
  }

 private:
  // ---- the same edges

  void find_members() {
    std::vector<std::uint64_t> place(points_.size());
    for (Point p = 0; p < points_.size(); ++p) place[p] = mix(name_key(p), points_.lane[p]);
    FlatMap<std::uint32_t> likes;  // plus 1
    for (Point p = 0; p < points_.size(); ++p) {
      poll_interrupt();
      if (step_of_[p] == kNoStep) continue;
      for (EdgeId e = points_.in_offsets[p]; e < points_.in_offsets[p + 1]; ++e) {
        const auto kind = static_cast<std::uint64_t>(points_.kind[e]);
        std::uint32_t& like = likes[mix(mix(place[points_.source[e]], place[p]), kind)];
        if (like == 0) like = static_cast<std::uint32_t>(likes.size());
        members_.push_back({e, p, like - 1, 0});
      }
    }
    most_.assign(likes.size(), 0);
  }

  void number_members(std::uint32_t steps) {
    CountingSort by_step(steps);
    for (const Member& m : members_) by_step.count(step_of_[m.point]);
    std::vector<std::uint32_t> sorted(by_step.start_placing());
    for (std::uint32_t i = 0; i < members_.size(); ++i) {
      sorted[by_step.place(step_of_[members_[i].point])] = i;
    }
    std::vector<std::uint32_t> step(most_.size(), kNoStep), next(most_.size());
    for (const std::uint32_t i : sorted) {
      poll_interrupt();
      Member& m = members_[i];
      if (std::exchange(step[m.like], step_of_[m.point]) != step_of_[m.point]) next[m.like] = 0;
      m.number = next[m.like]++;
      most_[m.like] = std::max(most_[m.like], next[m.like]);
    }
  }

  /// Sets what each edge costs in other steps; returns those that no other step has.
  std::vector<Member> settle_same(std::vector<std::int64_t>& lags) const {
    std::vector<std::size_t> first(most_.size() + 1, 0);
    std::partial_sum(most_.begin(), most_.end(), first.begin() + 1);
    std::vector<Sum> sums(first.back());
    for (const Member& m : members_) sums[first[m.like] + m.number].add(cost_ns_[m.edge]);
    std::vector<Member> open;
    for (const Member& m : members_) {
      const Sum& sum = sums[first[m.like] + m.number];
      if (sum.count == 1) {
        open.push_back(m);
      } else {
        lags[m.edge] = sum.mean_without({cost_ns_[m.edge], 1});
      }
    }
    return open;
  }

  // ---- wider classes

  using KeyOf = std::uint64_t (HeldOut::*)(const Member&) const;

  /// The same by class, for the edges that are open.
  std::vector<Member> settle_class(const std::vector<Member>& open, KeyOf key_of,
                                   std::vector<std::int64_t>& lags) const {
    FlatMap<Sum> of_all, of_step;
    for (const Member& m : open) of_all[(this->*key_of)(m)];
    for (const Member& m : members_) {
      poll_interrupt();
      const std::uint64_t key = (this->*key_of)(m);
      Sum* all = of_all.find(key);
      if (all == nullptr) continue;
      all->add(cost_ns_[m.edge]);
      of_step[mix(key, step_of_[m.point])].add(cost_ns_[m.edge]);
    }
    std::vector<Member> left;
    for (const Member& m : open) {
      const std::uint64_t key = (this->*key_of)(m);
      const Sum& all = *of_all.find(key);
      const Sum& own = *of_step.find(mix(key, step_of_[m.point]));
      if (all.count == own.count) {
        left.push_back(m);
      } else {
        lags[m.edge] = all.mean_without(own);
      }
    }
    return left;
  }

  std::uint64_t name_key(Point p) const {
    return mix(2 * std::uint64_t{graph_.name[p]} + points_.is_end[p], rank_of(p));
  }
  std::uint32_t rank_of(Point p) const { return points_.lanes[points_.lane[p]].rank; }
  std::uint64_t by_kind(const Member& m) const {
    return mix(1, static_cast<std::uint64_t>(points_.kind[m.edge]));
  }
  std::uint64_t by_names(const Member& m) const {
    return mix(mix(name_key(points_.source[m.edge]), name_key(m.point)), by_kind(m));
  }
  std::uint64_t by_kind_of_rank(const Member& m) const { return mix(by_kind(m), rank_of(m.point)); }
  std::uint64_t by_rank(const Member& m) const { return mix(2, rank_of(m.point)); }
  std::uint64_t as_one(const Member&) const { return mix(3, 0); }

  static constexpr std::array<KeyOf, 5> kWiderClasses{&HeldOut::by_names, &HeldOut::by_kind_of_rank,
                                                      &HeldOut::by_rank, &HeldOut::by_kind,
                                                      &HeldOut::as_one};

  const ExecutionGraph& graph_;
  const DependencyGraph& points_;
  std::span<const std::uint32_t> step_of_;
  std::vector<std::int64_t> cost_ns_;  // by edge
  std::vector<Member> members_;
  std::vector<std::uint32_t> most_;  // by `like`: how many a step has at most
};

}  // namespace

std::vector<std::int64_t> held_out_lags(const ExecutionGraph& graph,
                                        std::span<const std::uint32_t> step_of,
                                        std::uint32_t steps) {
  if (step_of.size() != graph.size()) throw SchemaError("one step for each point is needed");
  for (const std::uint32_t step : step_of) {
    if (step < steps || step == kNoStep) continue;
    throw SchemaError("step_of_point: there is no step " + std::to_string(step));
  }
  return HeldOut(graph, step_of, steps).lags();
}

}  // namespace traceap
