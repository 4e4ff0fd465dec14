#include "traceap/tree/event_tree.hpp"

#include <algorithm>
#include <tuple>

#include "traceap/base/interrupt.hpp"
#include "traceap/tree/build_parts.hpp"

namespace traceap {

namespace {

TreeOptions within_limits(TreeOptions options) {
  constexpr std::int64_t kMaxToleranceNs = 1'000'000'000'000;  // keeps sums of times in range
  options.overlap_tolerance_ns =
      std::clamp<std::int64_t>(options.overlap_tolerance_ns, 0, kMaxToleranceNs);
  return options;
}

}  // namespace

RareKey::RareKey(const EventTable& table, std::string_view key)
    : table_(table), mentions_(table.args.templates.size()) {
  const StringPool& templates = table.args.templates;
  bool any = false;
  for (StringId id = 0; id < templates.size(); ++id) {
    const std::string_view text = templates[id];
    mentions_[id] = text.find(key) != std::string_view::npos ||
                    text.find(static_cast<char>(kSlotArgs)) != std::string_view::npos;
    any |= mentions_[id];
  }
  if (any) reader_.emplace(table, key);
}

bool is_named_before(const Track& a, const Track& b) {
  return std::tie(a.pid, a.tid) < std::tie(b.pid, b.tid);
}

EventTree build_tree(const EventTable& table, const TreeOptions& options) {
  TreeContext context{table, within_limits(options), classify_names(table.strings), {}, {}};
  EventTree tree;
  const auto run = [&](auto&... parts) { ((poll_interrupt_now(), parts(context, tree)), ...); };
  run(classify_api_rows, group_host_rows, nest_host_rows, name_phases, classify_gpu_rows,
      link_by_correlation, link_by_flows, invert_launches, classify_copies, assign_gpu_ops,
      read_sequence_numbers, link_forward, choose_main_track, collect_steps, infer_steps,
      measure_profiled, place_phases, group_streams, compare_clocks, assign_steps, find_warm_up,
      describe_workload, judge_recording);
  return tree;
}

std::int64_t launch_delay_ns(const EventTable& table, const EventTree& tree, Row gpu_row) {
  const Row launch = tree.launch[gpu_row];
  if (launch == kNoRow) return kNoId;
  const std::int64_t delay_ns = table.ts_ns[gpu_row] - table.ts_ns[launch];
  std::int64_t corrected_ns;
  const bool overflows =
      __builtin_add_overflow(delay_ns, tree.launch_delay_correction_ns, &corrected_ns);
  return overflows ? delay_ns : corrected_ns;
}

std::int64_t launch_time_ns(const EventTable& table, const EventTree& tree, Row gpu_row) {
  const Row launch = tree.launch[gpu_row];
  return launch != kNoRow ? table.ts_ns[launch]
                          : table.ts_ns[gpu_row] + tree.launch_delay_correction_ns;
}

std::span<const Row> subtree_rows(const EventTree& tree, Row row) {
  const std::uint32_t position = tree.host_position[row];
  if (position == kNoRow) return {};
  return std::span(tree.host_rows).subspan(position + 1, tree.subtree_end[position] - position - 1);
}

bool is_inside(const EventTree& tree, Row row, Row ancestor) {
  if (row == ancestor) return true;
  const std::uint32_t position = tree.host_position[row];
  const std::uint32_t top = tree.host_position[ancestor];
  if (position == kNoRow || top == kNoRow) return false;
  return top < position && position < tree.subtree_end[top];
}

}  // namespace traceap
