// Note [Heap of huge pages]: an analysis makes and frees thousands of arrays of some hundred
// kilobytes. Where the end of the heap goes back to the system each time, and comes again page by
// page, a fifth of the time of a diagnosis is spent on that in the kernel. So the heap grows once,
// by as much as most traces need; what is not touched takes no memory.

#include "traceap/base/heap.hpp"

#include <cstdint>
#include <cstdlib>

#ifdef __GLIBC__
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace traceap {

void prepare_heap() {
#ifdef __GLIBC__
  constexpr std::size_t kLarge = std::size_t{2} << 20;  // bytes, also of a huge page
  constexpr std::size_t kKept = std::size_t{192} << 20;
  mallopt(M_MMAP_THRESHOLD, kLarge);
  mallopt(M_TRIM_THRESHOLD, kKept + kLarge);
  mallopt(M_TOP_PAD, kKept);
  void* volatile block = std::malloc(kLarge / 2);  // more than there is: the heap grows by kKept
  std::free(block);
#ifdef MADV_HUGEPAGE
  const auto end = reinterpret_cast<std::uintptr_t>(sbrk(0));
  const std::uintptr_t begin = (end - kKept + kLarge - 1) / kLarge * kLarge;
  // Where the system has no huge pages to give, ordinary ones do.
  static_cast<void>(madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE));
#endif
#endif
}

}  // namespace traceap
