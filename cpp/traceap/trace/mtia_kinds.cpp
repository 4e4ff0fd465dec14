// Work of MTIA's command processors.
//
// Note [MTIA traces]: torch.profiler records of MTIA its runtime calls (mtia_runtime) and, in place
// of kernels, events of the device's control processors (mtia_ccp_events): these are its work.
// Where a trace has kernels beside them (other devices' profilers write notifications under that
// name), the kernels are the work, and these are drawn, not counted. mtia_insight and mtia_counters
// repeat or count. Source: kineto_shim.cpp of PyTorch.

#include "traceap/base/interrupt.hpp"
#include "traceap/trace/assemble.hpp"

namespace traceap {

void drop_events_beside_kernels(EventTable& table) {
  const StringId beside = table.strings.find("mtia_ccp_events");
  const StringId kernel = table.strings.find("kernel");
  if (beside == kNoString || kernel == kNoString) return;
  bool has_kernels = false;
  for (Row row = 0; row < table.size() && !has_kernels; ++row) {
    poll_interrupt();
    has_kernels = table.category[row] == kernel && table.kind[row] == EventKind::kKernel;
  }
  for (Row row = 0; row < table.size() && has_kernels; ++row) {
    poll_interrupt();
    if (table.category[row] == beside && table.kind[row] == EventKind::kKernel) {
      table.kind[row] = EventKind::kGpuUserAnnotation;
    }
  }
}

}  // namespace traceap
