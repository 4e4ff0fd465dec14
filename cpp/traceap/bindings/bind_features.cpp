#include <pybind11/stl.h>

#include "traceap/bindings/columns.hpp"
#include "traceap/bindings/handles.hpp"
#include "traceap/bindings/interrupt.hpp"
#include "traceap/features/quantize.hpp"
#include "traceap/features/window_features.hpp"

namespace traceap::bindings {
namespace {

using WindowsClass = py::class_<BoundWindows, std::shared_ptr<BoundWindows>>;
using FeatureClass = py::class_<FeatureBlock, std::shared_ptr<FeatureBlock>>;
using Times = py::array_t<std::int64_t, py::array::c_style>;
using Bounds = std::pair<std::int64_t, std::int64_t>;

std::shared_ptr<BoundWindows> windows(const TablePtr& table, const std::shared_ptr<BoundTree>& tree,
                                      std::uint32_t count, std::int64_t length_ns, bool host_rows,
                                      const std::optional<Bounds>& bounds) {
  const EventTree& links = tree_of(table, *tree);
  Interval span = links.profiled;
  if (bounds) span = {bounds->first, bounds->second};
  if (span.end_ns < span.start_ns) throw OptionError("bounds: the end lies before the start");
  return std::make_shared<BoundWindows>(
      BoundWindows{tree, build_windows(*table, links, span, {count, length_ns, host_rows})});
}

std::shared_ptr<FeatureBlock> features(const TablePtr& table, const BoundTree& tree,
                                       const BoundWindows& bound) {
  const EventTree& links = tree_of(table, tree);
  if (bound.tree.get() != &tree) throw SchemaError("the windows were built from another tree");
  const auto& bounds_ns = bound.windows.bounds_ns;
  const GpuIntervals gpu = build_gpu_intervals(*table, links);
  const IdleBreakdown idle =
      explain_idle(*table, links, gpu, {bounds_ns.front(), bounds_ns.back()});
  return std::make_shared<FeatureBlock>(build_features(*table, links, gpu, idle, bound.windows));
}

template <typename T>
auto window_column(std::vector<T> WindowSet::*member) {
  return [member](py::object self) {
    return view(self.cast<const BoundWindows&>().windows.*member, self);
  };
}

void bind_windows(py::module_& module) {
  WindowsClass(module, "WindowSet", "Windows of a trace: bounds and ragged lists of rows.")
      .def("__len__", [](const BoundWindows& self) { return self.windows.count(); })
      .def_property_readonly("bounds_ns", window_column(&WindowSet::bounds_ns),
                             "int64 [count + 1].")
      .def_property_readonly("offsets", window_column(&WindowSet::offsets),
                             "uint32 [count + 1]: into rows.")
      .def_property_readonly("rows", window_column(&WindowSet::rows),
                             "uint32: events by the window of their start.")
      .def_property_readonly("overlapping_offsets", window_column(&WindowSet::overlapping_offsets),
                             "uint32 [count + 1]: into overlapping.")
      .def_property_readonly("overlapping", window_column(&WindowSet::overlapping),
                             "uint32: events that began earlier and reach into the window.");
  module.def("build_windows", windows, py::arg("table"), py::arg("tree"), py::kw_only(),
             py::arg("count") = WindowOptions().count, py::arg("length_ns") = 0,
             py::arg("host_rows") = false, py::arg("bounds") = py::none(),
             py::call_guard<Unlocked>(),
             "Windows of equal time, or of length_ns, over the profiled time or bounds.");
}

/// View of a row-major [windows, features] matrix.
auto matrix(std::vector<double> FeatureBlock::*member) {
  return [member](py::object self) {
    const auto& block = self.cast<const FeatureBlock&>();
    const auto rows = static_cast<py::ssize_t>(block.window_count);
    const auto columns = static_cast<py::ssize_t>(block.names.size());
    return view<double>((block.*member).data(), {rows, columns}, {}, self);
  };
}

void bind_feature_block(py::module_& module) {
  FeatureClass(module, "FeatureBlock", "Numbers per window; docs/features.md lists them.")
      .def_property_readonly(
          "names",
          [](const FeatureBlock& self) {
            return std::vector<std::string>(self.names.begin(), self.names.end());
          },
          "[features].")
      .def_property_readonly("values", matrix(&FeatureBlock::values),
                             "float64 [windows, features].")
      .def_property_readonly("zscores", matrix(&FeatureBlock::zscores),
                             "float64 [windows, features]: robust, per trace.");
  module.def("build_features", features, py::arg("table"), py::arg("tree"), py::arg("windows"),
             py::call_guard<Unlocked>(), "Features of every window.");
}

py::array_t<std::int32_t> quantize(const Times& times, const QuantizeRange& range) {
  if (times.ndim() != 1) throw SchemaError("times must be int64 [n]");
  return adopt(quantize_ns({times.data(), static_cast<std::size_t>(times.size())}, range));
}

}  // namespace

void bind_features(py::module_& module) {
  bind_windows(module);
  bind_feature_block(module);
  module.def(
      "quantize_delays_ns", [](const Times& times) { return quantize(times, kDelayRange); },
      py::arg("times"), "int32 [n]: logarithmic ids of launch delays (paper, Eq. 3).");
  module.def(
      "quantize_durations_ns", [](const Times& times) { return quantize(times, kDurationRange); },
      py::arg("times"), "int32 [n]: logarithmic ids of durations (paper, Eq. 3).");
}

}  // namespace traceap::bindings
