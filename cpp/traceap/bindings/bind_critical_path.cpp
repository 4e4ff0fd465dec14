#include <pybind11/stl.h>

#include "traceap/analysis/compat/hta_graph.hpp"
#include "traceap/analysis/dependencies/critical_path.hpp"
#include "traceap/bindings/columns.hpp"
#include "traceap/bindings/graph_arguments.hpp"
#include "traceap/bindings/handles.hpp"

namespace traceap::bindings {
namespace {

/// A path with its segments as columns.
struct PathColumns {
  std::vector<std::int64_t> start_ns, end_ns, margin_ns;
  std::vector<std::uint32_t> rank;
  std::vector<Row> row;
  std::vector<Lane::Kind> lane_kind;
  std::vector<std::uint32_t> lane_index;
  std::vector<PathCause> cause;
  std::vector<DependencyKind> kind;
  std::vector<Evidence> evidence;
  std::vector<std::int64_t> total_ns;
  std::int64_t assumed_ns;
  std::size_t points, edges;

  PathColumns(const DependencyGraph& graph, const CriticalPath& path)
      : total_ns(path.total_ns.begin(), path.total_ns.end()),
        assumed_ns(path.assumed_ns),
        points(graph.size()),
        edges(graph.edges()) {
    for (const PathSegment& s : path.segments) {
      start_ns.push_back(s.start_ns);
      end_ns.push_back(s.end_ns);
      margin_ns.push_back(s.margin_ns);
      rank.push_back(s.rank);
      row.push_back(s.row);
      const bool known = s.lane != kNoPoint;
      lane_kind.push_back(known ? graph.lanes[s.lane].kind : Lane::kCollectives);
      lane_index.push_back(known ? graph.lanes[s.lane].index : 0);
      cause.push_back(s.cause);
      kind.push_back(s.kind);
      evidence.push_back(s.evidence);
    }
  }
};

std::shared_ptr<PathColumns> critical_path(const std::vector<RankArgument>& ranks,
                                           const std::pair<std::int64_t, std::int64_t>& range,
                                           const std::vector<MemberArgument>& collectives) {
  if (range.second < range.first) throw OptionError("range: the end lies before the start");
  const std::vector<GraphRank> parts = graph_ranks(ranks);
  const std::vector<CollectiveMembers> groups = graph_collectives(collectives);
  py::gil_scoped_release release;
  const DependencyGraph graph = build_dependency_graph(parts, groups);
  return std::make_shared<PathColumns>(
      graph, find_critical_path(graph, parts, {range.first, range.second}));
}

/// HTA's path with its edges as columns.
struct HtaColumns {
  HtaPath path;
  std::vector<std::int64_t> start_us, weight_us;
  std::vector<HtaEdgeKind> kind;
  std::vector<HtaBound> bound;
  std::vector<Row> row;

