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
#include <string>

#include "traceap/base/error.hpp"
#include "traceap/base/flat_map.hpp"
#include "traceap/base/interrupt.hpp"
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
};

/// Costs of edges by class, of all steps and of each.
class ClassCosts {
 public:
  /// The class will be asked for.
  void want(std::uint64_t key) { of_all_[key]; }
  void add(std::uint64_t key, std::uint32_t step, std::int64_t cost_ns) {
    Sum* all = of_all_.find(key);
    if (all == nullptr) return;
    all->add(cost_ns);
    of_step_[mix(key, step)].add(cost_ns);
  }
  /// The mean over other steps; false: they have no edge of this class.
  bool elsewhere(std::uint64_t key, std::uint32_t step, std::int64_t& mean_ns) const {
    const Sum* all = of_all_.find(key);
    const Sum* own = of_step_.find(mix(key, step));
    const std::int64_t count = all->count - own->count;
    if (count == 0) return false;
    mean_ns = mean(difference(all->ns, own->ns), count);
    return true;
  }

 private:
  static std::int64_t difference(std::int64_t a, std::int64_t b) {
    std::int64_t found = 0;
    return __builtin_sub_overflow(a, b, &found) ? a : found;  // sums that stopped at 64 bits
  }
  /// A time that an edit can set.
  static std::int64_t mean(std::int64_t ns, std::int64_t count) {
    return std::clamp(ns / count, -kMaxTimeNs, kMaxTimeNs);
  }
  FlatMap<Sum> of_all_, of_step_;
};

class HeldOut {
 public:
  HeldOut(const ExecutionGraph& graph, std::span<const std::uint32_t> step_of)
      : graph_(graph), points_(graph.points), step_of_(step_of), cost_ns_(points_.edges()) {
    for (EdgeId e = 0; e < cost_ns_.size(); ++e) {
      cost_ns_[e] = add_saturated(graph.lag_ns[e], graph.residual_ns[e]);
    }
  }

  std::vector<std::int64_t> lags() {
    std::vector<std::int64_t> lags(cost_ns_);
    std::vector<Member> open = members();
    settle(
        open, lags, [](const Member& m) { return m.key; }, open);
    if (open.empty()) return lags;
    const std::vector<Member> all = members();
    for (const auto key_of : kWiderClasses) {
      settle(
          open, lags, [&](const Member& m) { return (this->*key_of)(m); }, all);
    }
    for (const Member& m : open) lags[m.edge] = 0;
    return lags;
  }

 private:
  /// An edge that leads into a step.
  struct Member {
    EdgeId edge;
    Point point;
    std::uint64_t key;  ///< of edges that are the same
  };

  std::vector<Member> members() const {
    std::vector<Member> found;
    FlatMap<std::uint32_t> number;  // of edges like it so far
    for (Point p = 0; p < points_.size(); ++p) {
      poll_interrupt();
      if (step_of_[p] == kNoStep) continue;
      for (EdgeId e = points_.in_offsets[p]; e < points_.in_offsets[p + 1]; ++e) {
        const std::uint64_t lanes = mix(points_.lane[points_.source[e]] + 1, points_.lane[p]);
        const std::uint64_t like = mix(lanes, by_names({e, p, 0}));
        found.push_back({e, p, mix(like, number[mix(like, step_of_[p])]++)});
      }
    }
    return found;
  }

  /// Finds what each open edge costs elsewhere among all members, by a class; those without an
  /// answer stay open.
  template <typename KeyOf>
  void settle(std::vector<Member>& open, std::vector<std::int64_t>& lags, KeyOf key_of,
              const std::vector<Member>& all) const {
    if (open.empty()) return;
    ClassCosts costs;
    for (const Member& m : open) costs.want(key_of(m));
    for (const Member& m : all) {
      poll_interrupt();
      costs.add(key_of(m), step_of_[m.point], cost_ns_[m.edge]);
    }
    std::vector<Member> left;
    for (const Member& m : open) {
      if (!costs.elsewhere(key_of(m), step_of_[m.point], lags[m.edge])) left.push_back(m);
    }
    open.swap(left);
  }

  // ---- classes

  std::uint32_t rank_of(Point p) const { return points_.lanes[points_.lane[p]].rank; }
  std::uint64_t by_kind(const Member& m) const {
    return mix(1, static_cast<std::uint64_t>(points_.kind[m.edge]));
  }
  std::uint64_t by_kind_of_rank(const Member& m) const { return mix(by_kind(m), rank_of(m.point)); }
  std::uint64_t by_names(const Member& m) const {
    const Point source = points_.source[m.edge];
    const std::uint64_t ends = 2U * points_.is_end[source] + points_.is_end[m.point];
    const std::uint64_t names = mix(graph_.name[source], graph_.name[m.point]);
    return mix(mix(by_kind_of_rank(m), names), ends);
  }
  std::uint64_t by_rank(const Member& m) const { return mix(2, rank_of(m.point)); }
  std::uint64_t as_one(const Member&) const { return 3; }

  using KeyOf = std::uint64_t (HeldOut::*)(const Member&) const;
  static constexpr std::array<KeyOf, 5> kWiderClasses{&HeldOut::by_names, &HeldOut::by_kind_of_rank,
                                                      &HeldOut::by_rank, &HeldOut::by_kind,
                                                      &HeldOut::as_one};

  const ExecutionGraph& graph_;
  const DependencyGraph& points_;
  std::span<const std::uint32_t> step_of_;
  std::vector<std::int64_t> cost_ns_;  // by edge
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
  return HeldOut(graph, step_of).lags();
}

}  // namespace traceap
