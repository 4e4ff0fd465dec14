#pragma once
// The canonical kind of an event, from its phase and its category text (legacy spellings too).

#include <cstdint>
#include <string_view>

namespace traceap {

enum class EventKind : std::uint8_t {
  kOther = 0,
  kCpuOp,              ///< cpu_op, Operator
  kUserAnnotation,     ///< user_annotation
  kPythonFunction,     ///< python_function
  kRuntime,            ///< cuda_runtime, Runtime, and the same of xpu, mtia, hpu, privateuse1
  kDriver,             ///< cuda_driver, xpu_driver, privateuse1_driver
  kKernel,             ///< kernel, Kernel, mtia_ccp_events
  kGpuMemcpy,          ///< gpu_memcpy, Memcpy
  kGpuMemset,          ///< gpu_memset, Memset
  kGpuUserAnnotation,  ///< gpu_user_annotation: a host range drawn on the GPU's track
  kCudaSync,           ///< cuda_sync: rows that show a synchronisation on a stream's track
  kOverhead,           ///< overhead: work of the profiler itself
  kProfilerTrace,      ///< Trace: the profiler's own span
  kInstant,            ///< phases i, I, R and cpu_instant_event
  kFlow,               ///< phases s, t, f
  kAsync,              ///< phases b, n, e and S, T, p, F
  kCounter,            ///< phase C
  kMetadata,           ///< phase M
};
inline constexpr int kEventKindCount = static_cast<int>(EventKind::kMetadata) + 1;

/// Kind by phase first (i, s/t/f, b/e/n, C, M), then by category text. Never fails: kOther.
EventKind classify_event(char phase, std::string_view category);
/// snake_case name used in docs and Python, such as "cpu_op".
std::string_view kind_name(EventKind kind);

/// kernel, gpu_memcpy or gpu_memset: what INTERFACE calls a GPU event (if it is complete).
constexpr bool is_gpu(EventKind kind) {
  return kind == EventKind::kKernel || kind == EventKind::kGpuMemcpy ||
         kind == EventKind::kGpuMemset;
}
/// Runtime or driver call: what can own a correlation id on the host.
constexpr bool is_api_call(EventKind kind) {
  return kind == EventKind::kRuntime || kind == EventKind::kDriver;
}
/// Kinds that nest on a host thread.
constexpr bool is_host(EventKind kind) {
  return kind == EventKind::kCpuOp || kind == EventKind::kUserAnnotation ||
         kind == EventKind::kPythonFunction || is_api_call(kind);
}

}  // namespace traceap
