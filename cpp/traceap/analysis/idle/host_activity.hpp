#pragma once
// What a host row says about the time spent in it: an API call by its class, other rows by their
// names, which are judged once per distinct string, and only when first met.

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "traceap/table/event_table.hpp"
#include "traceap/tree/event_tree.hpp"

namespace traceap {

enum class HostActivity : std::uint8_t {
  kPlain = 0,          ///< nothing special: an op, a range, a frame
  kMarker,             ///< an operator by category that is a range by name: legacy ProfilerStep#N
  kApiCall,            ///< a runtime or driver call that is none of those below, launches included
  kSynchronize,        ///< the host waits for the GPU
  kSyncCopy,           ///< a copy call that returns when the copy is done
  kAsyncCopy,          ///< a copy call that may return earlier
  kAllocator,          ///< device or pinned memory is taken, mapped or given back
  kDataLoading,        ///< the next batch is made or waited for
  kCompilation,        ///< code is generated, loaded, instantiated or tuned
  kCopyOp,             ///< an operator that exists to copy, such as aten::to
  kScalarReadOp,       ///< an operator that exists to read a value from the device: aten::item
  kSyncingOp,          ///< an operator that also computes before it must read: aten::nonzero
  kConvolutionOp,      ///< an operator that synchronises only to try algorithms
  kCommunicationWait,  ///< the host waits for a collective
  kHostCollective,     ///< a collective that runs on a host thread of its own (gloo)
  kCompiledRegion,     ///< a call of compiled code
  kProfiler,           ///< work of the profiler itself
};

/// What an API call of a class does to the host.
HostActivity activity_of(ApiClass api);
/// Judges by kind and name: what "cudaFree" means depends on whether an API call bears the name.
HostActivity classify_host_activity(EventKind kind, std::string_view name);

/// classify_host_activity for rows of one table, cached per string. Not thread-safe.
class HostActivities {
 public:
  HostActivities(const EventTable& table, const EventTree& tree) : table_(table), tree_(tree) {}
  HostActivity operator()(Row row) const;

 private:
  static constexpr std::uint8_t kUnseen = 0xff;
  enum Namespace { kFrame, kRange, kOverheadRow, kNamespaceCount };
  static Namespace namespace_of(EventKind kind);

  const EventTable& table_;
  const EventTree& tree_;
  mutable std::array<std::vector<std::uint8_t>, kNamespaceCount> seen_;
};

/// A call that neither copies, waits nor allocates takes 1 to 100 us, and the queue can't be full
/// while the GPU is idle: one that takes this long met something that happens once, such as the
/// loading of code or the start of the context (on public traces 1.1 ms to 30 s).
inline constexpr std::int64_t kLongCallNs = 1'000'000;

/// Does the host stay in this asynchronous copy call until the copy is done? Yes for pageable
/// memory, and where the call returns after the copy's end; never for copies inside the device.
bool is_blocking_copy(const EventTable& table, const EventTree& tree, Row call);

}  // namespace traceap
