#include "traceap/analysis/costs/gpu_costs.hpp"

#include <algorithm>
#include <utility>

#include "traceap/analysis/costs/subtree_unions.hpp"
#include "traceap/analysis/idle/host_self.hpp"
#include "traceap/analysis/idle/timeline.hpp"
#include "traceap/base/interrupt.hpp"
#include "traceap/base/sums.hpp"

namespace traceap {
namespace {

/// Lengths of unions that grow by intervals in order of their start.
class GrowingUnions {
 public:
  explicit GrowingUnions(std::size_t count) : length_ns(count, 0), covered_(count, kNoId) {}

  void add(std::size_t index, Interval added) {
    const std::int64_t start = std::max(added.start_ns, covered_[index]);
    if (added.end_ns <= start) return;
    length_ns[index] += added.end_ns - start;
    covered_[index] = added.end_ns;
  }

  std::vector<std::int64_t> length_ns;

 private:
  std::vector<std::int64_t> covered_;  // end of what is in the union so far
};

/// Gives each event of a class the instants that no earlier event of it and no set in `above` has.
void share_out(const EventTable& table, const EventTree& tree, GpuClass wanted,
               const IntervalSet& above, std::vector<std::int64_t>& exclusive_ns) {
  std::int64_t covered = kNoId;
  for (const Row row : tree.gpu_rows) {
    poll_interrupt();
    if (tree.gpu_class[row] != wanted) continue;
    const Interval piece{std::max(table.ts_ns[row], covered), table.end_ns(row)};
    if (piece.end_ns <= piece.start_ns) continue;
    exclusive_ns[row] = piece.length_ns() - covered_ns(above, piece);
    covered = piece.end_ns;
  }
}

std::vector<std::int64_t> build_exclusive(const EventTable& table, const EventTree& tree) {
  std::vector<std::int64_t> exclusive_ns(table.size(), 0);
  const GpuIntervals gpu = build_gpu_intervals(table, tree, {.keep_not_judged = true});
  share_out(table, tree, GpuClass::kCompute, {}, exclusive_ns);
  share_out(table, tree, GpuClass::kCommunication, gpu.compute, exclusive_ns);
  share_out(table, tree, GpuClass::kMemcpy, set_union(gpu.compute, gpu.communication),
            exclusive_ns);
  return exclusive_ns;
}

void add_gpu_events(const EventTable& table, const EventTree& tree, GpuCosts& costs) {
  GrowingUnions own(table.size());
  std::vector<PlacedInterval> below;
  for (const Row row : tree.gpu_rows) {
    poll_interrupt();
    const Interval interval{table.ts_ns[row], table.end_ns(row)};
    const Row launch = tree.launch[row];
    const Row owner = tree.op[row] != kNoRow ? tree.op[row] : launch;
    costs.owner[row] = owner;
    if (owner == kNoRow) continue;
    own.add(owner, interval);
    ++costs.own_gpu_events[owner];
    costs.owned_exclusive_ns[owner] += costs.exclusive_ns[row];
    if (launch != kNoRow && tree.launched_by(launch).front() == row) ++costs.own_launches[owner];
    // Without a launch the External id still names an op: its ancestors count the event too.
    const Row lowest = launch != kNoRow ? launch : owner;
    below.push_back({lowest, interval});
    ++costs.subtree_gpu_events[lowest];
  }
  costs.own_gpu_ns = std::move(own.length_ns);
  const std::vector<std::int64_t> union_ns = subtree_union_ns(tree, below);
  costs.subtree_gpu_ns.assign(table.size(), 0);
  for (std::size_t at = tree.host_rows.size(); at-- > 0;) {  // children before their parents
    const Row row = tree.host_rows[at], parent = tree.parent[row];
    costs.subtree_gpu_ns[row] = union_ns[at];
    if (parent != kNoRow) costs.subtree_gpu_events[parent] += costs.subtree_gpu_events[row];
  }
}

/// Visits the rows of each track in pre-order with enter(row), and leave(row) once all below it
/// have been visited.
template <typename Enter, typename Leave>
void walk_host_rows(const EventTree& tree, const Enter& enter, const Leave& leave) {
  std::vector<std::uint32_t> open;
  const auto close_until = [&](std::uint32_t position) {
    while (!open.empty() && tree.subtree_end[open.back()] <= position) {
      leave(tree.host_rows[open.back()]);
      open.pop_back();
    }
  };
  const auto count = static_cast<std::uint32_t>(tree.host_rows.size());
  for (std::uint32_t position = 0; position < count; ++position) {
    close_until(position);
    enter(tree.host_rows[position]);
    open.push_back(position);
  }
  close_until(count);
}

void mark_repeated(const EventTable& table, const EventTree& tree, GpuCosts& costs) {
  std::vector<std::uint32_t> open(table.strings.size() * kEventKindCount, 0);
  const auto key = [&](Row row) {
    return static_cast<std::size_t>(table.name[row]) * kEventKindCount +
           static_cast<std::size_t>(table.kind[row]);
  };
  walk_host_rows(
      tree, [&](Row row) { costs.is_repeated[row] = open[key(row)]++ > 0; },
      [&](Row row) { --open[key(row)]; });
}

void add_backward(const EventTree& tree, GpuCosts& costs) {
  std::vector<std::uint32_t> open(tree.forward.size(), 0);
  walk_host_rows(
      tree,
      [&](Row row) {
        const Row forward = tree.forward[row];
        if (forward != kNoRow && open[forward]++ == 0) {
          add_to(costs.backward_gpu_ns[forward], costs.subtree_gpu_ns[row]);
        }
      },
      [&](Row row) {
        if (tree.forward[row] != kNoRow) --open[tree.forward[row]];
      });
  costs.subtree_backward_gpu_ns = costs.backward_gpu_ns;
  for (std::size_t i = tree.host_rows.size(); i-- > 0;) {
    const Row row = tree.host_rows[i], parent = tree.parent[row];
    if (parent != kNoRow) {
      add_to(costs.subtree_backward_gpu_ns[parent], costs.subtree_backward_gpu_ns[row]);
    }
  }
}

}  // namespace

GpuCosts build_gpu_costs(const EventTable& table, const EventTree& tree) {
  const std::size_t size = table.size();
  GpuCosts costs;
  costs.own_gpu_events.assign(size, 0);
  costs.subtree_gpu_events.assign(size, 0);
  costs.own_launches.assign(size, 0);
  costs.owned_exclusive_ns.assign(size, 0);
  costs.backward_gpu_ns.assign(size, 0);
  costs.is_repeated.assign(size, 0);
  costs.owner.assign(size, kNoRow);
  costs.exclusive_ns = build_exclusive(table, tree);
  add_gpu_events(table, tree, costs);
  mark_repeated(table, tree, costs);
  add_backward(tree, costs);
  costs.self_host_ns.assign(size, 0);
  for (const TrackId track : tree.host_tracks) {
    poll_interrupt();
    visit_self_time(table, tree, track,
                    [&](Row row, Interval piece) { costs.self_host_ns[row] += piece.length_ns(); });
  }
  return costs;
}

std::vector<Row> innermost_marked(const EventTree& tree, std::span<const std::uint8_t> marked) {
  std::vector<Row> found(tree.parent.size(), kNoRow);
  for (Row row = 0; row < std::min(found.size(), marked.size()); ++row) {  // parents come first
    const Row parent = tree.parent[row];
    if (marked[row] != 0) {
      found[row] = row;
    } else if (parent != kNoRow) {
      found[row] = found[parent];
    }
  }
  return found;
}

std::vector<std::int64_t> group_gpu_union(const EventTable& table, const EventTree& tree,
                                          std::span<const std::int32_t> group_of,
                                          std::size_t groups) {
  GrowingUnions unions(groups);
  const std::size_t count = std::min(group_of.size(), tree.gpu_rows.size());
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t group = group_of[i];
    if (group < 0 || static_cast<std::size_t>(group) >= groups) continue;
    const Row row = tree.gpu_rows[i];
    unions.add(static_cast<std::size_t>(group), {table.ts_ns[row], table.end_ns(row)});
  }
  return std::move(unions.length_ns);
}

}  // namespace traceap
