#include <pybind11/stl.h>

#include "traceap/analysis/compat/hta_graph.hpp"
#include "traceap/analysis/dependencies/critical_path.hpp"
#include "traceap/bindings/codes.hpp"
#include "traceap/bindings/columns.hpp"
#include "traceap/bindings/graph_arguments.hpp"
#include "traceap/bindings/handles.hpp"
#include "traceap/bindings/interrupt.hpp"

namespace traceap::bindings {
namespace {

std::shared_ptr<CriticalPath> critical_path(const std::vector<RankArgument>& ranks,
                                            const std::pair<std::int64_t, std::int64_t>& range,
                                            const Meetings* meetings) {
  if (range.second < range.first) throw OptionError("range: the end lies before the start");
  const std::vector<GraphRank> parts = graph_ranks(ranks);
  const Unlocked unlocked;
  const DependencyGraph graph = build_dependency_graph(parts, meetings ? *meetings : Meetings());
  return std::make_shared<CriticalPath>(
      find_critical_path(graph, parts, {range.first, range.second}));
}

py::typing::Tuple<py::array_t<std::uint8_t>, Int64Array> path_causes(
    const RankArgument& rank, const std::pair<std::int64_t, std::int64_t>& range) {
  if (range.second < range.first) throw OptionError("range: the end lies before the start");
  const std::vector<GraphRank> parts = graph_ranks({rank});
  PathCauses found = [&] {
    const Unlocked unlocked;
    return find_path_causes(build_dependency_graph(parts), parts, {range.first, range.second});
  }();
  return py::make_tuple(adopt(std::move(found.cause)), adopt(std::move(found.end_ns)));
}

std::shared_ptr<HtaPath> hta_critical_path(const TablePtr& table, std::string annotation,
                                           std::pair<std::uint32_t, std::uint32_t> instances,
                                           bool launch_edges, bool keep_last_step,
                                           bool release_0_5_0) {
  HtaOptions options;
  options.annotation = std::move(annotation);
  std::tie(options.first_instance, options.last_instance) = instances;
  options.zero_weight_launch_edges = launch_edges;
  options.keep_last_step = keep_last_step;
  options.runtime_lock = options.merge_backward = options.limit_kernel_gaps = !release_0_5_0;
  return std::make_shared<HtaPath>(find_hta_path(*table, options));
}

void bind_path(py::module_& module) {
  using P = CriticalPath;
  using S = PathSegment;
  py::class_<P, std::shared_ptr<P>> path(module, "CriticalPath",
                                         "Segments of a path, by time; they tile the range.");
  const auto column = [&](const char* name, auto member, const char* doc) {
    path.def_property_readonly(name, column_of(&P::segments, member), doc);
  };
  path.def("__len__", [](const P& self) { return self.segments.size(); });
  column("start_ns", &S::start_ns, "int64 [n]: common clock.");
  column("end_ns", &S::end_ns, "int64 [n].");
  column("rank", &S::rank, "uint32 [n]: index of the rank.");
  column("row", &S::row, "uint32 [n]: of that rank, or NO_ROW.");
  column("lane_kind", &S::lane_kind, "uint8 [n]: 0 host thread, 1 stream, 2 none.");
  column("lane_index", &S::lane_index, "uint32 [n]: in the table's tracks or the tree's streams.");
  column("cause", &S::cause, "uint8 [n]: PathCause.");
  column("kind", &S::kind, "uint8 [n]: DependencyKind.");
  column("evidence", &S::evidence, "uint8 [n]: Evidence.");
  column("margin_ns", &S::margin_ns,
         "int64 [n]: how much earlier the next best predecessor was ready; NO_ID without one.");
  path.def_property_readonly(
          "total_ns",
          [](py::object self) {
            const auto& totals = self.cast<const P&>().total_ns;
            return view<std::int64_t>(totals.data(), {kPathCauseCount}, {}, self);
          },
          "int64 [causes].")
      .def_readonly("assumed_ns", &P::assumed_ns, "Time on assumed edges, and unknown time.")
      .def_readonly("points", &P::points, "Points of the graph.")
      .def_readonly("edges", &P::edges, "Edges of the graph.");
}

using NamedCounts = py::typing::Dict<py::str, py::int_>;
NamedCounts hta_edge_kinds(const HtaPath& self) {
  NamedCounts counts;
  for (int kind = 0; kind < kHtaEdgeKindCount; ++kind) {
    counts[to_str(hta_edge_kind_name(static_cast<HtaEdgeKind>(kind)))] =
        self.edges_of_kind[static_cast<std::size_t>(kind)];
  }
  return counts;
}

void bind_hta(py::module_& module) {
  using H = HtaPath;
  py::class_<H, std::shared_ptr<H>> path(module, "HtaPath", "Edges of the path that HTA finds.");
  const auto column = [&](const char* name, auto member, const char* doc) {
    path.def_property_readonly(name, column_of(&H::path_edges, member), doc);
  };
  path.def_readonly("found", &H::found)
      .def_readonly("of_gpu_copy", &H::of_gpu_copy)
      .def_readonly("nodes", &H::nodes)
      .def_readonly("edges", &H::edges)
      .def_property_readonly("edges_of_kind", hta_edge_kinds)
      .def_property_readonly("path_nodes", [](const H& self) { return self.path_nodes.size(); })
      .def_readonly("path_events", &H::path_events)
      .def_readonly("duration_us", &H::duration_us)
      .def_property_readonly("node_us", column_of(&H::node_us), "int64 [nodes]: when each is.");
  column("begin", &HtaEdge::begin, "uint32 [n]: node where each edge begins.");
  column("weight_us", &HtaEdge::weight_us, "int64 [n].");
  column("kind", &HtaEdge::kind, "uint8 [n]: in hta_edge_kind_names().");
  column("bound", &HtaEdge::bound, "uint8 [n]: in hta_bound_names().");
  column("row", &HtaEdge::row, "uint32 [n]: or NO_ROW.");
  module.def("hta_critical_path", hta_critical_path, py::arg("table"), py::kw_only(),
             py::arg("annotation"), py::arg("instances") = std::pair(0U, 0U),
             py::arg("launch_edges") = true, py::arg("keep_last_step") = false,
             py::arg("release_0_5_0") = false, py::call_guard<Unlocked>(),
             "The critical path by HTA's rules, within instances of an annotation.");
  module.def(
      "hta_edge_kind_names",
      [] { return names_of<HtaEdgeKind>(kHtaEdgeKindCount, hta_edge_kind_name); },
      "Names of HtaPath.kind.");
  module.def(
      "hta_bound_names", [] { return names_of<HtaBound>(kHtaBoundCount, hta_bound_name); },
      "Names of HtaPath.bound.");
}

}  // namespace

void bind_critical_path(py::module_& module) {
  bind_path(module);
  bind_hta(module);
  module.def("critical_path", critical_path, py::arg("ranks"), py::arg("range"), py::kw_only(),
             py::arg("meetings") = py::none(),
             "The chain of events that decided when the range (start_ns, end_ns) ended. `ranks`: "
             "(table, tree, offset_ns) of each; `meetings`: where they meet.");
  module.def("path_causes", path_causes, py::arg("rank"), py::arg("range"),
             "Causes of the path of one rank (table, tree, offset_ns), as in CriticalPath.cause, "
             "uint8 [n], and where each ends, int64 [n]; each begins where the one before it ends, "
             "the first one with the range.");
  module.def(
      "path_cause_names", [] { return names_of<PathCause>(kPathCauseCount, path_cause_name); },
      "Names of CriticalPath.cause.");
  module.def(
      "dependency_kind_names",
      [] { return names_of<DependencyKind>(kDependencyKindCount, dependency_kind_name); },
      "Names of CriticalPath.kind.");
  module.def(
      "evidence_names", [] { return names_of<Evidence>(kEvidenceCount, evidence_name); },
      "Names of CriticalPath.evidence.");
}

}  // namespace traceap::bindings
