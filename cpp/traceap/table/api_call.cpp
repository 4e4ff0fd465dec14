#include "traceap/table/api_call.hpp"

#include <algorithm>
#include <array>

#include "traceap/base/text.hpp"

namespace traceap {
namespace {

/// Calls whose class no word of the rules below tells.
struct Name {
  std::string_view name;
  ApiClass api;
};
constexpr std::array kNames{
    Name{"urEventWait", ApiClass::kEventSync},
    Name{"piEventsWait", ApiClass::kEventSync},
    Name{"clWaitForEvents", ApiClass::kEventSync},
    Name{"urQueueFinish", ApiClass::kStreamSync},
    Name{"piQueueFinish", ApiClass::kStreamSync},
    Name{"clFinish", ApiClass::kStreamSync},
    Name{"synMemCopyAsync", ApiClass::kAsyncCopy},
    Name{"synMemCopyAsyncMultiple", ApiClass::kAsyncCopy},
    Name{"synDeviceFree", ApiClass::kDeviceFree},
    Name{"runFunction - job_prep_and_submit_for_execution", ApiClass::kKernelLaunch},
    Name{"cuInit", ApiClass::kSetup},
    Name{"hipInit", ApiClass::kSetup},
};

/// A name that holds one of `words`, and `also` if that is given, is of a class. The first rule
/// that fits decides.
struct Rule {
  ApiClass api;
  std::array<std::string_view, 9> words;
  std::string_view also;

  bool fits(std::string_view name) const {
    const auto holds = [&](std::string_view word) { return !word.empty() && contains(name, word); };
    return std::any_of(words.begin(), words.end(), holds) && contains(name, also);
  }
};
constexpr std::array kRules{
    Rule{ApiClass::kGraphLaunch, {"GraphLaunch", "aclmdlRIExecute"}, ""},
    Rule{ApiClass::kGraphBuilding,
         {"GraphInstantiate", "GraphUpload", "StreamBeginCapture", "StreamEndCapture"},
         ""},
    Rule{ApiClass::kPoolFree, {"GraphMemTrim", "MemPoolTrim", "MemPoolDestroy"}, ""},
    Rule{ApiClass::kOther, {"Graph", "LaunchHostFunc"}, ""},
    Rule{ApiClass::kKernelLaunch, {"Launch", "launch"}, ""},
    Rule{ApiClass::kStreamWaitEvent, {"StreamWaitEvent"}, ""},
    Rule{ApiClass::kEventRecord, {"EventRecord", "RecordEvent"}, ""},
    Rule{ApiClass::kEventSync, {"Event", "Fence"}, "Synchronize"},
    Rule{ApiClass::kStreamSync, {"Stream", "Queue", "CommandList"}, "Synchronize"},
    Rule{ApiClass::kDeviceSync, {"Synchronize"}, ""},
    Rule{ApiClass::kAsyncCopy, {"Async", "Enqueue"}, "Memcpy"},
    Rule{ApiClass::kCopy, {"Memcpy", "memcpy"}, ""},
    Rule{ApiClass::kAsyncCopy, {"AppendMemoryCopy"}, ""},
    Rule{ApiClass::kMemset, {"Memset", "memset", "AppendMemoryFill", "EnqueueUSMFill"}, ""},
    Rule{ApiClass::kHostAllocation,
         {"HostAlloc", "MallocHost", "HostMalloc", "AllocHost", "HostRegister"},
         ""},
    Rule{ApiClass::kHostFree, {"FreeHost", "HostFree", "HostUnregister"}, ""},
    Rule{ApiClass::kMapping, {"MemCreate", "MemMap", "MemSetAccess", "MemAddressReserve"}, ""},
    Rule{ApiClass::kUnmapping, {"MemUnmap", "MemRelease", "MemAddressFree"}, ""},
    Rule{ApiClass::kPoolAllocation, {"Malloc", "MemAlloc"}, "Async"},
    Rule{ApiClass::kPoolFree, {"Free"}, "Async"},
    Rule{ApiClass::kDeviceAllocation,
         {"Malloc", "MemAlloc", "DeviceAlloc", "SharedAlloc", "ArrayCreate"},
         ""},
    Rule{ApiClass::kDeviceFree,
         {"cudaFree", "hipFree", "aclrtFree", "MemFree", "USMFree", "ArrayDestroy"},
         ""},
    Rule{ApiClass::kCodeLoading,
         {"ModuleLoad", "LibraryLoad", "ModuleGetFunction", "LibraryGetKernel", "KernelGetFunction",
          "cuLink", "hipLink", "nvrtc", "hiprtc"},
         ""},
    Rule{ApiClass::kSetup,
         {"StreamCreate", "CreateStream", "CreateContext", "CtxCreate", "PrimaryCtxRetain",
          "MemPoolCreate"},
         ""},
};

constexpr std::array<std::string_view, kApiClassCount> kClassNames{"none",
                                                                   "other",
                                                                   "kernel_launch",
                                                                   "graph_launch",
                                                                   "copy",
                                                                   "async_copy",
                                                                   "memset",
                                                                   "stream_sync",
                                                                   "device_sync",
                                                                   "event_sync",
                                                                   "stream_wait_event",
                                                                   "event_record",
                                                                   "device_allocation",
                                                                   "device_free",
                                                                   "pool_allocation",
                                                                   "pool_free",
                                                                   "mapping",
                                                                   "unmapping",
                                                                   "host_allocation",
                                                                   "host_free",
                                                                   "code_loading",
                                                                   "graph_building",
                                                                   "setup"};

}  // namespace

ApiClass classify_api_call(std::string_view name) {
  for (const Name& known : kNames) {
    if (name == known.name) return known.api;
  }
  const auto rule = std::find_if(kRules.begin(), kRules.end(),
                                 [&](const Rule& candidate) { return candidate.fits(name); });
  return rule == kRules.end() ? ApiClass::kOther : rule->api;
}

std::string_view api_class_name(ApiClass api) { return kClassNames[static_cast<std::size_t>(api)]; }

}  // namespace traceap
