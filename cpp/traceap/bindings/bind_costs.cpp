#include "traceap/analysis/gpu_costs.hpp"
#include "traceap/bindings/columns.hpp"
#include "traceap/bindings/handles.hpp"

namespace traceap::bindings {

void bind_costs(py::module_& module) {
  py::class_<GpuCosts, std::shared_ptr<GpuCosts>>(module, "GpuCosts",
                                                  "GPU and host time of every row, in ns.")
      .def_property_readonly("exclusive_ns", column_of(&GpuCosts::exclusive_ns),
                             "int64 [n]: the part of a GPU event's time that counts for it alone; "
                             "sums to the busy time.")
      .def_property_readonly("own_gpu_ns", column_of(&GpuCosts::own_gpu_ns),
                             "int64 [n]: union of the GPU events that a host row owns.")
      .def_property_readonly("subtree_gpu_ns", column_of(&GpuCosts::subtree_gpu_ns),
                             "int64 [n]: union of the GPU events launched in or below a host row.")
      .def_property_readonly("own_gpu_events", column_of(&GpuCosts::own_gpu_events),
                             "uint32 [n].")
      .def_property_readonly("subtree_gpu_events", column_of(&GpuCosts::subtree_gpu_events),
                             "uint32 [n].")
      .def_property_readonly("self_host_ns", column_of(&GpuCosts::self_host_ns),
                             "int64 [n]: time of a host row without that of its children.")
      .def_property_readonly("owner", column_of(&GpuCosts::owner),
                             "uint32 [n]: op, else launch, that owns a GPU event, or NO_ROW.");
  module.def(
      "gpu_costs",
      [](const TablePtr& table, const BoundTree& tree) {
        return std::make_shared<GpuCosts>(build_gpu_costs(*table, tree_of(table, tree)));
      },
      py::arg("table"), py::arg("tree"), py::call_guard<py::gil_scoped_release>(),
      "GPU time owned by, and launched below, every host row.");
}

}  // namespace traceap::bindings
