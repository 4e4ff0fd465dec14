#include <pybind11/stl.h>

#include "traceap/analysis/idle/idle.hpp"
#include "traceap/analysis/idle/serving_work.hpp"
#include "traceap/analysis/idle/timeline.hpp"
#include "traceap/bindings/codes.hpp"
#include "traceap/bindings/columns.hpp"
#include "traceap/bindings/handles.hpp"
#include "traceap/bindings/interrupt.hpp"

namespace traceap::bindings {
namespace {

using GpuIdleClass = py::class_<IdleBreakdown, std::shared_ptr<IdleBreakdown>>;

Interval checked_interval(const Bounds& bounds) {
  if (bounds.second < bounds.first) throw OptionError("bounds: the end lies before the start");
  return {bounds.first, bounds.second};
}

GpuIntervals gpu_intervals_of(const TablePtr& table, const BoundTree& tree, bool linked_only,
                              std::int32_t device) {
  return build_gpu_intervals(*table, tree_of(table, tree), {linked_only, device});
}

Timeline timeline(const TablePtr& table, const BoundTree& tree, bool linked_only,
                  std::int32_t device, const std::optional<Bounds>& bounds) {
  const GpuIntervals gpu = gpu_intervals_of(table, tree, linked_only, device);
  return bounds ? compute_timeline(gpu, checked_interval(*bounds)) : compute_timeline(gpu);
}

std::vector<Timeline> timelines(const TablePtr& table, const BoundTree& tree,
                                const std::vector<Bounds>& bounds, bool linked_only,
                                std::int32_t device) {
  const GpuIntervals gpu = gpu_intervals_of(table, tree, linked_only, device);
  std::vector<Timeline> result;
  result.reserve(bounds.size());
  for (const Bounds& pair : bounds) result.push_back(compute_timeline(gpu, checked_interval(pair)));
  return result;
}

std::vector<std::pair<std::int32_t, Timeline>> device_timelines(const TablePtr& table,
                                                                const BoundTree& tree,
                                                                bool linked_only) {
  std::vector<std::pair<std::int32_t, Timeline>> result;
  for (const DeviceTimeline& d :
       compute_device_timelines(*table, tree_of(table, tree), linked_only)) {
    result.emplace_back(d.device, d.timeline);
  }
  return result;
}

using NamedIntervals = py::typing::Dict<py::str, Int64Array>;
NamedIntervals gpu_intervals(const TablePtr& table, const BoundTree& tree, bool linked_only,
                             std::int32_t device) {
  GpuIntervals gpu;
  {
    const Unlocked unlocked;
    gpu = gpu_intervals_of(table, tree, linked_only, device);
  }
  NamedIntervals result;
  result["busy"] = adopt(std::move(gpu.busy));
  result["compute"] = adopt(std::move(gpu.compute));
  result["communication"] = adopt(std::move(gpu.communication));
  result["memcpy"] = adopt(std::move(gpu.memcpy));
  return result;
}

std::shared_ptr<IdleBreakdown> idle(const TablePtr& table, const BoundTree& tree,
                                    const std::optional<Bounds>& bounds) {
  tree_of(table, tree);
  return tree.idle(bounds ? std::optional(checked_interval(*bounds)) : std::nullopt);
}

void bind_timeline(py::module_& module) {
  py::class_<Timeline>(module, "Timeline", "GPU time split by interval union, in ns.")
      .def_readonly("span_ns", &Timeline::span_ns)
      .def_readonly("busy_ns", &Timeline::busy_ns)
      .def_readonly("idle_ns", &Timeline::idle_ns)
      .def_readonly("compute_ns", &Timeline::compute_ns)
      .def_readonly("communication_ns", &Timeline::communication_ns)
      .def_readonly("memcpy_ns", &Timeline::memcpy_ns)
      .def_readonly("exposed_communication_ns", &Timeline::exposed_communication_ns)
      .def_readonly("exposed_memcpy_ns", &Timeline::exposed_memcpy_ns);
}

using NamedTimes = py::typing::Dict<py::str, py::int_>;
NamedTimes idle_totals(const IdleBreakdown& idle) {
  NamedTimes totals;
  for (std::size_t cause = 0; cause < idle.total_ns.size(); ++cause) {
    totals[to_str(idle_cause_name(static_cast<IdleCause>(cause)))] = idle.total_ns[cause];
  }
  return totals;
}

void bind_idle(py::module_& module) {
  using Idle = IdleBreakdown;
  using I = IdleInterval;
  GpuIdleClass(module, "IdleBreakdown", "Idle intervals of the GPU with one cause each.")
      .def("__len__", [](const IdleBreakdown& self) { return self.intervals.size(); })
      .def_property_readonly("start_ns",
                             column_of(&Idle::intervals, &I::interval, &Interval::start_ns),
                             "int64 [n]: sorted.")
      .def_property_readonly("end_ns", column_of(&Idle::intervals, &I::interval, &Interval::end_ns),
                             "int64 [n].")
      .def_property_readonly("cause", column_of(&Idle::intervals, &I::cause),
                             "uint8 [n]: IdleCause.")
      .def_property_readonly("explained_by", column_of(&Idle::intervals, &I::explained_by),
                             "uint32 [n]: host row that explains it, or NO_ROW.")
      .def_property_readonly("next_gpu_row", column_of(&Idle::intervals, &I::next_gpu_row),
                             "uint32 [n]: first GPU event after it, or NO_ROW.")
      .def_property_readonly("totals", idle_totals, "In ns, by cause.");
  module.def(
      "idle_cause_names", [] { return names_of<IdleCause>(kIdleCauseCount, idle_cause_name); },
      "Names of IdleBreakdown.cause.");
}

/// int64 [stretches, works]: ns by what the thread does.
py::array_t<std::int64_t> serving_work(const TablePtr& table, const BoundTree& tree,
                                       std::optional<TrackId> track,
                                       const AnyArray<std::int64_t>& stretches) {
  const EventTree& links = tree_of(table, tree);
  if (track && *track >= table->tracks.size()) throw OptionError("no such track");
  const auto numbers = items(stretches);
  std::vector<Interval> spans;
  for (std::size_t i = 0; i + 1 < numbers.size(); i += 2) {
    if (numbers[i + 1] < numbers[i] || (!spans.empty() && numbers[i] < spans.back().end_ns))
      throw OptionError("stretches must be sorted and disjoint");
    spans.push_back({numbers[i], numbers[i + 1]});
  }
  std::vector<std::array<std::int64_t, kServingWorkCount>> sums(spans.size());
  {
    const Unlocked unlocked;
    std::size_t at = 0;
    for (const ServingPiece& piece :
         split_by_serving_work(*table, links, track.value_or(kNoTrack), spans)) {
      while (spans[at].end_ns < piece.interval.end_ns) ++at;
      sums[at][static_cast<std::size_t>(piece.work)] += piece.interval.length_ns();
    }
  }
  py::array_t<std::int64_t> result({sums.size(), std::size_t{kServingWorkCount}});
  if (!sums.empty()) {
    std::copy_n(sums.front().data(), sums.size() * kServingWorkCount, result.mutable_data());
  }
  return result;
}

void bind_serving_work(py::module_& module) {
  module.def(
      "serving_work_names",
      [] { return names_of<ServingWork>(kServingWorkCount, serving_work_name); },
      "What the thread of a serving engine does, as `serving_work` counts it.");
  module.def("serving_work", serving_work, py::arg("table"), py::arg("tree"), py::arg("track"),
             py::arg("stretches"),
             "int64 [n, works]: ns by what a thread does within stretches [n, 2] of the GPU's "
             "clock, which are sorted and disjoint.");
}

}  // namespace

void bind_analysis(py::module_& module) {
  bind_serving_work(module);
  bind_timeline(module);
  bind_idle(module);
  module.def("timeline", timeline, py::arg("table"), py::arg("tree"), py::kw_only(),
             py::arg("linked_only") = false, py::arg("device") = -1, py::arg("bounds") = py::none(),
             py::call_guard<Unlocked>(),
             "GPU time by class; over its own span, or clipped to bounds (start_ns, end_ns).");
  module.def("timelines", timelines, py::arg("table"), py::arg("tree"), py::arg("bounds"),
             py::kw_only(), py::arg("linked_only") = false, py::arg("device") = -1,
             py::call_guard<Unlocked>(), "One timeline for each pair of bounds.");
  module.def("device_timelines", device_timelines, py::arg("table"), py::arg("tree"), py::kw_only(),
             py::arg("linked_only") = false, py::call_guard<Unlocked>(),
             "(device, timeline) for each device that ran something; -1: no device named.");
  module.def("gpu_intervals", gpu_intervals, py::arg("table"), py::arg("tree"), py::kw_only(),
             py::arg("linked_only") = false, py::arg("device") = -1,
             "Unions of GPU events [n, 2] by name: busy, compute, communication, memcpy.");
  module.def("explain_idle", idle, py::arg("table"), py::arg("tree"), py::kw_only(),
             py::arg("bounds") = py::none(), py::call_guard<Unlocked>(),
             "Why the GPU idles, over the span of its events or inside bounds.");
}

}  // namespace traceap::bindings
