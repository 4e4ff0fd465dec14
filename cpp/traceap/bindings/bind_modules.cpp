#include <pybind11/stl.h>

#include "traceap/analysis/costs/modules.hpp"
#include "traceap/analysis/idle/host_self.hpp"
#include "traceap/bindings/columns.hpp"
#include "traceap/bindings/handles.hpp"
#include "traceap/bindings/interrupt.hpp"

namespace traceap::bindings {
namespace {

using GroupArray = AnyArray<std::int32_t>;
using ModuleClass = py::class_<ModuleTree, std::shared_ptr<ModuleTree>>;
using HostIdleClass = py::class_<HostIdle, std::shared_ptr<HostIdle>>;

// --------------------------------------------------------------------------------- modules

template <typename Get>
auto node_texts(Get get) {
  return [get](const ModuleTree& self) {
    TextList texts;
    for (const ModuleNode& node : self.nodes) texts.append(to_str(get(node)));
    return texts;
  };
}

void bind_module_nodes(ModuleClass& modules) {
  using Modules = ModuleTree;
  using Node = ModuleNode;
  modules.def_property_readonly("names", node_texts([](const ModuleNode& n) { return n.name; }))
      .def_property_readonly("types", node_texts([](const ModuleNode& n) { return n.type; }),
                             "Class of each module, or empty.")
      .def_property_readonly("parent", column_of(&Modules::nodes, &Node::parent),
                             "uint32 [nodes]: node of the caller, or NO_ROW.")
      .def_property_readonly("depth", column_of(&Modules::nodes, &Node::depth), "uint32 [nodes].")
      .def_property_readonly("first_call", column_of(&Modules::nodes, &Node::first_call),
                             "uint32 [nodes]: first row that belongs to it, or NO_ROW.")
      .def_property_readonly("calls", column_of(&Modules::nodes, &Node::calls), "uint32 [nodes].")
      .def_property_readonly("recompute_calls", column_of(&Modules::nodes, &Node::recompute_calls),
                             "uint32 [nodes]: calls by activation checkpointing.")
      .def_property_readonly("preorder", column_of(&ModuleTree::preorder), "uint32 [nodes].");
}

void bind_module_tree(py::module_& module) {
  ModuleClass modules(module, "ModuleTree", "Modules under their callers, and what they cost.");
  bind_module_nodes(modules);
  modules
      .def_property_readonly(
          "source", [](const ModuleTree& self) { return to_str(module_source_name(self.source)); },
          "none, python_frames, module_hierarchy, hlo_module or annotations.")
      .def_property_readonly("own_gpu_ns", column_of(&ModuleTree::own, &ModuleCosts::gpu_ns),
                             "int64 [nodes, 4]: forward, backward, recompute, none.")
      .def_property_readonly("own_host_ns", column_of(&ModuleTree::own, &ModuleCosts::host_ns),
                             "int64 [nodes, 4].")
      .def_property_readonly(
          "own_gpu_events", column_of(&ModuleTree::own, &ModuleCosts::gpu_events), "int64 [nodes].")
      .def_property_readonly("gpu_ns", column_of(&ModuleTree::total, &ModuleCosts::gpu_ns),
                             "int64 [nodes, 4]: with the nodes below.")
      .def_property_readonly("host_ns", column_of(&ModuleTree::total, &ModuleCosts::host_ns),
                             "int64 [nodes, 4]: with the nodes below.")
      .def_property_readonly("gpu_events", column_of(&ModuleTree::total, &ModuleCosts::gpu_events),
                             "int64 [nodes].")
      .def_property_readonly("node_of", column_of(&ModuleTree::node_of),
                             "uint32 [n]: innermost node of each row; 0 outside of modules.")
      .def_property_readonly("pass_of", column_of(&ModuleTree::pass_of),
                             "uint8 [n]: forward, backward, recompute, none.");
  module.def(
      "build_modules",
      [](const TablePtr& table, const BoundTree& tree, const GpuCosts& costs) {
        if (costs.owner.size() != table->size()) throw SchemaError("costs of another table");
        return std::make_shared<ModuleTree>(build_modules(*table, tree_of(table, tree), costs));
      },
      py::arg("table"), py::arg("tree"), py::arg("costs"), py::call_guard<Unlocked>(),
      "The module of every row, and the costs of every module.");
}

// ------------------------------------------------------------------------------------ host

std::shared_ptr<HostIdle> host_idle(const TablePtr& table, const BoundTree& tree,
                                    const IdleBreakdown& idle, const Bounds& bounds,
                                    const GroupArray& group_of, std::size_t groups) {
  const std::span<const std::int32_t> of_row = items(group_of);
  const EventTree& links = tree_of(table, tree);
  if (of_row.size() != table->size()) throw OptionError("group_of needs an entry for every row");
  if (groups > of_row.size() + 1) throw OptionError("more groups than rows");
  const Unlocked unlocked;
  const Interval span{bounds.first, bounds.second};
  return std::make_shared<HostIdle>(build_host_idle(*table, links, idle, span, of_row, groups));
}

void bind_host_idle(py::module_& module) {
  HostIdleClass(module, "HostIdle",
                "What host threads did, and what while the GPU was idle; in ns.")
      .def_property_readonly("track", column_of(&HostIdle::threads, &HostThread::track),
                             "uint32 [threads]: track id.")
      .def_property_readonly("busy_ns", column_of(&HostIdle::threads, &HostThread::busy_ns),
                             "int64 [threads]: union of the thread's rows.")
      .def_property_readonly("blocked_idle_ns",
                             column_of(&HostIdle::threads, &HostThread::blocked_idle_ns),
                             "int64 [threads]: GPU idle, in calls that wait.")
      .def_property_readonly("busy_idle_ns",
                             column_of(&HostIdle::threads, &HostThread::busy_idle_ns),
                             "int64 [threads, causes]: GPU idle, some row open.")
      .def_property_readonly("silent_idle_ns",
                             column_of(&HostIdle::threads, &HostThread::silent_idle_ns),
                             "int64 [threads, causes]: GPU idle, no row open.")
      .def_property_readonly("self_ns", column_of(&HostIdle::self_ns),
                             "int64 [groups + 1]: self time; the last entry is of no group.")
      .def_property_readonly(
          "idle_self_ns",
          [](py::object self) {
            return member_view(self.cast<const HostIdle&>().idle_self_ns, self);
          },
          "int64 [groups + 1, causes]: self time while the GPU was idle.");
  module.def("host_idle", host_idle, py::arg("table"), py::arg("tree"), py::arg("idle"),
             py::arg("bounds"), py::arg("group_of"), py::arg("groups"),
             "Self time of host rows by group (int32 [n], negative: that of the row around it), "
             "within bounds and while the GPU was idle.");
}

}  // namespace

void bind_modules(py::module_& module) {
  bind_module_tree(module);
  bind_host_idle(module);
}

}  // namespace traceap::bindings
