// What API calls and copies are, by their names.

#include <vector>

#include "catch.hpp"
#include "traceap/table/api_call.hpp"
#include "traceap/table/copy_kind.hpp"

using namespace traceap;

namespace {
struct Named {
  ApiClass api;
  std::vector<const char*> names;
};
}  // namespace

TEST_CASE("calls are told apart by what they do, whoever's API they are of", "[table]") {
  const Named kNamed[] = {
      {ApiClass::kKernelLaunch,
       {"cudaLaunchKernelExC", "cuLaunchKernelEx", "hipExtModuleLaunchKernel", "hipLaunchKernel",
        "cudaLaunchCooperativeKernel", "urEnqueueKernelLaunch", "zeCommandListAppendLaunchKernel"}},
      {ApiClass::kGraphLaunch, {"cudaGraphLaunch", "hipGraphLaunch", "cuGraphLaunch_ptsz"}},
      {ApiClass::kCopy, {"cudaMemcpy", "hipMemcpyWithStream", "cuMemcpyDtoH_v2", "cudaMemcpy2D"}},
      {ApiClass::kAsyncCopy,
       {"cudaMemcpyAsync", "cuMemcpyDtoHAsync_v2", "cudaMemcpyPeerAsync", "urEnqueueUSMMemcpy",
        "zeCommandListAppendMemoryCopy"}},
      {ApiClass::kMemset, {"cudaMemsetAsync", "cuMemsetD32_v2", "hipMemset"}},
      {ApiClass::kStreamSync,
       {"cudaStreamSynchronize", "hipStreamSynchronize", "zeCommandQueueSynchronize",
        "urQueueFinish"}},
      {ApiClass::kDeviceSync,
       {"cudaDeviceSynchronize", "cuCtxSynchronize", "cudaThreadSynchronize"}},
      {ApiClass::kEventSync, {"cudaEventSynchronize", "hipEventSynchronize", "urEventWait"}},
      {ApiClass::kStreamWaitEvent, {"cudaStreamWaitEvent", "hipStreamWaitEvent"}},
      {ApiClass::kEventRecord, {"cudaEventRecord", "cudaEventRecordWithFlags"}},
      {ApiClass::kDeviceAllocation,
       {"cudaMalloc", "cudaMallocManaged", "cudaMallocPitch", "cuMemAlloc_v2", "hipMalloc",
        "hipExtMallocWithFlags", "urUSMDeviceAlloc", "zeMemAllocShared", "cuArrayCreate_v2"}},
      {ApiClass::kDeviceFree, {"cudaFree", "cuMemFree_v2", "hipFree", "cudaFreeArray"}},
      {ApiClass::kPoolAllocation,
       {"cudaMallocAsync", "cudaMallocFromPoolAsync", "cuMemAllocFromPoolAsync", "hipMallocAsync"}},
      {ApiClass::kPoolFree,
       {"cudaFreeAsync", "cuMemFreeAsync", "hipFreeAsync", "cudaMemPoolTrimTo",
        "cudaDeviceGraphMemTrim"}},
      {ApiClass::kMapping,
       {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemAddressReserve", "hipMemMap"}},
      {ApiClass::kUnmapping, {"cuMemUnmap", "cuMemRelease", "cuMemAddressFree"}},
      {ApiClass::kHostAllocation,
       {"cudaHostAlloc", "cudaMallocHost", "cudaHostRegister", "cuMemHostAlloc",
        "cuMemAllocHost_v2", "hipHostMalloc", "zeMemAllocHost", "urUSMHostAlloc"}},
      {ApiClass::kHostFree, {"cudaFreeHost", "hipHostFree", "cuMemFreeHost", "cudaHostUnregister"}},
      {ApiClass::kCodeLoading,
       {"cuModuleLoadData", "cuLibraryLoadData", "cuLibraryGetKernel", "cuModuleGetFunction",
        "cuLinkComplete", "nvrtcCompileProgram", "hipModuleLoadData"}},
      {ApiClass::kGraphBuilding,
       {"cudaGraphInstantiate", "cudaGraphUpload", "cudaStreamBeginCapture",
        "cudaStreamEndCapture"}},
      {ApiClass::kSetup, {"cudaStreamCreateWithPriority", "cuCtxCreate_v2", "hipInit", "cuInit"}},
      {ApiClass::kOther,
       {"cudaLaunchHostFunc", "cudaGraphAddMemcpyNode", "cudaGraphAddMemAllocNode",
        "cudaGraphExecDestroy", "cudaEventQuery", "cudaEventCreate", "cudaMemGetInfo",
        "cuMemGetAllocationGranularity", "cudaHostGetDevicePointer", "cudaMemPrefetchAsync",
        "cudaStreamIsCapturing", "cudaGetDevice", "INVALID", ""}},
  };
  for (const Named& named : kNamed) {
    for (const char* name : named.names) {
      INFO(name << " should be " << api_class_name(named.api));
      CHECK(api_class_name(classify_api_call(name)) == api_class_name(named.api));
    }
  }
}

TEST_CASE("an allocator call takes memory or gives it back", "[table]") {
  int allocators = 0, returns = 0;
  for (int i = 0; i < kApiClassCount; ++i) {
    const auto api = static_cast<ApiClass>(i);
    allocators += is_allocator_call(api);
    returns += gives_memory_back(api);
    CHECK_FALSE((gives_memory_back(api) && !is_allocator_call(api)));
    CHECK_FALSE((is_host_memory_call(api) && !is_allocator_call(api)));
    CHECK_FALSE((is_allocator_call(api) && (is_synchronisation(api) || starts_gpu_work(api))));
  }
  CHECK(allocators == 8);
  CHECK(returns == 4);
}

TEST_CASE("copies are understood in the words of every profiler", "[table]") {
  using enum CopyDirection;
  const auto is = [](const char* name, CopyDirection direction, HostMemory memory) {
    return classify_copy(name) == CopyKind{direction, memory};
  };
  CHECK(is("Memcpy HtoD (Pageable -> Device)", kHostToDevice, HostMemory::kPageable));
  CHECK(is("Memcpy HtoA (Pageable -> Array)", kHostToDevice, HostMemory::kPageable));
  CHECK(is("Memcpy DtoH (Device -> Pinned)", kDeviceToHost, HostMemory::kPinned));
  CHECK(is("Memcpy HtoD (Managed -> Device)", kHostToDevice, HostMemory::kManaged));
  CHECK(is("Memcpy HtoD (Host -> Device)", kHostToDevice, HostMemory::kUnknown));
  CHECK(is("CopyHostToDevice", kHostToDevice, HostMemory::kUnknown));
  CHECK(is("MEMORY_COPY_DEVICE_TO_HOST", kDeviceToHost, HostMemory::kUnknown));
  CHECK(is("MemcpyH2D", kHostToDevice, HostMemory::kUnknown));  // XLA
  CHECK(is("Memcpy DtoD (Device -> Device)", kDeviceToDevice, HostMemory::kNone));
  CHECK(is("Memcpy PtoP (Device -> Device)", kPeerToPeer, HostMemory::kNone));
  CHECK(is("MemcpyP2P", kPeerToPeer, HostMemory::kNone));
  CHECK(is("Memcpy HtoH (Pageable -> Pageable)", kHostToHost, HostMemory::kPageable));
  CHECK(is("Memcpy", CopyDirection::kUnknown, HostMemory::kUnknown));
  CHECK(copy_of_hip_kind(1).direction == kHostToDevice);
  CHECK(copy_of_hip_kind(3) == CopyKind{kDeviceToDevice, HostMemory::kNone});
  CHECK(copy_of_hip_kind(4) == CopyKind{});  // hipMemcpyDefault
}
