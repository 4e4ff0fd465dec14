#include "traceap/detect/queries/host_queries.hpp"

#include <algorithm>

namespace traceap {
namespace {

/// Calls such as cudaStreamIsCapturing or cudaGetLastError may stand between a copy and the
/// synchronisation that waits for it; PyTorch makes at most a few. The synchronisation counts too.
constexpr int kMaxCallsToSync = 6;

/// 256 GiB: more than one copy can move, and little enough that millions of them add up without
/// leaving 64 bits. Whatever claims more has no size.
constexpr std::int64_t kMaxCopyBytes = std::int64_t{1} << 38;

/// The synchronisation on the same stack level that directly follows a copy call, or kNoRow.
Row following_sync(const EventTable& table, const EventTree& tree, Row call) {
  Row next = next_sibling(table, tree, call);
  for (int i = 0; i < kMaxCallsToSync && next != kNoRow; ++i) {
    if (!is_api_call(table.kind[next])) return kNoRow;
    const ApiClass api = tree.api[next];
    if (is_synchronisation(api)) return next;
    if (api != ApiClass::kOther && api != ApiClass::kEventRecord) return kNoRow;
    next = next_sibling(table, tree, next);
  }
  return kNoRow;
}

}  // namespace

std::vector<Copy> build_copies(const EventTable& table, const EventTree& tree) {
  const ArgReader bytes(table, "bytes");
  std::vector<Copy> copies;
  for (Row r : tree.gpu_rows) {
    if (tree.gpu_class[r] != GpuClass::kMemcpy) continue;
    Copy copy{r, tree.copy_of(r), bytes.integer(r), tree.launch[r], {0, 0}, kNoRow};
    if (copy.bytes && (*copy.bytes < 0 || *copy.bytes > kMaxCopyBytes)) copy.bytes.reset();
    if (copy.launch != kNoRow) {
      copy.host = interval_of(table, copy.launch);
      copy.sync = following_sync(table, tree, copy.launch);
      if (copy.sync != kNoRow) copy.host.end_ns = table.end_ns(copy.sync);
    }
    copies.push_back(copy);
  }
  return copies;
}

Row next_sibling(const EventTable& table, const EventTree& tree, Row row) {
  if (tree.host_position[row] == kNoRow) return kNoRow;
  const std::size_t next = tree.host_position[row] + 1 + subtree_rows(tree, row).size();
  if (next >= tree.host_rows.size()) return kNoRow;
  const Row sibling = tree.host_rows[next];
  if (table.track[sibling] != table.track[row] || tree.parent[sibling] != tree.parent[row]) {
    return kNoRow;
  }
  return sibling;
}

Row first_row_from(const EventTable& table, std::span<const Row> sorted_rows,
                   std::int64_t time_ns) {
  const auto it = std::lower_bound(sorted_rows.begin(), sorted_rows.end(), time_ns,
                                   [&](Row r, std::int64_t time) { return table.ts_ns[r] < time; });
  return it == sorted_rows.end() ? kNoRow : *it;
}

}  // namespace traceap
