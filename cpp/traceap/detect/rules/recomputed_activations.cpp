// The forward pass runs a second time inside the backward pass: activation checkpointing.
//
// Cost: the GPU work of the repeated layers. It buys memory, so it is waste only where there is
// memory to spare: where the trace shows how full the device was, it decides.

#include <algorithm>

#include "traceap/base/interrupt.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/ranges.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// From none to all of the blocks can keep their activations.
constexpr SavingShares kSaving{.basis = SavingBasis::kGpuWork, .best = 0.5};
/// With more of the device's memory taken than this, checkpointing may be what makes the model fit:
/// allocators need some room, and batches differ.
constexpr double kFullShare = 0.7;

/// Operators of layers as a program calls them. The backward of any operator calls none of these.
bool is_layer_operator(std::string_view name) {
  return is_any(name, {"aten::linear", "aten::conv1d", "aten::conv2d", "aten::conv3d",
                       "aten::batch_norm", "aten::layer_norm", "aten::group_norm", "aten::rms_norm",
                       "aten::instance_norm", "aten::scaled_dot_product_attention", "aten::softmax",
                       "aten::dropout", "aten::embedding", "aten::relu", "aten::relu_",
                       "aten::gelu", "aten::silu", "aten::max_pool2d"});
}
bool is_backward_node(std::string_view name) {
  return name.starts_with("autograd::engine::evaluate_function: ");
}

/// By host row: the innermost node of the backward pass around it (itself included).
std::vector<Row> backward_nodes(const Signals& signals) {
  const EventTable& table = signals.table;
  const LazyNames is_node(table, is_backward_node);
  std::vector<Row> node(table.size(), kNoRow);
  for (Row r = 0; r < table.size(); ++r) {  // parents precede children
    poll_interrupt();
    if (!is_host(table.kind[r]) || !table.is_complete(r)) continue;
    const Row parent = signals.tree.parent[r];
    node[r] = is_node(r) ? r : parent == kNoRow ? kNoRow : node[parent];
  }
  return node;
}

/// By node: the time from its first repeated layer to the end of its last; empty where it repeats
/// none. What lies between them (additions, reshapes) is repeated with them.
std::vector<Interval> repeated_times(const Signals& signals, const std::vector<Row>& node,
                                     std::vector<Row>& layers) {
  const EventTable& table = signals.table;
  const LazyNames is_layer(table, is_layer_operator);
  std::vector<Interval> times(table.size(), Interval{0, 0});
  for (Row r = 0; r < table.size(); ++r) {
    poll_interrupt();
    if (node[r] == kNoRow || table.kind[r] != EventKind::kCpuOp || !is_layer(r)) continue;
    Interval& time = times[node[r]];
    if (time.length_ns() == 0) time = interval_of(table, r);
    time.end_ns = std::max(time.end_ns, table.end_ns(r));
    layers.push_back(r);
  }
  return times;
}

/// The largest share of a device's memory that PyTorch had reserved; nothing where the trace does
/// not say (profile_memory=True, and the device's properties).
std::optional<double> reserved_share(const Signals& signals) {
  const EventTable& table = signals.table;
  std::int64_t capacity = 0;
  for (const DeviceProperties& device : table.devices) {
    capacity = std::max(capacity, device.memory_bytes.value_or(0));
  }
  if (capacity <= 0) return std::nullopt;
  const LazyNames is_memory(table, [](std::string_view name) { return name == "[memory]"; });
  const ArgReader reserved(table, "Total Reserved");
  std::int64_t most = 0;
  for (Row r = 0; r < table.size(); ++r) {
    poll_interrupt();
    // Of the host no memory is reserved.
    if (is_memory(r)) most = std::max(most, reserved.integer(r).value_or(0));
  }
  if (most <= 0) return std::nullopt;
  return static_cast<double>(most) / static_cast<double>(capacity);
}

Finding detect(const Signals& signals) {
  if (!signals.has_gpu) return abstain({"GPU events"});
  if (!signals.has_operators) return abstain({"host operators"});
  const std::vector<Row> node = backward_nodes(signals);
  std::vector<Row> layers;
  const std::vector<Interval> repeated = repeated_times(signals, node, layers);
  if (layers.empty()) return absent();
  if (!signals.links_operators()) return abstain({missing_link(signals)});
  const std::optional<double> reserved = reserved_share(signals);
  if (reserved && *reserved > kFullShare) return absent(0.7);  // the memory is needed

  Draft draft(kSaving);
  for (Row g : signals.tree.gpu_rows) {
    const Row launch = signals.tree.launch[g];
    if (launch == kNoRow || node[launch] == kNoRow) continue;
    const Interval& time = repeated[node[launch]];
    const std::int64_t at_ns = signals.table.ts_ns[launch];
    if (at_ns >= time.start_ns && at_ns < time.end_ns) {
      draft.cost.push_back(interval_of(signals.table, g));
    }
  }
  draft.confidence = 0.8;
  if (reserved) {
    draft.share("memory reserved", *reserved);
  } else {
    draft.missing_signals.emplace_back("memory events: whether the device has room to keep them");
    draft.confidence = 0.5;
  }
  draft.count("layers", layers.size());
  add_per_step_fact(signals, draft, "per step", layers.size());
  draft.text("operations", most_frequent_names(signals.table, layers, 3));
  draft.evidence = std::move(layers);
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule recomputed_activations{.type = "recomputed_activations",
                                             .subject = Subject::kTraining,
                                             .saving = kSaving,
                                             .detect = detect};
}

}  // namespace traceap
