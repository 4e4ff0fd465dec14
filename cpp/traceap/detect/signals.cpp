#include <algorithm>

#include "traceap/base/interrupt.hpp"
#include "traceap/detect/finding.hpp"
#include "traceap/detect/queries/names.hpp"

namespace traceap {
namespace {

std::vector<Row> complete_api_rows(const EventTable& table) {
  std::vector<Row> rows;
  for (Row r = 0; r < table.size(); ++r) {
    poll_interrupt();
    if (is_api_call(table.kind[r]) && table.is_complete(r)) rows.push_back(r);
  }
  return rows;
}

bool any_host_op(const EventTable& table) {
  for (Row r = 0; r < table.size(); ++r) {
    poll_interrupt();
    if (is_host(table.kind[r]) && !is_api_call(table.kind[r]) && table.is_complete(r)) return true;
  }
  return false;
}

bool any_operator(const EventTable& table) {
  const LazyNames is_operator(table, is_operator_name);
  for (Row r = 0; r < table.size(); ++r) {
    poll_interrupt();
    if (table.kind[r] == EventKind::kCpuOp && is_operator(r) && table.is_complete(r)) return true;
  }
  return false;
}

}  // namespace

Signals build_signals(const EventTable& table, const EventTree& tree,
                      const DetectOptions& options) {
  Signals signals{.table = table,
                  .tree = tree,
                  .gpu = build_gpu_intervals(table, tree),
                  .profiled = tree.profiled,
                  .options = options};
  signals.idle = explain_idle(table, tree, signals.gpu, signals.profiled);
  signals.gpu_idle = set_complement(signals.gpu.busy, signals.profiled);
  signals.copies = build_copies(table, tree);
  signals.api_rows = complete_api_rows(table);
  signals.has_host_ops = any_host_op(table);
  signals.has_operators = any_operator(table);
  signals.collectives = build_collectives(table, tree).collectives;
  std::erase_if(signals.collectives, [&](const Collective& c) {
    return tree.gpu_class[c.row] != GpuClass::kCommunication;  // a CPU backend's
  });
  signals.has_gpu = !tree.gpu_rows.empty();
  return signals;
}

}  // namespace traceap
