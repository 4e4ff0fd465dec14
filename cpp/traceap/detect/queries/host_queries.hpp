#pragma once
// Questions that several rules ask about names, API calls, copies and the host's stacks. A name is
// judged once per distinct string, never once per row.

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "traceap/base/ids.hpp"
#include "traceap/base/intervals.hpp"
#include "traceap/base/string_pool.hpp"
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

/// A property of names, judged once per distinct string.
class NameSet {
 public:
  template <class Predicate>  // bool(std::string_view)
  NameSet(const StringPool& strings, Predicate&& predicate) : member_(strings.size()) {
    for (std::size_t id = 0; id < member_.size(); ++id) {
      member_[id] = predicate(strings[static_cast<StringId>(id)]) ? 1 : 0;
      any_ = any_ || member_[id];
    }
  }
  bool contains(StringId id) const { return id < member_.size() && member_[id] != 0; }
  bool any() const { return any_; }

 private:
  std::vector<std::uint8_t> member_;
  bool any_ = false;
};

/// An operator's name, rather than that of a range that a program or record_function put around
/// code ("ProfilerStep#3", "Optimizer.step#Adam.step"), which older torch writes as an operator.
bool is_operator_name(std::string_view name);

/// Sums stop at the ends of 64 bits: a trace may claim any time.
std::int64_t add_saturated(std::int64_t a, std::int64_t b);

/// Case-sensitive helpers for predicates.
inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}
/// Does `text` hold `part` (lower case) in any case? ASCII only.
bool contains_any_case(std::string_view text, std::string_view part_lower);

/// Complete host rows whose name is in `names`, by start. O(n), or O(1) if the set is empty.
std::vector<Row> host_rows_named(const EventTable& table, const EventTree& tree,
                                 const NameSet& names);
/// The row after `row` on the same thread that has the same parent, or kNoRow. O(1).
Row next_sibling(const EventTable& table, const EventTree& tree, Row row);
/// First GPU row in `sorted_rows` (by start) that starts at or after `time_ns`; kNoRow if none.
Row first_row_from(const EventTable& table, std::span<const Row> sorted_rows, std::int64_t time_ns);

inline Interval interval_of(const EventTable& table, Row row) {
  return {table.ts_ns[row], table.end_ns(row)};
}

}  // namespace traceap
