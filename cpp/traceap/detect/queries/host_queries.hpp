#pragma once
// Questions that several rules ask about API calls, copies and the host's stacks.

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "traceap/base/ids.hpp"
#include "traceap/base/intervals.hpp"
#include "traceap/base/text.hpp"
#include "traceap/table/event_table.hpp"
#include "traceap/tree/event_tree.hpp"

namespace traceap {

/// What a runtime or driver call does, for CUDA and HIP names alike.
enum class ApiClass : std::uint8_t {
  kNone = 0,
  kKernelLaunch,  ///< cudaLaunchKernel*, cuLaunchKernel*, hip*LaunchKernel*
  kGraphLaunch,   ///< cudaGraphLaunch, hipGraphLaunch
  kMemcpy,        ///< cudaMemcpy*, cuMemcpy*, hipMemcpy*
  kMemset,
  kStreamSync,       ///< host waits for a stream
  kDeviceSync,       ///< host waits for the device or context
  kEventSync,        ///< host waits for an event
  kStreamWaitEvent,  ///< a stream waits, the host does not
  kEventRecord,
  kMalloc,  ///< device memory: cudaMalloc, cuMemCreate/Map, hipMalloc
  kFree,
  kHostAlloc,   ///< pinned host memory
  kModuleLoad,  ///< code is loaded: cuModuleLoad*, cuLibraryLoad*, hipModuleLoad*
  kOther,
};
ApiClass classify_api(std::string_view name);
constexpr bool is_sync(ApiClass c) {
  return c == ApiClass::kStreamSync || c == ApiClass::kDeviceSync || c == ApiClass::kEventSync;
}
constexpr bool is_launch(ApiClass c) {
  return c == ApiClass::kKernelLaunch || c == ApiClass::kGraphLaunch;
}

enum class CopyDirection : std::uint8_t {
  kHostToDevice,
  kDeviceToHost,
  kDeviceToDevice,
  kPeerToPeer,
  kUnknown
};
enum class HostMemory : std::uint8_t { kPageable, kPinned, kUnknown, kNoHost };

/// What a memcpy's name says, in the words of CUPTI ("Memcpy HtoD (Pageable -> Device)"), roctracer
/// ("CopyHostToDevice") and rocprofiler ("MEMORY_COPY_HOST_TO_DEVICE").
struct CopyKind {
  CopyDirection direction = CopyDirection::kUnknown;
  HostMemory memory = HostMemory::kUnknown;
};
CopyKind classify_copy(std::string_view name);
constexpr bool is_host_device(CopyDirection d) {
  return d == CopyDirection::kHostToDevice || d == CopyDirection::kDeviceToHost;
}

struct Copy {
  Row row;
  CopyKind kind;
  std::optional<std::int64_t> bytes;  ///< args.bytes, if it can be a size
  Row launch;                         ///< the API call; kNoRow for orphans
  /// While the host sat in the copy: its API call, to the end of the synchronisation that waits for
  /// it. Empty (start = end) without a launch.
  Interval host;
  Row sync;  ///< that synchronisation; kNoRow if none
};
/// Every GPU event of class memcpy, by start. O(n).
std::vector<Copy> build_copies(const EventTable& table, const EventTree& tree,
                               const std::vector<ApiClass>& api_class);

/// Sums stop at the ends of 64 bits: a trace may claim any time.
std::int64_t add_saturated(std::int64_t a, std::int64_t b);

/// The row after `row` on the same thread that has the same parent, or kNoRow. O(1).
Row next_sibling(const EventTable& table, const EventTree& tree, Row row);
/// First GPU row in `sorted_rows` (by start) that starts at or after `time_ns`; kNoRow if none.
Row first_row_from(const EventTable& table, std::span<const Row> sorted_rows, std::int64_t time_ns);

inline Interval interval_of(const EventTable& table, Row row) {
  return {table.ts_ns[row], table.end_ns(row)};
}

}  // namespace traceap