  explicit HtaColumns(HtaPath&& found) : path(std::move(found)) {
    for (const HtaEdge& edge : path.path_edges) {
      start_us.push_back(path.node_us[edge.begin]);
      weight_us.push_back(edge.weight_us);
      kind.push_back(edge.kind);
      bound.push_back(edge.bound);
      row.push_back(edge.row);
    }
  }
};

std::shared_ptr<HtaColumns> hta_critical_path(const TablePtr& table, std::string annotation,
                                              std::pair<std::uint32_t, std::uint32_t> instances,
                                              bool launch_edges, bool keep_last_step,
                                              bool release_0_5_0) {
  HtaOptions options;
  options.annotation = std::move(annotation);
  std::tie(options.first_instance, options.last_instance) = instances;
  options.zero_weight_launch_edges = launch_edges;
  options.keep_last_step = keep_last_step;
  options.runtime_lock = options.merge_backward = options.limit_kernel_gaps = !release_0_5_0;
  return std::make_shared<HtaColumns>(find_hta_path(*table, options));
}

template <typename Enum, typename Name>
TextList names_of(int count, Name name) {
  TextList names;
  for (int i = 0; i < count; ++i) names.append(to_str(name(static_cast<Enum>(i))));
  return names;
}

void bind_path(py::module_& module) {
  using P = PathColumns;
  py::class_<P, std::shared_ptr<P>>(module, "CriticalPath",
                                    "Segments of a path, by time; they tile the range.")
      .def("__len__", [](const P& self) { return self.start_ns.size(); })
      .def_property_readonly("start_ns", column_of(&P::start_ns), "int64 [n]: common clock.")
      .def_property_readonly("end_ns", column_of(&P::end_ns), "int64 [n].")
      .def_property_readonly("rank", column_of(&P::rank), "uint32 [n]: index of the rank.")
      .def_property_readonly("row", column_of(&P::row), "uint32 [n]: of that rank, or NO_ROW.")
      .def_property_readonly("lane_kind", column_of(&P::lane_kind),
                             "uint8 [n]: 0 host thread, 1 stream, 2 none.")
      .def_property_readonly("lane_index", column_of(&P::lane_index),
                             "uint32 [n]: in the table's tracks or the tree's streams.")
      .def_property_readonly("cause", column_of(&P::cause),
                             "uint8 [n]: index in path_cause_names().")
      .def_property_readonly("kind", column_of(&P::kind),
                             "uint8 [n]: index in dependency_kind_names().")
      .def_property_readonly("evidence", column_of(&P::evidence),
                             "uint8 [n]: index in evidence_names().")
      .def_property_readonly("margin_ns", column_of(&P::margin_ns),
                             "int64 [n]: how much earlier the next best predecessor was ready; "
                             "NO_ID without one.")
      .def_property_readonly("total_ns", column_of(&P::total_ns), "int64 [causes].")
      .def_readonly("assumed_ns", &P::assumed_ns, "Time on assumed edges, and unknown time.")
      .def_readonly("points", &P::points, "Points of the graph.")
      .def_readonly("edges", &P::edges, "Edges of the graph.");
}

using NamedCounts = py::typing::Dict<py::str, py::int_>;
NamedCounts hta_edge_kinds(const HtaColumns& self) {
  NamedCounts counts;
  for (int kind = 0; kind < kHtaEdgeKindCount; ++kind) {
    counts[to_str(hta_edge_kind_name(static_cast<HtaEdgeKind>(kind)))] =
        self.path.edges_of_kind[static_cast<std::size_t>(kind)];
  }
  return counts;
}

void bind_hta(py::module_& module) {
  using H = HtaColumns;
  py::class_<H, std::shared_ptr<H>>(module, "HtaPath", "Edges of the path that HTA finds.")
      .def_property_readonly("found", [](const H& self) { return self.path.found; })
      .def_property_readonly("nodes", [](const H& self) { return self.path.nodes; })
      .def_property_readonly("edges", [](const H& self) { return self.path.edges; })
      .def_property_readonly("edges_of_kind", hta_edge_kinds)
      .def_property_readonly("path_nodes",
                             [](const H& self) { return self.path.path_nodes.size(); })
      .def_property_readonly("path_events", [](const H& self) { return self.path.path_events; })
      .def_property_readonly("duration_us", [](const H& self) { return self.path.duration_us; })
      .def_property_readonly("start_us", column_of(&H::start_us), "int64 [n]: of each edge.")
      .def_property_readonly("weight_us", column_of(&H::weight_us), "int64 [n].")
      .def_property_readonly("kind", column_of(&H::kind), "uint8 [n]: in hta_edge_kind_names().")
      .def_property_readonly("bound", column_of(&H::bound), "uint8 [n]: in hta_bound_names().")
      .def_property_readonly("row", column_of(&H::row), "uint32 [n]: or NO_ROW.");
  module.def("hta_critical_path", hta_critical_path, py::arg("table"), py::kw_only(),
             py::arg("annotation"), py::arg("instances") = std::pair(0U, 0U),
             py::arg("launch_edges") = true, py::arg("keep_last_step") = false,
             py::arg("release_0_5_0") = false, py::call_guard<py::gil_scoped_release>(),
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
             py::arg("collectives") = std::vector<MemberArgument>(),
             "The chain of events that decided when the range (start_ns, end_ns) ended. `ranks`: "
             "(table, tree, offset_ns) of each; `collectives`: (rank index, GPU row) of the "
             "members of each matched collective.");
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
