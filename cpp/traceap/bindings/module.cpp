// Python extension module torchtraceap._core: one bind_<layer>.cpp per layer.

#include "traceap/base/heap.hpp"
#include "traceap/bindings/handles.hpp"
#include "traceap/bindings/interrupt.hpp"

PYBIND11_MODULE(_core, module) {
  using namespace traceap::bindings;
  module.def("prepare_heap", traceap::prepare_heap,
             "For a process of our own, all of which it changes: few pages to ask the system for, "
             "and blocks of 2 MB and more go back to it when they are freed.");
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
  bind_model(module);
  bind_detect(module);
  bind_arrow(module);
}
