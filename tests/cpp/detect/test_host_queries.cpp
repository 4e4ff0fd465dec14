#include "rule_case.hpp"

using namespace traceap;

TEST_CASE("API names of CUDA and HIP are told apart by what they do", "[detect][host_queries]") {
  CHECK(classify_api("cudaLaunchKernelExC") == ApiClass::kKernelLaunch);
  CHECK(classify_api("hipExtModuleLaunchKernel") == ApiClass::kKernelLaunch);
  CHECK(classify_api("cuLaunchKernelEx") == ApiClass::kKernelLaunch);
  CHECK(classify_api("cudaLaunchHostFunc") == ApiClass::kOther);
  CHECK(classify_api("hipGraphLaunch") == ApiClass::kGraphLaunch);
  CHECK(classify_api("hipMemcpyWithStream") == ApiClass::kMemcpy);
  CHECK(classify_api("cudaMemsetAsync") == ApiClass::kMemset);
  CHECK(classify_api("hipDeviceSynchronize") == ApiClass::kDeviceSync);
  CHECK(classify_api("cuCtxSynchronize") == ApiClass::kDeviceSync);
  CHECK(classify_api("cudaStreamWaitEvent") == ApiClass::kStreamWaitEvent);
  CHECK(classify_api("cudaMallocHost") == ApiClass::kHostAlloc);
  CHECK(classify_api("hipMalloc") == ApiClass::kMalloc);
  CHECK(classify_api("cudaFreeHost") == ApiClass::kOther);
  CHECK(classify_api("cudaFreeAsync") == ApiClass::kFree);
  CHECK(classify_api("cudaGetDevice") == ApiClass::kOther);
  CHECK(classify_api("") == ApiClass::kOther);
}

TEST_CASE("copies are understood in the words of every profiler", "[detect][host_queries]") {
  const auto is = [](const char* name, CopyDirection direction, HostMemory memory) {
    const CopyKind kind = classify_copy(name);
    return kind.direction == direction && kind.memory == memory;
  };
  CHECK(
      is("Memcpy HtoD (Pageable -> Device)", CopyDirection::kHostToDevice, HostMemory::kPageable));
  CHECK(is("Memcpy DtoH (Device -> Pinned)", CopyDirection::kDeviceToHost, HostMemory::kPinned));
  CHECK(is("Memcpy HtoD (Host -> Device)", CopyDirection::kHostToDevice, HostMemory::kUnknown));
  CHECK(is("CopyHostToDevice", CopyDirection::kHostToDevice, HostMemory::kUnknown));
  CHECK(is("MEMORY_COPY_DEVICE_TO_HOST", CopyDirection::kDeviceToHost, HostMemory::kUnknown));
  CHECK(is("Memcpy DtoD (Device -> Device)", CopyDirection::kDeviceToDevice, HostMemory::kNoHost));
  CHECK(is("Memcpy PtoP (Device -> Device)", CopyDirection::kPeerToPeer, HostMemory::kNoHost));
  CHECK(is("__amd_rocclr_copyBuffer", CopyDirection::kUnknown, HostMemory::kUnknown));
}

TEST_CASE("a copy holds the host to the end of the synchronisation behind it",
          "[detect][host_queries]") {
  RuleCase t;
  t.op("aten::item", 0, 100).copy("Memcpy DtoH (Device -> Pageable)", 10, 5, 40, 2, 4);
  t.api("cudaStreamIsCapturing", 16, 1).api("cudaStreamSynchronize", 18, 30);
  t.op("aten::copy_", 200, 50).copy("Memcpy HtoD (Pinned -> Device)", 210, 5, 240, 2, 1 << 20);
  t.api("cudaDeviceSynchronize", 260, 100);
  const EventTable table = t.table();
  const EventTree tree = build_tree(table);
  const Signals signals = build_signals(table, tree);
  REQUIRE(signals.copies.size() == 2);
  CHECK(signals.copies[0].host == Interval{10'000, 48'000});
  CHECK(signals.copies[0].bytes == 4);
  CHECK(signals.copies[1].sync == kNoRow);  // the synchronisation is not the copy's
  CHECK(signals.copies[1].host == Interval{210'000, 215'000});
}
