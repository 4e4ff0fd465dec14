// What a row is, as codes: the class of an API call, the kind of a copy, the step that it belongs
// to.

#include <algorithm>
#include <optional>

#include "traceap/base/interrupt.hpp"
#include "traceap/tree/build_parts.hpp"

namespace traceap {

namespace {

/// Kinds of copies, by name first: judged once per distinct name.
class CopyKinds {
 public:
  CopyKinds(const TreeContext& context, const EventTree& tree)
      : context_(context),
        tree_(tree),
        of_name_(context.table.strings.size()),
        kind_(context.table, "kind") {}

  CopyKind operator()(Row row) {
    std::optional<CopyKind>& known = of_name_[context_.table.name[row]];
    if (!known) known = classify_copy(context_.table.name_of(row));
    return known->direction == CopyDirection::kUnknown ? by_arguments(row) : *known;
  }

 private:
  /// HIP says it in the event, or in the call (hipMemcpyKind). A kernel that copies reaches the
  /// host's memory too: where neither says which way it goes, nothing does.
  CopyKind by_arguments(Row row) const {
    const CopyKind of_event = classify_copy(kind_.text(row).value_or(""));
    if (of_event.direction != CopyDirection::kUnknown) return of_event;
    const Row launch = tree_.launch[row];
    const std::optional<std::int64_t> kind =
        launch == kNoRow ? std::nullopt : kind_.integer(launch);
    return copy_of_hip_kind(kind.value_or(-1));
  }

  const TreeContext& context_;
  const EventTree& tree_;
  std::vector<std::optional<CopyKind>> of_name_;
  RareKey kind_;
};

}  // namespace

void classify_api_rows(const TreeContext& context, EventTree& tree) {
  const EventTable& table = context.table;
  std::vector<ApiClass> of_name(table.strings.size(), ApiClass::kNone);
  tree.api.assign(table.size(), ApiClass::kNone);
  for (Row row = 0; row < table.size(); ++row) {
    poll_interrupt();
    if (!is_api_call(table.kind[row])) continue;
    ApiClass& api = of_name[table.name[row]];
    if (api == ApiClass::kNone) api = classify_api_call(table.name_of(row));
    tree.api[row] = api;
  }
}

void classify_copies(const TreeContext& context, EventTree& tree) {
  CopyKinds kind_of(context, tree);
  tree.copy_direction.assign(context.table.size(), CopyDirection::kNone);
  tree.host_memory.assign(context.table.size(), HostMemory::kNone);
  for (const Row row : tree.gpu_rows) {
    poll_interrupt();
    if (tree.gpu_class[row] != GpuClass::kMemcpy) continue;
    const CopyKind kind = kind_of(row);
    tree.copy_direction[row] = kind.direction;
    tree.host_memory[row] = kind.memory;
  }
}

void assign_steps(const TreeContext& context, EventTree& tree) {
  const EventTable& table = context.table;
  tree.step.assign(table.size(), kNoStep);
  if (tree.steps.empty()) return;
  for (Row row = 0; row < table.size(); ++row) {
    poll_interrupt();
    if ((table.flags[row] & kHasTime) == 0) continue;
    const std::int64_t time_ns =
        table.is_gpu_event(row) ? launch_time_ns(table, tree, row) : table.ts_ns[row];
    const auto later = std::partition_point(tree.steps.begin(), tree.steps.end(),
                                            [&](const Step& s) { return s.start_ns <= time_ns; });
    if (later == tree.steps.begin() || time_ns >= (later - 1)->end_ns) continue;
    tree.step[row] = static_cast<std::uint32_t>(later - 1 - tree.steps.begin());
  }
}

}  // namespace traceap
