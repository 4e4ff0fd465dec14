#include "traceap/detect/queries/host_queries.hpp"

#include <algorithm>
#include <limits>

#include "traceap/analysis/idle/host_activity.hpp"

namespace traceap {
namespace {

/// Calls such as cudaStreamIsCapturing or cudaGetLastError may stand between a copy and the
/// synchronisation that waits for it; PyTorch makes at most a few.
constexpr int kMaxCallsBeforeSync = 6;

/// 256 GiB: more than one copy can move, and little enough that millions of them add up without
/// leaving 64 bits. Whatever claims more has no size.
constexpr std::int64_t kMaxCopyBytes = std::int64_t{1} << 38;

/// The synchronisation on the same stack level that directly follows a copy call, or kNoRow.
Row following_sync(const EventTable& table, const EventTree& tree,
                   const std::vector<ApiClass>& api_class, Row call) {
  Row next = next_sibling(table, tree, call);
  for (int i = 0; i < kMaxCallsBeforeSync && next != kNoRow; ++i) {
    if (!is_api_call(table.kind[next])) return kNoRow;
    const ApiClass api = api_class[table.name[next]];
    if (is_sync(api)) return next;
    if (api != ApiClass::kOther && api != ApiClass::kEventRecord) return kNoRow;
    next = next_sibling(table, tree, next);
  }
  return kNoRow;
}

}  // namespace

ApiClass classify_api(std::string_view name) {
  if (contains(name, "GraphLaunch")) return ApiClass::kGraphLaunch;
  if (contains(name, "Launch") && !contains(name, "HostFunc")) return ApiClass::kKernelLaunch;
  if (contains(name, "StreamSynchronize")) return ApiClass::kStreamSync;
  if (contains_any(name, {"DeviceSynchronize", "CtxSynchronize", "ThreadSynchronize"})) {
    return ApiClass::kDeviceSync;
  }
  if (contains(name, "EventSynchronize")) return ApiClass::kEventSync;
  if (contains(name, "StreamWaitEvent")) return ApiClass::kStreamWaitEvent;
  if (contains(name, "EventRecord")) return ApiClass::kEventRecord;
  if (contains_any_case(name, "memcpy")) return ApiClass::kMemcpy;
  if (contains_any_case(name, "memset")) return ApiClass::kMemset;
  if (contains_any(name, {"HostAlloc", "MallocHost", "HostMalloc", "AllocHost", "HostRegister"})) {
    return ApiClass::kHostAlloc;
  }
  if (contains_any(name, {"FreeHost", "HostFree", "HostUnregister"})) return ApiClass::kOther;
  if (contains_any(name, {"Malloc", "MemAlloc", "MemCreate", "MemMap"})) {
    return ApiClass::kMalloc;
  }
  if (contains_any(name, {"cudaFree", "hipFree", "MemFree", "MemUnmap", "MemRelease"})) {
    return ApiClass::kFree;
  }
  if (contains_any(name, {"ModuleLoad", "LibraryLoad", "LibraryGetKernel"})) {
    return ApiClass::kModuleLoad;
  }
  return ApiClass::kOther;
}

CopyKind classify_copy(std::string_view name) {
  using enum CopyMemory;
  switch (classify_copy_memory(name)) {
    case kHtoDPageable:
      return {CopyDirection::kHostToDevice, HostMemory::kPageable};
    case kHtoDPinned:
      return {CopyDirection::kHostToDevice, HostMemory::kPinned};
    case kHtoDUnknown:
      return {CopyDirection::kHostToDevice, HostMemory::kUnknown};
    case kDtoHPageable:
      return {CopyDirection::kDeviceToHost, HostMemory::kPageable};
    case kDtoHPinned:
      return {CopyDirection::kDeviceToHost, HostMemory::kPinned};
    case kDtoHUnknown:
      return {CopyDirection::kDeviceToHost, HostMemory::kUnknown};
    case kDtoD:
      return {contains_any_case(name, "ptop") || contains_any_case(name, "p2p") ||
                      contains_any_case(name, "peer")
                  ? CopyDirection::kPeerToPeer
                  : CopyDirection::kDeviceToDevice,
              HostMemory::kNoHost};
    case kOther:
      break;
  }
  return {};
}

namespace {

/// Kinds of copies by name, judged once per distinct name, and by what HIP writes beside it.
class CopyKinds {
 public:
  CopyKinds(const EventTable& table, const EventTree& tree)
      : table_(table), tree_(tree), of_name_(table.strings.size()), kind_(table, "kind") {}

  CopyKind operator()(Row row) {
    std::optional<CopyKind>& known = of_name_[table_.name[row]];
    if (!known) known = classify_copy(table_.name_of(row));
    return known->direction == CopyDirection::kUnknown ? by_arguments(row) : *known;
  }

 private:
  /// A copy that runs as a kernel (__amd_rocclr_copyBuffer) does not say which way it goes, but its
  /// call does: hipMemcpyKind.
  CopyKind by_arguments(Row row) const {
    const Row launch = tree_.launch[row];
    if (launch == kNoRow) return {};
    switch (kind_.integer(launch).value_or(-1)) {
      case 1:
        return {CopyDirection::kHostToDevice, HostMemory::kUnknown};
      case 2:
        return {CopyDirection::kDeviceToHost, HostMemory::kUnknown};
      case 3:
        return {CopyDirection::kDeviceToDevice, HostMemory::kNoHost};
      default:
        return {};
    }
  }

  const EventTable& table_;
  const EventTree& tree_;
  std::vector<std::optional<CopyKind>> of_name_;
  ArgReader kind_;
};

}  // namespace

std::vector<Copy> build_copies(const EventTable& table, const EventTree& tree,
                               const std::vector<ApiClass>& api_class) {
  CopyKinds kind_of(table, tree);
  const ArgReader bytes(table, "bytes");
  std::vector<Copy> copies;
  for (Row r : tree.gpu_rows) {
    if (tree.gpu_class[r] != GpuClass::kMemcpy) continue;
    Copy copy{r, kind_of(r), bytes.integer(r), tree.launch[r], {0, 0}, kNoRow};
    if (copy.bytes && (*copy.bytes < 0 || *copy.bytes > kMaxCopyBytes)) copy.bytes.reset();
    if (copy.launch != kNoRow) {
      copy.host = interval_of(table, copy.launch);
      copy.sync = following_sync(table, tree, api_class, copy.launch);
      if (copy.sync != kNoRow) copy.host.end_ns = table.end_ns(copy.sync);
    }
    copies.push_back(copy);
  }
  return copies;
}

std::int64_t add_saturated(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return b < 0 ? std::numeric_limits<std::int64_t>::min()
               : std::numeric_limits<std::int64_t>::max();
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
