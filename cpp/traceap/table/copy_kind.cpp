#include "traceap/table/copy_kind.hpp"

#include <array>
#include <string>

#include "traceap/base/text.hpp"

namespace traceap {
namespace {

/// The words looked for stand at a name's beginning.
constexpr std::size_t kEnough = 512;

CopyDirection direction_of(std::string_view lower) {
  if (contains_any(lower, {"htod", "htoa", "h2d", "m2d", "hosttodevice", "host_to_device"})) {
    return CopyDirection::kHostToDevice;
  }
  if (contains_any(lower, {"dtoh", "atoh", "d2h", "d2m", "devicetohost", "device_to_host"})) {
    return CopyDirection::kDeviceToHost;
  }
  if (contains_any(lower, {"ptop", "p2p", "peertopeer", "peer_to_peer"})) {
    return CopyDirection::kPeerToPeer;
  }
  if (contains_any(lower,
                   {"dtod", "d2d", "dtoa", "atod", "atoa", "devicetodevice", "device_to_device"})) {
    return CopyDirection::kDeviceToDevice;
  }
  if (contains_any(lower, {"htoh", "h2h", "hosttohost", "host_to_host"})) {
    return CopyDirection::kHostToHost;
  }
  return CopyDirection::kUnknown;
}

HostMemory memory_of(std::string_view lower) {
  if (contains_any(lower, {"pageable", "m2d", "d2m"})) return HostMemory::kPageable;
  if (contains(lower, "pinned")) return HostMemory::kPinned;
  return contains(lower, "managed") ? HostMemory::kManaged : HostMemory::kUnknown;
}

constexpr std::array<std::string_view, kCopyDirectionCount> kDirectionNames{
    "none",         "host_to_device", "device_to_host", "device_to_device",
    "peer_to_peer", "host_to_host",   "unknown"};
constexpr std::array<std::string_view, kHostMemoryCount> kMemoryNames{"none", "pageable", "pinned",
                                                                      "managed", "unknown"};

}  // namespace

CopyKind classify_copy(std::string_view name) {
  const std::string lower = to_lower(name.substr(0, kEnough));
  const CopyDirection direction = direction_of(lower);
  if (direction == CopyDirection::kUnknown) return {};
  return {direction, is_between_devices(direction) ? HostMemory::kNone : memory_of(lower)};
}

bool is_copy_kernel(std::string_view name) {
  return name.starts_with("MEMORY_COPY") || name.starts_with("__amd_rocclr_copyBuffer");
}

CopyKind copy_of_hip_kind(std::int64_t kind) {
  switch (kind) {
    case 0:
      return {CopyDirection::kHostToHost, HostMemory::kUnknown};
    case 1:
      return {CopyDirection::kHostToDevice, HostMemory::kUnknown};
    case 2:
      return {CopyDirection::kDeviceToHost, HostMemory::kUnknown};
    case 3:
      return {CopyDirection::kDeviceToDevice, HostMemory::kNone};
    default:
      return {};
  }
}

std::string_view copy_direction_name(CopyDirection direction) {
  return kDirectionNames[static_cast<std::size_t>(direction)];
}

std::string_view host_memory_name(HostMemory memory) {
  return kMemoryNames[static_cast<std::size_t>(memory)];
}

}  // namespace traceap
