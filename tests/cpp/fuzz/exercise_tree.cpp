#include <algorithm>

#include "exercises.hpp"

namespace traceap::fuzz {
namespace {

void check_nesting(const Rank& rank) {
  const EventTree& tree = rank.tree;
  const Row n = rank.size();
  check(tree.parent.size() == n && tree.depth.size() == n && tree.host_position.size() == n &&
            tree.op.size() == n && tree.forward.size() == n && tree.phase.size() == n &&
            tree.step.size() == n && tree.stream_of.size() == n && tree.gpu_class.size() == n,
        "columns of a tree have one length");
  for (Row row = 0; row < n; ++row) {
    const Row parent = tree.parent[row];
    check(parent == kNoRow || parent < row, "parents come before their children");
    if (parent != kNoRow) {
      check(is_inside(tree, row, parent) && !is_inside(tree, parent, row), "a child is inside");
      check(tree.depth[row] == std::min<int>(tree.depth[parent] + 1, 0xffff), "a depth");
    }
    check_row(rank.table, tree.op[row]);
    check_row(rank.table, tree.forward[row]);
    check(subtree_rows(tree, row).size() <= n, "a subtree");
  }
  check_offsets(tree.host_offsets, rank.table.tracks.size(), tree.host_rows.size());
  for (std::size_t i = 0; i < tree.host_rows.size(); ++i) {
    check(tree.subtree_end[i] > i && tree.subtree_end[i] <= tree.host_rows.size(),
          "a subtree's end");
    check(tree.host_position[tree.host_rows[i]] == i, "the place of a host row");
  }
}

void check_launches(const Rank& rank) {
  const EventTree& tree = rank.tree;
  check_offsets(tree.launched_offsets, rank.size(), tree.launched_rows.size());
  for (Row row = 0; row < rank.size(); ++row) {
    for (const Row launched : tree.launched_by(row))
      check(tree.launch[launched] == row, "a launch");
  }
  for (std::size_t i = 0; i < tree.gpu_rows.size(); ++i) {
    const Row row = tree.gpu_rows[i];
    check(rank.table.is_gpu_event(row), "gpu_rows are GPU events");
    check(i == 0 || rank.table.ts_ns[tree.gpu_rows[i - 1]] <= rank.table.ts_ns[row], "by start");
    const Row launch = tree.launch[row];
    check(launch == kNoRow || is_api_call(rank.table.kind[launch]), "a launch is a call");
    check((launch_delay_ns(rank.table, tree, row) == kNoId) == (launch == kNoRow), "a delay");
    (void)launch_time_ns(rank.table, tree, row);
  }
}

void check_steps(const Rank& rank) {
  const EventTree& tree = rank.tree;
  std::size_t of_streams = 0;
  for (const Stream& stream : tree.streams) of_streams += stream.rows.size();
  check(of_streams == tree.gpu_rows.size(), "every GPU event is on a stream");
  for (std::size_t i = 0; i < tree.steps.size(); ++i) {
    const Step& step = tree.steps[i];
    check(step.start_ns <= step.end_ns, "a step ends behind its start");
    check(i == 0 || tree.steps[i - 1].end_ns <= step.start_ns, "steps don't overlap");
    check_row(rank.table, step.row);
  }
  for (const std::uint32_t step : tree.step) {
    check(step == kNoStep || step < tree.steps.size(), "a row's step is one of the steps");
  }
  check(tree.profiled.start_ns <= tree.profiled.end_ns, "the profile ends behind its start");
  check(tree.main_track == kNoTrack || tree.main_track < rank.table.tracks.size(), "main thread");
}

}  // namespace

void check_set(std::span<const Interval> set) {
  for (std::size_t i = 0; i < set.size(); ++i) {
    check(set[i].start_ns < set[i].end_ns, "no interval is empty");
    check(i == 0 || set[i - 1].end_ns < set[i].start_ns, "intervals neither overlap nor touch");
  }
}

void check_offsets(std::span<const std::uint32_t> offsets, std::size_t groups, std::size_t size) {
  check(offsets.size() == groups + 1, "an offset for each group");
  check(offsets.front() == 0 && offsets.back() == size, "offsets cover all");
  check(std::is_sorted(offsets.begin(), offsets.end()), "offsets rise");
}

void exercise_tree(const Rank& rank) {
  check_nesting(rank);
  check_launches(rank);
  check_steps(rank);
}

}  // namespace traceap::fuzz
