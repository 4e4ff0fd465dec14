// Kernels that take as long as a transfer of NCCL would, under NCCL's names: a few blocks that move
// memory at an even rate until the time is over. Their names are what profilers show; built as a
// plain shared library and called through `torchtraceap_emulate_collective`.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

// The type that NCCL hands to its kernels shows in their names.
template <unsigned long size>
struct ncclDevKernelArgsStorage {
  alignas(16) unsigned char bytes[size];
};
using Storage = ncclDevKernelArgsStorage<4096>;

namespace {

constexpr int kBlocks = 16, kThreads = 544;  // as NCCL 2.2x takes for a ring on one machine
constexpr std::int64_t kChunkBytes = std::int64_t{kThreads} * sizeof(uint4);
constexpr unsigned kPauseNs = 200;

/// What a kernel is told; lies at the start of its Storage.
struct Transfer {
  const void* source;
  void* target;
  std::int64_t source_count, target_count;  ///< elements
  double factor;
  std::int64_t ns, moved_bytes;
  uint4* scratch;
  std::int64_t scratch_bytes;
};

__device__ std::uint64_t now_ns() {
  std::uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

template <typename T>
__device__ T scaled(T value, double factor) {
  return value * static_cast<T>(factor);  // of integers the sum wraps around, as by adding
}
template <>
__device__ __half scaled(__half value, double factor) {
  return __float2half(__half2float(value) * static_cast<float>(factor));
}
template <>
__device__ __nv_bfloat16 scaled(__nv_bfloat16 value, double factor) {
  return __float2bfloat16(__bfloat162float(value) * static_cast<float>(factor));
}

/// 16 bytes, as many as a thread reads at once.
template <typename T>
struct alignas(16) Vector {
  T values[16 / sizeof(T)];
};
template <typename T>
__device__ Vector<T> scaled(Vector<T> vector, double factor) {
  for (T& value : vector.values) value = scaled(value, factor);
  return vector;
}

/// Copies of the source behind each other. What lies on its own source is read before it is
/// written.
template <typename V>
__device__ void write_copies(const V* source, V* target, std::int64_t source_count,
                             std::int64_t target_count, double factor) {
  constexpr int kAtOnce =
      4;  // loads that are under way: few blocks have to reach the memory's rate
  const auto first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const auto stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t at = 0; at < target_count; at += source_count) {
    const std::int64_t left = target_count - at;
    const std::int64_t count = left < source_count ? left : source_count;
    for (std::int64_t i = first; i < count; i += kAtOnce * stride) {
      V read[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (i + k * stride < count) read[k] = source[i + k * stride];
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (i + k * stride >= count) continue;
        target[at + i + k * stride] = factor == 1 ? read[k] : scaled(read[k], factor);
      }
    }
  }
}

template <typename T>
__device__ void write_result(const Transfer& t) {
  if (t.target_count == 0 || t.source_count == 0) return;
  const auto* source = static_cast<const T*>(t.source);
  auto* target = static_cast<T*>(t.target);
  constexpr std::int64_t kLanes = 16 / sizeof(T);
  const bool even = t.source_count % kLanes == 0 && t.target_count % kLanes == 0;
  const auto places =
      reinterpret_cast<std::uintptr_t>(t.source) | reinterpret_cast<std::uintptr_t>(t.target);
  if (even && places % 16 == 0) {
    write_copies(reinterpret_cast<const Vector<T>*>(source), reinterpret_cast<Vector<T>*>(target),
                 t.source_count / kLanes, t.target_count / kLanes, t.factor);
  } else {
    write_copies(source, target, t.source_count, t.target_count, t.factor);
  }
}

/// Copies within this block's part of the scratch memory, at an even rate, until the time is over.
__device__ void hold(const Transfer& t, std::uint64_t began_ns) {
  const std::int64_t part = t.scratch_bytes / gridDim.x / kChunkBytes;
  const std::int64_t wanted = t.moved_bytes / gridDim.x;
  uint4* const mine = t.scratch + blockIdx.x * part * (kChunkBytes / sizeof(uint4));
  std::int64_t moved = 0, chunk = 0;
  for (;;) {
    const auto passed = static_cast<std::int64_t>(now_ns() - began_ns);
    if (passed >= t.ns) return;
    const double due =
        static_cast<double>(wanted) * static_cast<double>(passed) / static_cast<double>(t.ns);
    if (part < 2 || static_cast<double>(moved) >= due) {
      __nanosleep(kPauseNs);
      continue;
    }
    uint4* const at = mine + chunk * (kChunkBytes / sizeof(uint4)) + threadIdx.x;
    uint4 value = *at;
    value.x += 1;
    *at = value;
    moved += 2 * kChunkBytes;
    chunk = (chunk + 1) % part;
  }
}

template <typename T>
__device__ void transfer(const Storage& storage) {
  const std::uint64_t began_ns = now_ns();
  const Transfer t = *reinterpret_cast<const Transfer*>(storage.bytes);
  write_result<T>(t);
  hold(t, began_ns);
}

}  // namespace

