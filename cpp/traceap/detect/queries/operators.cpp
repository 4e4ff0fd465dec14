#include "traceap/detect/queries/operators.hpp"

#include "traceap/base/interrupt.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/ranges.hpp"

namespace traceap {

std::vector<std::vector<Row>> outermost_operators(const Signals& signals) {
  const EventTable& table = signals.table;
  const EventTree& tree = signals.tree;
  const LazyNames is_operator(table, is_operator_name);
  const std::vector<std::uint8_t> inside = rows_inside_operators(signals);
  std::vector<std::vector<Row>> threads;
  for (std::size_t track = 0; track + 1 < tree.host_offsets.size(); ++track) {
    std::vector<Row> operators;
    for (std::uint32_t i = tree.host_offsets[track]; i < tree.host_offsets[track + 1]; ++i) {
      poll_interrupt();
      const Row r = tree.host_rows[i];
      if (table.kind[r] == EventKind::kCpuOp && inside[r] == 0 && is_operator(r)) {
        operators.push_back(r);
      }
    }
    if (!operators.empty()) threads.push_back(std::move(operators));
  }
  return threads;
}

std::vector<Row> gpu_rows_inside(const Signals& signals, Row row) {
  std::vector<Row> rows;
  const auto add = [&](Row r) {
    const auto launched = signals.tree.launched_by(r);
    rows.insert(rows.end(), launched.begin(), launched.end());
  };
  add(row);
  for (Row r : subtree_rows(signals.tree, row)) add(r);
  return rows;
}

}  // namespace traceap
