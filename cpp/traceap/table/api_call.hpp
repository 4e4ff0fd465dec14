#pragma once
// What a runtime or driver call does, by its name: the one place that says so.
//
// Note [What a call does]: judged by what the call does to time and memory, not by how it is
// spelled. CUDA's runtime and driver names, HIP's, Level Zero's, SYCL's (ur*, pi*), OpenCL's,
// AscendCL's (aclrt*) and Synapse's (syn*) are read alike, suffixes such as _v2 and _ptsz included.
// Building a graph names work that the call does not do (cudaGraphAddMemcpyNode copies nothing). An
// allocator call takes memory from the driver or gives it back, whether of the device or of the
// host (pinned), mapped by hand or ordered on a stream: in steady state PyTorch's caching
// allocators need none of them. A query of memory (cudaMemGetInfo, cuMemGetAllocationGranularity)
// is none.

#include <cstdint>
#include <string_view>

namespace traceap {

enum class ApiClass : std::uint8_t {
  kNone = 0,      ///< the row is no API call
  kOther,         ///< queries, attributes, events' making, host functions, graphs' nodes
  kKernelLaunch,  ///< cudaLaunchKernel, cuLaunchKernelEx, hipModuleLaunchKernel, urEnqueueKernel*
  kGraphLaunch,   ///< cudaGraphLaunch, hipGraphLaunch
  kCopy,          ///< returns when the copy is done: cudaMemcpy, hipMemcpyWithStream
  kAsyncCopy,     ///< may return earlier: cudaMemcpyAsync, cuMemcpyDtoHAsync_v2
  kMemset,        ///< cudaMemsetAsync, cuMemsetD32_v2
  kStreamSync,    ///< the host waits for a stream: cudaStreamSynchronize, urQueueFinish
  kDeviceSync,    ///< ... for the device or context: cudaDeviceSynchronize, cuCtxSynchronize
  kEventSync,     ///< ... for an event: cudaEventSynchronize, urEventWait
  kStreamWaitEvent,   ///< a stream waits, the host does not
  kEventRecord,       ///< cudaEventRecord, hipEventRecord
  kDeviceAllocation,  ///< cudaMalloc, cudaMallocManaged, cuMemAlloc_v2, hipExtMallocWithFlags
  kDeviceFree,        ///< cudaFree, cuMemFree_v2: waits for the device
  kPoolAllocation,    ///< ordered on a stream: cudaMallocAsync, cuMemAllocFromPoolAsync
  kPoolFree,          ///< ordered on a stream, or out of the driver's pool: cudaFreeAsync
  kMapping,           ///< cuMemCreate, cuMemMap, cuMemSetAccess, cuMemAddressReserve
  kUnmapping,         ///< cuMemUnmap, cuMemRelease, cuMemAddressFree
  kHostAllocation,    ///< pinned: cudaHostAlloc, cudaMallocHost, cudaHostRegister
  kHostFree,          ///< cudaFreeHost, hipHostFree, cudaHostUnregister
  kCodeLoading,       ///< code is loaded or linked: cuModuleLoadData, cuLibraryGetKernel, nvrtc*
  kGraphBuilding,     ///< a graph is captured, instantiated, uploaded
  kSetup,             ///< contexts, streams, pools: cudaStreamCreate, cuCtxCreate, hipInit
};
inline constexpr int kApiClassCount = static_cast<int>(ApiClass::kSetup) + 1;

/// What the call of this name does; kOther for a name that says nothing. O(length).
ApiClass classify_api_call(std::string_view name);
/// snake_case, such as "kernel_launch".
std::string_view api_class_name(ApiClass api);

/// The host waits until GPU work is done, and for nothing else.
constexpr bool is_synchronisation(ApiClass c) {
  return c == ApiClass::kStreamSync || c == ApiClass::kDeviceSync || c == ApiClass::kEventSync;
}
/// Kernels start, alone or by a graph.
constexpr bool is_launch(ApiClass c) {
  return c == ApiClass::kKernelLaunch || c == ApiClass::kGraphLaunch;
}
constexpr bool is_copy_call(ApiClass c) {
  return c == ApiClass::kCopy || c == ApiClass::kAsyncCopy;
}
/// Puts work on the GPU.
constexpr bool starts_gpu_work(ApiClass c) {
  return is_launch(c) || is_copy_call(c) || c == ApiClass::kMemset;
}
/// Pinned memory of the host is taken or given back.
constexpr bool is_host_memory_call(ApiClass c) {
  return c == ApiClass::kHostAllocation || c == ApiClass::kHostFree;
}
/// Memory is given back or unmapped.
constexpr bool gives_memory_back(ApiClass c) {
  return c == ApiClass::kDeviceFree || c == ApiClass::kPoolFree || c == ApiClass::kUnmapping ||
         c == ApiClass::kHostFree;
}
/// Memory is taken, mapped or given back: see Note [What a call does].
constexpr bool is_allocator_call(ApiClass c) {
  return gives_memory_back(c) || c == ApiClass::kDeviceAllocation ||
         c == ApiClass::kPoolAllocation || c == ApiClass::kMapping ||
         c == ApiClass::kHostAllocation;
}

}  // namespace traceap