// NCCL has one kernel for each pair of a reduction's kind and type, and all reductions of a type
// pass those of Sum; what only moves has no type.
#define TORCHTRACEAP_REDUCTION(collective, name, type)                        \
  __global__ void __launch_bounds__(kThreads)                                 \
      ncclDevKernel_##collective##_Sum_##name##_RING_LL(Storage const args) { \
    transfer<type>(args);                                                     \
  }
#define TORCHTRACEAP_REDUCTIONS(collective)               \
  TORCHTRACEAP_REDUCTION(collective, f16, __half)         \
  TORCHTRACEAP_REDUCTION(collective, bf16, __nv_bfloat16) \
  TORCHTRACEAP_REDUCTION(collective, f32, float)          \
  TORCHTRACEAP_REDUCTION(collective, f64, double)         \
  TORCHTRACEAP_REDUCTION(collective, u8, std::uint8_t)    \
  TORCHTRACEAP_REDUCTION(collective, u32, std::int32_t)   \
  TORCHTRACEAP_REDUCTION(collective, u64, std::int64_t)
#define TORCHTRACEAP_MOVE(name)                                          \
  __global__ void __launch_bounds__(kThreads) name(Storage const args) { \
    transfer<std::uint8_t>(args);                                        \
  }

TORCHTRACEAP_REDUCTIONS(AllReduce)
TORCHTRACEAP_REDUCTIONS(ReduceScatter)
TORCHTRACEAP_REDUCTIONS(Reduce)
TORCHTRACEAP_MOVE(ncclDevKernel_AllGather_RING_LL)
TORCHTRACEAP_MOVE(ncclDevKernel_Broadcast_RING_LL)
TORCHTRACEAP_MOVE(ncclDevKernel_SendRecv)

namespace {

struct Named {
  const char* name;
  void (*kernel)(Storage);
};
#define TORCHTRACEAP_NAMED(name) \
  Named { #name, name }
#define TORCHTRACEAP_NAMED_REDUCTIONS(collective)                        \
  TORCHTRACEAP_NAMED(ncclDevKernel_##collective##_Sum_f16_RING_LL),      \
      TORCHTRACEAP_NAMED(ncclDevKernel_##collective##_Sum_bf16_RING_LL), \
      TORCHTRACEAP_NAMED(ncclDevKernel_##collective##_Sum_f32_RING_LL),  \
      TORCHTRACEAP_NAMED(ncclDevKernel_##collective##_Sum_f64_RING_LL),  \
      TORCHTRACEAP_NAMED(ncclDevKernel_##collective##_Sum_u8_RING_LL),   \
      TORCHTRACEAP_NAMED(ncclDevKernel_##collective##_Sum_u32_RING_LL),  \
      TORCHTRACEAP_NAMED(ncclDevKernel_##collective##_Sum_u64_RING_LL)

const Named kKernels[] = {
    TORCHTRACEAP_NAMED_REDUCTIONS(AllReduce),
    TORCHTRACEAP_NAMED_REDUCTIONS(ReduceScatter),
    TORCHTRACEAP_NAMED_REDUCTIONS(Reduce),
    TORCHTRACEAP_NAMED(ncclDevKernel_AllGather_RING_LL),
    TORCHTRACEAP_NAMED(ncclDevKernel_Broadcast_RING_LL),
    TORCHTRACEAP_NAMED(ncclDevKernel_SendRecv),
};

}  // namespace

/// Launches the kernel of this name on a stream. Returns a cudaError_t; cudaErrorInvalidValue for a
/// name that is not there. Counts are of elements as the kernel's name has them, of bytes where it
/// has none.
extern "C" int torchtraceap_emulate_collective(const char* name, const void* source, void* target,
                                               std::int64_t source_count, std::int64_t target_count,
                                               double factor, std::int64_t ns,
                                               std::int64_t moved_bytes, void* scratch,
                                               std::int64_t scratch_bytes, void* stream) {
  const Transfer told{source,       target, source_count, target_count,
                      factor,       ns,     moved_bytes,  static_cast<uint4*>(scratch),
                      scratch_bytes};
  Storage storage{};
  std::memcpy(storage.bytes, &told, sizeof told);
  for (const Named& named : kKernels) {
    if (std::strcmp(named.name, name) != 0) continue;
    named.kernel<<<kBlocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(storage);
    return cudaGetLastError();
  }
  return cudaErrorInvalidValue;
}
