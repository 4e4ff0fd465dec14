// Python extension module torchtraceap._core: one bind_<layer>.cpp per layer.

#include "traceap/bindings/handles.hpp"
#include "traceap/bindings/interrupt.hpp"

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace {

/// By itself glibc keeps freed blocks of up to 32 MB: half a small trace.
void return_freed_memory() {
#ifdef __GLIBC__
  constexpr int kBytes = 2 << 20;
  mallopt(M_MMAP_THRESHOLD, kBytes);
  mallopt(M_TRIM_THRESHOLD, kBytes);
#endif
}

}  // namespace

PYBIND11_MODULE(_core, module) {
  using namespace traceap::bindings;
  module.def("return_freed_memory", return_freed_memory,
             "From now on blocks of 2 MB and more go back to the system when they are freed. For a "
             "process of our own: it holds for all of it.");
  module.doc() = "C++ core of torchtraceap: columns in, columns out. Private.";
  bind_errors(module);
  bind_interrupt(module);
  bind_codes(module);
  bind_table(module);
  bind_trace(module);
  bind_tree(module);
  bind_analysis(module);
  bind_costs(module);
  bind_grouping(module);
  bind_modules(module);
  bind_launches(module);
  bind_collectives(module);
  bind_critical_path(module);
  bind_diff(module);
  bind_simulation(module);
  bind_built(module);
  bind_features(module);
  bind_detect(module);
  bind_arrow(module);
}
