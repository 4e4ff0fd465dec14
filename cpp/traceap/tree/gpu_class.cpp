// GPU events and their class, by INTERFACE's definition.

#include "traceap/base/interrupt.hpp"
#include "traceap/tree/build_parts.hpp"

namespace traceap {

namespace {

GpuClass class_of(const TreeContext& context, const RareKey& collective_name, Row row) {
  const EventKind kind = context.table.kind[row];
  if (kind == EventKind::kGpuMemcpy) return GpuClass::kMemcpy;
  if (kind == EventKind::kGpuMemset) return GpuClass::kCompute;
  const NameTraits traits = context.traits_of(row);
  if (traits & kTraitCommunication) return GpuClass::kCommunication;
  if (collective_name.has(row)) return GpuClass::kCommunication;
  return (traits & kTraitCopyKernel) != 0 ? GpuClass::kMemcpy : GpuClass::kCompute;
}

}  // namespace

void classify_gpu_rows(const TreeContext& context, EventTree& tree) {
  const EventTable& table = context.table;
  tree.gpu_class.assign(table.size(), GpuClass::kNone);
  for (Row row = 0; row < table.size(); ++row) {
    poll_interrupt();
    if (table.is_gpu_event(row)) tree.gpu_rows.push_back(row);
  }
  const RareKey collective_name(table, "Collective name");
  for (const Row row : tree.gpu_rows) {
    poll_interrupt();
    tree.gpu_class[row] = class_of(context, collective_name, row);
  }
}

}  // namespace traceap
