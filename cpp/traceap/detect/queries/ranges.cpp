#include "traceap/detect/queries/ranges.hpp"

#include <algorithm>

#include "traceap/base/interrupt.hpp"
#include "traceap/detect/queries/names.hpp"

namespace traceap {

std::vector<std::uint8_t> launching_tracks(const Signals& signals) {
  std::vector<std::uint8_t> launching(signals.table.tracks.size(), 0);
  for (Row r : signals.api_rows) {
    if (starts_gpu_work(signals.api(r))) launching[signals.table.track[r]] = 1;
  }
  return launching;
}

std::vector<std::uint8_t> rows_inside_operators(const Signals& signals) {
  const EventTable& table = signals.table;
  const LazyNames is_operator(table, is_operator_name);
  std::vector<std::uint8_t> inside(table.size(), 0);
  for (Row r = 0; r < table.size(); ++r) {  // parents precede children
    const Row parent = signals.tree.parent[r];
    if (parent == kNoRow) continue;
    inside[r] =
        inside[parent] != 0 || (table.kind[parent] == EventKind::kCpuOp && is_operator(parent));
  }
  return inside;
}

bool has_backward(const Signals& signals) {
  const LazyNames backward(signals.table, [](std::string_view name) {
    return contains(name, "autograd::engine::evaluate_function") ||
           (contains(name, "Backward") && !contains(name, "aten::"));
  });
  return std::any_of(signals.tree.host_rows.begin(), signals.tree.host_rows.end(), [&](Row r) {
    return signals.table.kind[r] == EventKind::kCpuOp && backward(r);
  });
}

std::vector<Row> range_rows(const std::vector<Row>& outer) {
  std::vector<Row> rows;
  for (Row r = 0; r < outer.size(); ++r) {
    poll_interrupt();
    if (outer[r] == r) rows.push_back(r);
  }
  return rows;
}

std::vector<RangeLaunches> launches_by_range(const Signals& signals,
                                             const std::vector<Row>& outer) {
  std::vector<RangeLaunches> ranges;
  std::vector<std::uint32_t> place(outer.size(), 0);
  for (Row r : range_rows(outer)) {
    place[r] = static_cast<std::uint32_t>(ranges.size());
    ranges.push_back({r, {}});
  }
  for (Row g : signals.tree.gpu_rows) {
    const Row launch = signals.tree.launch[g];
    if (launch == kNoRow || outer[launch] == kNoRow) continue;
    ranges[place[outer[launch]]].gpu_rows.push_back(g);
  }
  return ranges;
}

Interval extent_of(const EventTable& table, const std::vector<Row>& gpu_rows) {
  if (gpu_rows.empty()) return {0, 0};
  Interval extent = interval_of(table, gpu_rows.front());
  for (Row r : gpu_rows) {
    extent.start_ns = std::min(extent.start_ns, table.ts_ns[r]);
    extent.end_ns = std::max(extent.end_ns, table.end_ns(r));
  }
  return extent;
}

}  // namespace traceap
