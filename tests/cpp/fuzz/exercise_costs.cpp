#include <algorithm>
#include <numeric>

#include "exercises.hpp"
#include "traceap/analysis/costs/kernel_sequences.hpp"
#include "traceap/analysis/costs/launches.hpp"
#include "traceap/analysis/costs/modules.hpp"
#include "traceap/analysis/idle/timeline.hpp"
#include "traceap/base/error.hpp"

namespace traceap::fuzz {
namespace {

void check_costs(const Rank& rank, std::int64_t busy_ns) {
  const GpuCosts& costs = rank.costs;
  Sum exclusive;
  for (Row row = 0; row < rank.size(); ++row) {
    exclusive += costs.exclusive_ns[row];
    check(costs.own_gpu_ns[row] >= 0 && costs.own_gpu_ns[row] <= busy_ns, "own GPU time");
    check(costs.subtree_gpu_ns[row] >= 0 && costs.subtree_gpu_ns[row] <= busy_ns, "GPU time below");
    check(costs.self_host_ns[row] >= 0, "self time");
    check(costs.self_host_ns[row] <= rank.table.dur_ns[row], "self time is part of the row's");
    check(costs.backward_gpu_ns[row] >= 0 && costs.subtree_backward_gpu_ns[row] >= 0, "backward");
    check_row(rank.table, costs.owner[row]);
  }
  check(exclusive == busy_ns, "exclusive times add up to the busy time");
}

void check_modules(const Rank& rank, std::int64_t busy_ns) {
  const ModuleTree modules = build_modules(rank.table, rank.tree, rank.costs);
  Sum gpu;
  for (const ModuleCosts& own : modules.own) {
    for (const std::int64_t ns : own.gpu_ns) gpu += ns;
  }
  check(gpu == busy_ns, "modules add up to the busy time");
  for (std::uint32_t node = 0; node < modules.nodes.size(); ++node) {
    const std::uint32_t parent = modules.nodes[node].parent;
    check(parent == kNoRow || parent < node, "modules come behind their callers");
    check_row(rank.table, modules.nodes[node].first_call);
  }
  std::vector<std::uint32_t> order = modules.preorder;
  std::sort(order.begin(), order.end());
  for (std::uint32_t node = 0; node < order.size(); ++node) check(order[node] == node, "preorder");
  check(order.size() == modules.nodes.size(), "each module is in the preorder");
  for (const std::uint32_t node : modules.node_of) check(node < modules.nodes.size(), "a node");
}

void check_queue(const Rank& rank) {
  const LaunchQueue queue = build_launch_queue(rank.table, rank.tree);
  check_offsets(queue.offsets, rank.tree.streams.size(), queue.time_ns.size());
  for (const std::int32_t length : queue.length) check(length >= 0, "a queue's length");
  for (std::size_t i = 0; i < queue.found.size(); ++i) {
    const bool orphan = rank.tree.launch[rank.tree.gpu_rows[i]] == kNoRow;
    check(orphan ? queue.found[i] == -1 : queue.found[i] >= 0, "what a launch found queued");
  }
}

void check_sequences(const Rank& rank, Choices& choices) {
  std::vector<std::int32_t> symbols;
  for (const Row row : rank.tree.gpu_rows) {
    const bool is_kernel = rank.table.kind[row] == EventKind::kKernel;
    symbols.push_back(is_kernel ? static_cast<std::int32_t>(rank.table.name[row]) : -1);
  }
  SequenceOptions options;
  options.length = static_cast<std::uint32_t>(choices.below(5));
  if (options.length == 1) options.length = 0;
  options.drop_similar = !choices.flag();
  const KernelSequences found = find_kernel_sequences(rank.table, rank.tree, symbols, options);
  for (const KernelSequence& sequence : found.sequences) {
    check(sequence.length >= 2 && sequence.count >= 2, "a sequence repeats");
    check(found.kernels_of(sequence).size() == sequence.length, "kernels of a sequence");
    check(sequence.removable_ns >= 0 && sequence.gap_ns >= 0, "what a sequence could save");
    for (const Row row : found.kernels_of(sequence)) check(row < rank.size(), "a kernel");
    check_row(rank.table, sequence.op);
  }
}

void check_groups(const Rank& rank, std::int64_t busy_ns) {
  std::vector<std::int32_t> group_of;
  for (const Row row : rank.tree.gpu_rows) {
    group_of.push_back(static_cast<std::int32_t>(rank.tree.stream_of[row]) - 1);
  }
  for (const std::int64_t ns :
       group_gpu_union(rank.table, rank.tree, group_of, rank.tree.streams.size())) {
    check(ns >= 0 && ns <= busy_ns, "a group's GPU time");
  }
  std::vector<std::uint8_t> marked(rank.size());
  for (Row row = 0; row < rank.size(); ++row) marked[row] = rank.table.name[row] % 2 == 0;
  for (const Row row : innermost_marked(rank.tree, marked)) {
    check(row == kNoRow || marked.at(row) != 0, "the innermost marked row is marked");
  }
}

}  // namespace

void exercise_costs(const Rank& rank, Choices& choices) {
  // Costs count all work that is recorded, in stretches that are not judged too.
  const std::int64_t busy_ns =
      compute_timeline(build_gpu_intervals(rank.table, rank.tree, {.keep_not_judged = true}))
          .busy_ns;
  check_costs(rank, busy_ns);
  check_modules(rank, busy_ns);
  check_queue(rank);
  check_sequences(rank, choices);
  check_groups(rank, busy_ns);
}

}  // namespace traceap::fuzz
