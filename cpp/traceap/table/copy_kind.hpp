#pragma once
// Which way a copy goes and what host memory it uses, by what the profiler wrote: the one place
// that says so.

#include <cstdint>
#include <string_view>

namespace traceap {

enum class CopyDirection : std::uint8_t {
  kNone = 0,  ///< the row is no copy
  kHostToDevice,
  kDeviceToHost,
  kDeviceToDevice,
  kPeerToPeer,  ///< between devices
  kHostToHost,
  kUnknown,  ///< the trace does not say
};
inline constexpr int kCopyDirectionCount = static_cast<int>(CopyDirection::kUnknown) + 1;

enum class HostMemory : std::uint8_t {
  kNone = 0,  ///< no side is the host's
  kPageable,
  kPinned,
  kManaged,
  kUnknown,  ///< the trace does not say: ROCm does not tell pageable from pinned
};
inline constexpr int kHostMemoryCount = static_cast<int>(HostMemory::kUnknown) + 1;

struct CopyKind {
  CopyDirection direction = CopyDirection::kUnknown;
  HostMemory memory = HostMemory::kUnknown;
  friend bool operator==(const CopyKind&, const CopyKind&) = default;
};

/// Reads the words of CUPTI ("Memcpy HtoD (Pageable -> Device)"), roctracer ("CopyHostToDevice"),
/// rocprofiler ("MEMORY_COPY_HOST_TO_DEVICE"), XLA ("MemcpyH2D") and Intel's PTI ("(M2D)", of which
/// M is memory of the host that is not pinned). Arrays are device memory.
CopyKind classify_copy(std::string_view name);
/// Does this kernel only copy? ROCm's, where no engine does it.
bool is_copy_kernel(std::string_view name);
/// hipMemcpyKind, as HIP's calls carry it in `kind`.
CopyKind copy_of_hip_kind(std::int64_t kind);

/// snake_case, such as "host_to_device".
std::string_view copy_direction_name(CopyDirection direction);
/// snake_case, such as "pageable".
std::string_view host_memory_name(HostMemory memory);

constexpr bool is_host_device(CopyDirection d) {
  return d == CopyDirection::kHostToDevice || d == CopyDirection::kDeviceToHost;
}
/// Stays on the device or goes to another one: no host waits for it by itself.
constexpr bool is_between_devices(CopyDirection d) {
  return d == CopyDirection::kDeviceToDevice || d == CopyDirection::kPeerToPeer;
}

}  // namespace traceap
