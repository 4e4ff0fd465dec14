#include "traceap/table/event_kind.hpp"

#include <array>
#include <utility>

namespace traceap {

namespace {

using Entry = std::pair<std::string_view, EventKind>;

// Kineto's ActivityType names, then those of vendors' own Kinetos (Cambricon, Enflame), then those
// of PyTorch before 1.13.
constexpr std::array kCategories{
    Entry{"cpu_op", EventKind::kCpuOp},
    Entry{"user_annotation", EventKind::kUserAnnotation},
    Entry{"python_function", EventKind::kPythonFunction},
    Entry{"cuda_runtime", EventKind::kRuntime},
    Entry{"hip_runtime", EventKind::kRuntime},
    Entry{"xpu_runtime", EventKind::kRuntime},
    Entry{"mtia_runtime", EventKind::kRuntime},
    Entry{"glow_runtime", EventKind::kRuntime},
    Entry{"hpu_op", EventKind::kRuntime},
    Entry{"xpu_sync", EventKind::kRuntime},
    Entry{"privateuse1_runtime", EventKind::kRuntime},
    Entry{"cuda_driver", EventKind::kDriver},
    Entry{"xpu_driver", EventKind::kDriver},
    Entry{"privateuse1_driver", EventKind::kDriver},
    Entry{"kernel", EventKind::kKernel},
    Entry{"mtia_ccp_events", EventKind::kKernel},
    Entry{"gpu_memcpy", EventKind::kGpuMemcpy},
    Entry{"gpu_memset", EventKind::kGpuMemset},
    Entry{"gpu_user_annotation", EventKind::kGpuUserAnnotation},
    Entry{"cuda_sync", EventKind::kCudaSync},
    Entry{"overhead", EventKind::kOverhead},
    Entry{"cpu_instant_event", EventKind::kInstant},
    Entry{"Trace", EventKind::kProfilerTrace},
    Entry{"mlu_runtime", EventKind::kRuntime},
    Entry{"mlu_memcpy", EventKind::kGpuMemcpy},
    Entry{"mlu_memset", EventKind::kGpuMemset},
    Entry{"mlu_user_annotation", EventKind::kGpuUserAnnotation},
    Entry{"gcu_runtime", EventKind::kRuntime},
    Entry{"gcu_driver", EventKind::kDriver},
    Entry{"GCU_MEMCPY", EventKind::kGpuMemcpy},
    Entry{"GCU_MEMSET", EventKind::kGpuMemset},
    Entry{"GCU_USER_ANNOTATION", EventKind::kGpuUserAnnotation},
    Entry{"Operator", EventKind::kCpuOp},
    Entry{"Runtime", EventKind::kRuntime},
    Entry{"Kernel", EventKind::kKernel},
    Entry{"Memcpy", EventKind::kGpuMemcpy},
    Entry{"Memset", EventKind::kGpuMemset},
};

constexpr std::array<std::string_view, kEventKindCount> kNames{
    "other",     "cpu_op",   "user_annotation", "python_function", "runtime",
    "driver",    "kernel",   "gpu_memcpy",      "gpu_memset",      "gpu_user_annotation",
    "cuda_sync", "overhead", "profiler_trace",  "instant",         "flow",
    "async",     "counter",  "metadata"};

}  // namespace

EventKind classify_event(char phase, std::string_view category) {
  switch (phase) {
    case 'i':
    case 'I':
    case 'R':
      return EventKind::kInstant;
    case 's':
    case 't':
    case 'f':
      return EventKind::kFlow;
    case 'b':
    case 'n':
    case 'e':
    case 'S':
    case 'T':
    case 'p':
    case 'F':
      return EventKind::kAsync;
    case 'C':
      return EventKind::kCounter;
    case 'M':
      return EventKind::kMetadata;
    default:
      break;
  }
  for (const auto& [text, kind] : kCategories) {
    if (text == category) return kind;
  }
  return EventKind::kOther;
}

std::string_view kind_name(EventKind kind) { return kNames[static_cast<std::size_t>(kind)]; }

}  // namespace traceap
