#include "traceap/analysis/compat/compat_nesting.hpp"
#include "traceap/analysis/costs/gpu_costs.hpp"
#include "traceap/bindings/columns.hpp"
#include "traceap/bindings/handles.hpp"
#include "traceap/bindings/interrupt.hpp"

namespace traceap::bindings {
namespace {

using RowArray = py::array_t<Row>;
using MarkArray = py::array_t<std::uint8_t, py::array::c_style | py::array::forcecast>;
using GroupArray = py::array_t<std::int32_t, py::array::c_style | py::array::forcecast>;

Int64Array gpu_union_by_group(const TablePtr& table, const BoundTree& tree,
                              const GroupArray& group_of, std::size_t groups) {
  const EventTree& links = tree_of(table, tree);
  const auto size = static_cast<std::size_t>(group_of.size());
  if (size != links.gpu_rows.size()) throw OptionError("group_of needs an entry for every gpu_row");
  if (groups > size) throw OptionError("more groups than GPU events");
  return adopt(group_gpu_union(*table, links, {group_of.data(), size}, groups));
}

RowArray innermost_marked_above(const TablePtr& table, const BoundTree& tree,
                                const MarkArray& marked) {
  const EventTree& links = tree_of(table, tree);
  const auto size = static_cast<std::size_t>(marked.size());
  if (size != table->size()) throw OptionError("marked needs an entry for every row");
  return adopt(innermost_marked(links, {marked.data(), size}));
}

}  // namespace

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
      .def_property_readonly("own_gpu_events", column_of(&GpuCosts::own_gpu_events), "uint32 [n].")
      .def_property_readonly("subtree_gpu_events", column_of(&GpuCosts::subtree_gpu_events),
                             "uint32 [n].")
      .def_property_readonly("self_host_ns", column_of(&GpuCosts::self_host_ns),
                             "int64 [n]: time of a host row without that of its children.")
      .def_property_readonly("owned_exclusive_ns", column_of(&GpuCosts::owned_exclusive_ns),
                             "int64 [n]: exclusive_ns of the GPU events that a host row owns.")
      .def_property_readonly("own_launches", column_of(&GpuCosts::own_launches),
                             "uint32 [n]: calls that launched GPU events which a host row owns.")
      .def_property_readonly("backward_gpu_ns", column_of(&GpuCosts::backward_gpu_ns),
                             "int64 [n]: GPU time of the backward ops that go back to a row.")
      .def_property_readonly("subtree_backward_gpu_ns",
                             column_of(&GpuCosts::subtree_backward_gpu_ns),
                             "int64 [n]: the same for a row and all below it.")
      .def_property_readonly("is_repeated", column_of(&GpuCosts::is_repeated),
                             "uint8 [n]: a row of the same kind and name encloses it.")
      .def_property_readonly("owner", column_of(&GpuCosts::owner),
                             "uint32 [n]: op, else launch, that owns a GPU event, or NO_ROW.");
  module.def(
      "gpu_costs",
      [](const TablePtr& table, const BoundTree& tree) {
        return std::make_shared<GpuCosts>(build_gpu_costs(*table, tree_of(table, tree)));
      },
      py::arg("table"), py::arg("tree"), py::call_guard<Unlocked>(),
      "GPU time owned by, and launched below, every host row.");
  module.def("innermost_marked", innermost_marked_above, py::arg("table"), py::arg("tree"),
             py::arg("marked"),
             "uint32 [n]: the innermost row at or above each for which `marked` (one number per "
             "row) is not 0, or NO_ROW.");
  module.def("gpu_union_by_group", gpu_union_by_group, py::arg("table"), py::arg("tree"),
             py::arg("group_of"), py::arg("groups"),
             "int64 [groups]: union of the GPU events of each group; group_of is int32 and follows "
             "gpu_rows, what is negative is left out.");

  py::class_<CompatNesting, std::shared_ptr<CompatNesting>>(
      module, "CompatNesting", "Host stacks by the rules of TraceLens.")
      .def_property_readonly("rows", column_of(&CompatNesting::rows),
                             "uint32: rows of its tree by track, a pre-order each.")
      .def_property_readonly("subtree_end", column_of(&CompatNesting::subtree_end),
                             "uint32, per index in rows: one past its last descendant's index.")
      .def_property_readonly("parent", column_of(&CompatNesting::parent),
                             "uint32 [n]: enclosing row, or NO_ROW.");
  module.def(
      "compat_nesting",
      [](const TablePtr& table, bool python_frames) {
        return std::make_shared<CompatNesting>(build_compat_nesting(*table, {python_frames}));
      },
      py::arg("table"), py::kw_only(), py::arg("python_frames") = false, py::call_guard<Unlocked>(),
      "The host tree that TraceLens builds: what it drops is left out.");
}

}  // namespace traceap::bindings
