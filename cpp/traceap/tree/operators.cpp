// The cpu_op behind a GPU event: the one that encloses its launch call, else the one that carries
// the same External id. Ids of 0 name no op (GPU work outside of every op carries 0).

#include "traceap/base/interrupt.hpp"
#include "traceap/tree/build_parts.hpp"
#include "traceap/tree/id_index.hpp"

namespace traceap {

namespace {

bool names_op(std::int64_t external_id) { return external_id != kNoId && external_id != 0; }

IdIndex index_ops(const EventTable& table, const EventTree& tree) {
  std::vector<IdRow> ops;
  for (Row row = 0; row < table.size(); ++row) {
    poll_interrupt();
    if (table.kind[row] != EventKind::kCpuOp || tree.host_position[row] == kNoRow) continue;
    if (names_op(table.external_id[row])) ops.push_back({table.external_id[row], row});
  }
  return IdIndex(std::move(ops));
}

/// External id of a GPU event, else that of its launch call.
std::int64_t external_id_of(const EventTable& table, const EventTree& tree, Row row) {
  if (names_op(table.external_id[row])) return table.external_id[row];
  const Row launch = tree.launch[row];
  return launch == kNoRow ? kNoId : table.external_id[launch];
}

}  // namespace

void assign_gpu_ops(const TreeContext& context, EventTree& tree) {
  const EventTable& table = context.table;
  std::vector<IdRow> open;
  for (const Row row : tree.gpu_rows) {
    poll_interrupt();
    const Row launch = tree.launch[row];
    if (launch != kNoRow) tree.op[row] = tree.op[launch];
    if (tree.op[row] != kNoRow) continue;
    const std::int64_t id = external_id_of(table, tree, row);
    if (names_op(id)) open.push_back({id, row});
  }
  if (open.empty()) return;
  const IdIndex ops = index_ops(table, tree);
  for (const IdRow& event : open) {
    const std::span<const Row> found = ops.find(event.id);
    if (!found.empty()) tree.op[event.row] = found.front();
  }
}

}  // namespace traceap
