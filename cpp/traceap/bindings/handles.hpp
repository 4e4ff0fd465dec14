#pragma once
// What the Python classes of _core hold. A tree keeps its table alive and a window set its tree, so
// that a mismatched pair is noticed before any index is followed.

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>

#include "traceap/base/error.hpp"
#include "traceap/bindings/idle_memory.hpp"
#include "traceap/table/event_table.hpp"
#include "traceap/tree/event_tree.hpp"
#include "traceap/windows/window_set.hpp"

namespace traceap::bindings {

namespace py = pybind11;

using TablePtr = std::shared_ptr<EventTable>;

struct BoundTree {
  TablePtr table;
  EventTree tree;
  std::shared_ptr<IdleMemory> memory = std::make_shared<IdleMemory>();

  /// Of all GPU events, orphans included.
  const GpuIntervals& gpu() const { return memory->gpu(*table, tree); }
  /// Within `bounds`, or where there are none from the first to the last GPU event.
  std::shared_ptr<IdleBreakdown> idle(std::optional<Interval> bounds) const {
    return memory->idle(*table, tree, bounds);
  }
};

struct BoundWindows {
  std::shared_ptr<const BoundTree> tree;
  WindowSet windows;
};

/// Throws SchemaError unless `tree` was built from `table`.
inline const EventTree& tree_of(const TablePtr& table, const BoundTree& tree) {
  if (tree.table != table) throw SchemaError("the tree was built from another table");
  return tree.tree;
}

void bind_errors(py::module_& module);
void bind_codes(py::module_& module);
void bind_table(py::module_& module);
void bind_trace(py::module_& module);
void bind_tree(py::module_& module);
void bind_analysis(py::module_& module);
void bind_costs(py::module_& module);
void bind_grouping(py::module_& module);
void bind_modules(py::module_& module);
void bind_launches(py::module_& module);
void bind_collectives(py::module_& module);
void bind_critical_path(py::module_& module);
void bind_simulation(py::module_& module);
void bind_built(py::module_& module);
void bind_diff(py::module_& module);
void bind_features(py::module_& module);
void bind_model(py::module_& module);
void bind_detect(py::module_& module);
void bind_arrow(py::module_& module);

}  // namespace traceap::bindings
