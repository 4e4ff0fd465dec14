// What the core says of rows by number: one IntEnum for each enum of a column.

#include <pybind11/stl.h>

#include <array>
#include <string_view>
#include <utility>

#include "traceap/analysis/dependencies/critical_path.hpp"
#include "traceap/analysis/dependencies/dependency_graph.hpp"
#include "traceap/analysis/idle/idle.hpp"
#include "traceap/base/text.hpp"
#include "traceap/bindings/codes.hpp"
#include "traceap/bindings/handles.hpp"
#include "traceap/table/api_call.hpp"
#include "traceap/table/copy_kind.hpp"
#include "traceap/table/event_kind.hpp"
#include "traceap/tree/event_tree.hpp"

namespace traceap::bindings {
namespace {

constexpr std::array<std::string_view, 4> kGpuClassNames{"none", "compute", "communication",
                                                         "memcpy"};
constexpr std::array<std::string_view, 5> kPhaseNames{"other", "input", "forward", "backward",
                                                      "optimizer"};
constexpr auto kGpuClassCount = static_cast<int>(kGpuClassNames.size());
constexpr auto kPhaseCount = static_cast<int>(kPhaseNames.size());

std::string_view gpu_class_name(GpuClass c) { return kGpuClassNames[static_cast<std::size_t>(c)]; }
std::string_view phase_name(Phase phase) { return kPhaseNames[static_cast<std::size_t>(phase)]; }

void bind_row_codes(py::module_& module) {
  bind_codes<EventKind>(module, "EventKind", kEventKindCount, kind_name, "EventTable.kind.");
  bind_codes<ApiClass>(module, "ApiClass", kApiClassCount, api_class_name,
                       "EventTree.api: what a runtime or driver call does.");
  bind_codes<CopyDirection>(module, "CopyDirection", kCopyDirectionCount, copy_direction_name,
                            "EventTree.copy_direction.");
  bind_codes<HostMemory>(module, "HostMemory", kHostMemoryCount, host_memory_name,
                         "EventTree.host_memory: the host's side of a copy.");
  bind_codes<GpuClass>(module, "GpuClass", kGpuClassCount, gpu_class_name, "EventTree.gpu_class.");
  bind_codes<Phase>(module, "Phase", kPhaseCount, phase_name, "EventTree.phase.");
  bind_codes<IdleCause>(module, "IdleCause", kIdleCauseCount, idle_cause_name,
                        "IdleBreakdown.cause.");
  bind_codes<PathCause>(module, "PathCause", kPathCauseCount, path_cause_name,
                        "CriticalPath.cause.");
  bind_codes<DependencyKind>(module, "DependencyKind", kDependencyKindCount, dependency_kind_name,
                             "CriticalPath.kind and ExecutionGraph.kind.");
  bind_codes<Evidence>(module, "Evidence", kEvidenceCount, evidence_name,
                       "CriticalPath.evidence and ExecutionGraph.evidence.");
}

void bind_groups(py::module_& module) {
  const auto group = [&](const char* name, bool (*holds)(ApiClass), const char* doc) {
    module.def(name, holds, py::arg("api"), doc);
  };
  group(
      "is_synchronisation", [](ApiClass c) { return is_synchronisation(c); },
      "The host waits until GPU work is done, and for nothing else.");
  group(
      "is_copy_call", [](ApiClass c) { return is_copy_call(c); }, "Copies memory.");
  group(
      "is_allocator_call", [](ApiClass c) { return is_allocator_call(c); },
      "Device or pinned memory is taken, mapped or given back.");
  group(
      "gives_memory_back", [](ApiClass c) { return gives_memory_back(c); },
      "Memory is given back or unmapped.");
  group(
      "is_host_memory_call", [](ApiClass c) { return is_host_memory_call(c); },
      "Pinned memory of the host is taken or given back.");
}

}  // namespace

void bind_codes(py::module_& module) {
  bind_row_codes(module);
  bind_groups(module);
  module.def(
      "classify_copy",
      [](std::string_view name) {
        // Kernels bear any names: "batch2d" is no "h2d".
        const bool copies = starts_with_any(name, {"Mem", "MEMORY_COPY", "Copy", "hipMem"});
        const CopyKind kind = copies ? classify_copy(name) : CopyKind();
        return std::pair(kind.direction, kind.memory);
      },
      py::arg("name"),
      "Which way a copy goes and the host's memory, by the name of a GPU event; UNKNOWN for "
      "kernels.");
  module.def(
      "gpu_class_names", [] { return names_of<GpuClass>(kGpuClassCount, gpu_class_name); },
      "Names of EventTree.gpu_class.");
  module.def(
      "phase_names", [] { return names_of<Phase>(kPhaseCount, phase_name); },
      "Names of EventTree.phase.");
}

}  // namespace traceap::bindings
