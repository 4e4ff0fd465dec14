#include <algorithm>
#include <utility>

#include "traceap/base/interrupt.hpp"
#include "traceap/detect/finding.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/stalls.hpp"

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

/// Is the device one whose kernels have names of their own? Its profiler's categories say so, or
/// the process of its streams (docs/formats.md).
bool has_foreign_kernels(const EventTable& table) {
  const auto& tracks = table.tracks;
  if (std::any_of(tracks.begin(), tracks.end(), [](const Track& track) {
        return contains(track.process_name(), "Ascend Hardware");
      })) {
    return true;
  }
  std::vector<std::uint8_t> foreign(table.strings.size(), 0);
  for (const std::string_view category :
       {"xpu_runtime", "xpu_driver", "mtia_runtime", "mtia_ccp_events", "hpu_op",
        "privateuse1_runtime", "privateuse1_driver", "mlu_runtime", "mlu_memcpy", "gcu_runtime",
        "gcu_driver"}) {
    const StringId id = table.strings.find(category);
    if (id != kNoString) foreign[id] = 1;
  }
  for (Row r = 0; r < table.size(); ++r) {
    poll_interrupt();
    const StringId category = table.category[r];
    if (category != kNoString && foreign[category] != 0) return true;
  }
  return false;
}

/// Time in which an operator runs on any thread, within `bounds`.
std::int64_t operator_ns(const EventTable& table, const EventTree& tree, Interval bounds) {
  std::vector<Interval> spans;
  for (const Row row : tree.host_rows) {
    poll_interrupt();
    if (table.kind[row] == EventKind::kCpuOp) spans.push_back(interval_of(table, row));
  }
  return total_length_ns(set_clip(make_union(std::move(spans)), bounds));
}

}  // namespace

bool runs_on_host(const EventTable& table, const EventTree& tree) {
  constexpr std::int64_t kTenth = 10;
  if (!tree.gpu_rows.empty() || !table.devices.empty()) return false;
  const bool calls_gpu = std::any_of(tree.api.begin(), tree.api.end(),
                                     [](ApiClass api) { return api != ApiClass::kNone; });
  const std::int64_t least_ns = (tree.profiled.end_ns - tree.profiled.start_ns) / kTenth;
  return !calls_gpu && least_ns > 0 && operator_ns(table, tree, tree.profiled) >= least_ns;
}

Signals build_signals(const EventTable& table, const EventTree& tree,
                      const DetectOptions& options) {
  GpuIntervals gpu = build_gpu_intervals(table, tree);
  IdleBreakdown idle = explain_idle(table, tree, gpu, tree.profiled);
  return build_signals(table, tree, std::move(gpu), std::move(idle), options);
}

Signals build_signals(const EventTable& table, const EventTree& tree, GpuIntervals gpu,
                      IdleBreakdown idle, const DetectOptions& options) {
  Signals signals{.table = table,
                  .tree = tree,
                  .gpu = std::move(gpu),
                  .idle = std::move(idle),
                  .profiled = tree.profiled,
                  .options = options};
  signals.unawaited = find_unawaited(table, tree, signals.gpu);
  const IntervalSet awaited = set_difference(signals.gpu.busy, signals.unawaited.sure);
  signals.gpu_idle = set_difference(set_complement(awaited, signals.profiled),
                                    set_union(signals.gpu.not_judged, tree.recording.missing));
  if (!signals.unawaited.sure.empty()) {
    GpuIntervals awaits = signals.gpu;
    awaits.busy = awaited;
    signals.idle = explain_idle(table, tree, awaits, signals.profiled);
  }
  // Nothing that the host does opens a gap between two nodes of one replay of a graph.
  signals.host_idle =
      set_difference(signals.gpu_idle, idle_with_cause(signals, {IdleCause::kWithinGraph}));
  signals.copies = build_copies(table, tree);
  signals.api_rows = complete_api_rows(table);
  signals.has_host_ops = any_host_op(table);
  signals.has_operators = any_operator(table);
  CollectiveList list = build_collectives(table, tree);
  signals.collectives = std::move(list.collectives);
  signals.groups = std::move(list.groups);
  std::erase_if(signals.collectives, [&](const Collective& c) {
    return tree.gpu_class[c.row] != GpuClass::kCommunication;  // a CPU backend's
  });
  signals.has_gpu = !tree.gpu_rows.empty();
  signals.foreign_kernels = signals.has_gpu && has_foreign_kernels(table);
  signals.on_host = runs_on_host(table, tree);
  signals.value_reads = find_value_reads(signals);
  signals.served = find_served(table, tree);
  return signals;
}

}  // namespace traceap
