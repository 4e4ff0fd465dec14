#include "traceap/analysis/gpu_costs.hpp"

#include <algorithm>

#include "traceap/analysis/timeline.hpp"

namespace traceap {
namespace {

/// Length of a union that grows by intervals in order of their start.
class GrowingUnion {
 public:
  explicit GrowingUnion(std::size_t rows) : length_ns(rows, 0), covered_(rows, kNoId) {}

  void add(Row row, Interval added) {
    const std::int64_t start = std::max(added.start_ns, covered_[row]);
    if (added.end_ns <= start) return;
    length_ns[row] += added.end_ns - start;
    covered_[row] = added.end_ns;
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
    if (tree.gpu_class[row] != wanted) continue;
    const Interval piece{std::max(table.ts_ns[row], covered), table.end_ns(row)};
    if (piece.end_ns <= piece.start_ns) continue;
    exclusive_ns[row] = piece.length_ns() - covered_ns(above, piece);
    covered = piece.end_ns;
  }
}

std::vector<std::int64_t> build_exclusive(const EventTable& table, const EventTree& tree) {
  std::vector<std::int64_t> exclusive_ns(table.size(), 0);
  const GpuIntervals gpu = build_gpu_intervals(table, tree);
  share_out(table, tree, GpuClass::kCompute, {}, exclusive_ns);
  share_out(table, tree, GpuClass::kCommunication, gpu.compute, exclusive_ns);
  share_out(table, tree, GpuClass::kMemcpy, set_union(gpu.compute, gpu.communication),
            exclusive_ns);
  return exclusive_ns;
}

/// A child may stick out of its parent by the nesting tolerance: only what lies inside counts.
std::vector<std::int64_t> build_self_host(const EventTable& table, const EventTree& tree) {
  std::vector<std::int64_t> self_ns(table.size(), 0);
  for (const Row row : tree.host_rows) {
    self_ns[row] += table.dur_ns[row];
    const Row parent = tree.parent[row];
    if (parent == kNoRow) continue;
    const std::int64_t inside = std::min(table.end_ns(row), table.end_ns(parent)) -
                                std::max(table.ts_ns[row], table.ts_ns[parent]);
    self_ns[parent] -= std::max<std::int64_t>(0, inside);
  }
  for (std::int64_t& ns : self_ns) ns = std::max<std::int64_t>(0, ns);
  return self_ns;
}

}  // namespace

GpuCosts build_gpu_costs(const EventTable& table, const EventTree& tree) {
  const std::size_t size = table.size();
  GpuCosts costs;
  costs.own_gpu_events.assign(size, 0);
  costs.subtree_gpu_events.assign(size, 0);
  costs.owner.assign(size, kNoRow);
  GrowingUnion own(size), subtree(size);
  for (const Row row : tree.gpu_rows) {
    const Interval interval{table.ts_ns[row], table.end_ns(row)};
    const Row owner = tree.op[row] != kNoRow ? tree.op[row] : tree.launch[row];
    costs.owner[row] = owner;
    if (owner != kNoRow) {
      own.add(owner, interval);
      ++costs.own_gpu_events[owner];
    }
    // Without a launch the External id still names an op: its ancestors count the event too.
    for (Row above = tree.launch[row] != kNoRow ? tree.launch[row] : owner; above != kNoRow;
         above = tree.parent[above]) {
      subtree.add(above, interval);
      ++costs.subtree_gpu_events[above];
    }
  }
  costs.own_gpu_ns = std::move(own.length_ns);
  costs.subtree_gpu_ns = std::move(subtree.length_ns);
  costs.exclusive_ns = build_exclusive(table, tree);
  costs.self_host_ns = build_self_host(table, tree);
  return costs;
}

}  // namespace traceap
