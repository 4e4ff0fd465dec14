// GPU events and their class, by INTERFACE's definition.

#include <algorithm>
#include <array>
#include <string>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/text.hpp"
#include "traceap/tree/build_parts.hpp"

namespace traceap {

namespace {

/// XLA's categories of communication: "all-reduce fusion", "collective-permute", "send-done", ...
bool is_communication_category(std::string_view category) {
  constexpr std::array<std::string_view, 7> kWords{
      "all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective", "send", "recv"};
  const std::string lower = to_lower(category);
  return std::any_of(kWords.begin(), kWords.end(),
                     [&](std::string_view word) { return contains(lower, word); });
}

/// What the arguments of an event say of communication.
struct CommunicationArgs {
  RareKey collective_name, hlo_category;

  bool say_so(Row row) const {
    if (collective_name.has(row)) return true;
    const auto category = hlo_category.text(row);
    return category && is_communication_category(*category);
  }
};

GpuClass class_of(const TreeContext& context, const CommunicationArgs& args, Row row) {
  const EventKind kind = context.table.kind[row];
  if (kind == EventKind::kGpuMemcpy) return GpuClass::kMemcpy;
  if (kind == EventKind::kGpuMemset) return GpuClass::kCompute;
  const NameTraits traits = context.traits_of(row);
  if (traits & kTraitCommunication) return GpuClass::kCommunication;
  if (args.say_so(row)) return GpuClass::kCommunication;
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
  const CommunicationArgs args{RareKey(table, "Collective name"), RareKey(table, "hlo_category")};
  for (const Row row : tree.gpu_rows) {
    poll_interrupt();
    tree.gpu_class[row] = class_of(context, args, row);
  }
}

}  // namespace traceap
