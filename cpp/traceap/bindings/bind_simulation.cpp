#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "traceap/bindings/columns.hpp"
#include "traceap/bindings/graph_arguments.hpp"
#include "traceap/bindings/handles.hpp"
#include "traceap/bindings/interrupt.hpp"
#include "traceap/simulation/edge_lists.hpp"
#include "traceap/simulation/execution_graph.hpp"
#include "traceap/simulation/held_out.hpp"
#include "traceap/simulation/replay.hpp"

namespace traceap::bindings {
namespace {

using DependencyArgument = std::tuple<std::uint32_t, Row, Row>;
using TimeVector = std::vector<std::int64_t>;
using GraphClass = py::class_<ExecutionGraph, std::shared_ptr<ExecutionGraph>>;

std::shared_ptr<ExecutionGraph> execution_graph(const std::vector<RankArgument>& ranks,
                                                const Meetings* meetings,
                                                const std::vector<DependencyArgument>& dependencies,
                                                bool explicit_only, std::uint32_t queue_depth) {
  const std::vector<GraphRank> parts = graph_ranks(ranks);
  std::vector<GpuDependency> known;
  for (const auto& [rank, producer, consumer] : dependencies) {
    known.push_back({rank, producer, consumer});
  }
  const Unlocked unlocked;
  ExecutionOptions options;
  options.explicit_only = explicit_only;
  options.queue_depth = queue_depth;
  options.dependencies = known;
  return std::make_shared<ExecutionGraph>(
      build_execution_graph(parts, meetings ? *meetings : Meetings(), options));
}

using Int64Pair = py::typing::Tuple<Int64Array, Int64Array>;

using IndexArray = AnyArray<Point>;
using TimeArray = AnyArray<std::int64_t>;

std::shared_ptr<ExecutionGraph> plain_graph(const TimeArray& duration_ns, const IndexArray& source,
                                            const IndexArray& destination, const TimeArray& lag_ns,
                                            const TimeArray& start_ns) {
  if (source.size() != destination.size() || source.size() != lag_ns.size()) {
    throw SchemaError("a source, a destination and a lag for each edge");
  }
  std::vector<PlainEdge> edges;
  for (py::ssize_t i = 0; i < source.size(); ++i) {
    edges.push_back({source.data()[i], destination.data()[i], lag_ns.data()[i]});
  }
  const Unlocked unlocked;
  return std::make_shared<ExecutionGraph>(
      build_plain_graph(items(duration_ns), edges, items(start_ns)));
}

template <typename T>
auto points_column(std::vector<T> DependencyGraph::*member) {
  return [member](py::object self) {
    return view(self.cast<const ExecutionGraph&>().points.*member, self);
  };
}

template <typename Member>
auto lane_column(Member member) {
  return [member](py::object self) {
    return member_view(self.cast<const ExecutionGraph&>().points.lanes, self, member);
  };
}

void bind_graph(py::module_& module) {
  GraphClass graph(module, "ExecutionGraph", "A run that can be replayed and edited.");
  graph.def("__len__", [](const ExecutionGraph& self) { return self.size(); })
      .def_readonly("dropped_edges", &ExecutionGraph::dropped_edges, "They closed a cycle.")
      .def_readonly("contradicted", &ExecutionGraph::contradicted,
                    "Given dependencies whose consumer began before its producer ended.")
      .def(
          "begin_of",
          [](py::object self, std::size_t rank) {
            return view(self.cast<const ExecutionGraph&>().begin_of.at(rank), self);
          },
          py::arg("rank"), "uint32 [rows]: the point where a row begins, or NO_ROW.")
      .def(
          "end_of",
          [](py::object self, std::size_t rank) {
            return view(self.cast<const ExecutionGraph&>().end_of.at(rank), self);
          },
          py::arg("rank"), "uint32 [rows]: the point where a row ends, or NO_ROW.")
      .def(
          "edges_into",
          [](const ExecutionGraph& self, const TimeArray& points, std::uint32_t kinds) {
            return adopt(edges_into(self.points, items(points), kinds));
          },
          py::arg("points"), py::arg("kinds"),
          "int64: edges that lead to points, of each point once, in order; bit k of `kinds` stands "
          "for the DependencyKind k.")
      .def(
          "destinations",
          [](const ExecutionGraph& self) { return adopt(destinations(self.points)); },
          "uint32 [edges]: the point that each edge leads to.")
      .def(
          "edges_by_source",
          [](const ExecutionGraph& self) -> Int64Pair {
            EdgesBySource found = edges_by_source(self.points);
            return py::make_tuple(adopt(std::move(found.offsets)), adopt(std::move(found.edges)));
          },
          "int64 [points + 1] and int64 [edges]: edges grouped by the point at which they start, "
          "and where those of each begin.");
  const auto lane = [&](const char* name, auto member, const char* doc) {
    graph.def_property_readonly(name, lane_column(member), doc);
  };
  lane("lane_rank", &Lane::rank, "uint32 [lanes]: index of the rank.");
  lane("lane_kind", &Lane::kind, "uint8 [lanes]: 0 thread, 1 stream, 2 meeting points.");
  lane("lane_index", &Lane::index, "uint32 [lanes]: in the table's tracks or the tree's streams.");
  lane("lane_begin", &Lane::begin, "uint32 [lanes]: its first point.");
  lane("lane_end", &Lane::end, "uint32 [lanes]: behind its last point.");
  const auto column = [&](const char* name, auto member, const char* doc) {
    graph.def_property_readonly(name, points_column(member), doc);
  };
  column("time_ns", &DependencyGraph::time_ns, "int64 [points]: measured.");
  column("row", &DependencyGraph::row, "uint32 [points]: row of its rank, or NO_ROW.");
  column("lane", &DependencyGraph::lane, "uint32 [points]: index in lanes.");
  column("is_end", &DependencyGraph::is_end, "uint8 [points].");
  column("in_offsets", &DependencyGraph::in_offsets, "uint32 [points + 1]: edges by destination.");
  column("source", &DependencyGraph::source, "uint32 [edges]: point.");
  column("owner", &DependencyGraph::owner, "uint32 [edges]: row whose time it is, or NO_ROW.");
  column("kind", &DependencyGraph::kind, "uint8 [edges]: DependencyKind.");
  column("evidence", &DependencyGraph::evidence, "uint8 [edges]: Evidence.");
  graph
      .def_property_readonly("lag_ns", column_of(&ExecutionGraph::lag_ns),
                             "int64 [edges]: work, or the typical latency of its kind.")
      .def_property_readonly("residual_ns", column_of(&ExecutionGraph::residual_ns),
                             "int64 [edges]: what the measured run took beyond that.")
      .def_property_readonly("name", column_of(&ExecutionGraph::name),
                             "uint32 [points]: code of the row's name, the same for the marks of "
                             "all steps; NO_STRING: none.")
      .def_property_readonly("held", column_of(&ExecutionGraph::held),
                             "uint8 [points]: happens no earlier than measured, since what it "
                             "waited for was not recorded.")
      .def_property_readonly("order", column_of(&ExecutionGraph::order),
                             "uint32 [points]: sources before destinations.");
}

// ---- numbers from Python

/// Throws SchemaError for what is no number of a point or an edge.
std::uint32_t number(std::int64_t value, const char* what) {
  if (value >= 0 && value < std::int64_t{kNoPoint}) return static_cast<std::uint32_t>(value);
  throw SchemaError(std::string(what) + ": there is none with the number " + std::to_string(value));
}
std::vector<std::uint32_t> numbers(const TimeArray& values, const char* what) {
  std::vector<std::uint32_t> found(static_cast<std::size_t>(values.size()));
  for (std::size_t i = 0; i < found.size(); ++i) found[i] = number(values.data()[i], what);
  return found;
}

/// Edges from one copy of a chain to the next: int64 [carries, 3].
std::vector<PlainEdge> carried_edges(const TimeArray& carries) {
  std::vector<PlainEdge> edges;
  if (carries.size() == 0) return edges;
  if (carries.ndim() != 2 || carries.shape(1) != 3) {
    throw SchemaError("carries: rows of source, destination and lag in ns");
  }
  for (py::ssize_t i = 0; i < carries.shape(0); ++i) {
    edges.push_back({number(carries.at(i, 0), "carries"), number(carries.at(i, 1), "carries"),
                     carries.at(i, 2)});
  }
  return edges;
}

// ---- edits

LagView lag_view(const TimeArray& edges, const TimeArray& lags_ns) {
  if (edges.size() != lags_ns.size()) throw SchemaError("one lag for each edge");
  return {items(edges), items(lags_ns)};
}

void set_lags(GraphDelta& delta, const TimeArray& edges, const TimeArray& lags_ns) {
  delta.set_lags(lag_view(edges, lags_ns));
}

Int64Pair columns_of(EdgeLags&& lags) {
  return py::make_tuple(adopt(std::move(lags.edges)), adopt(std::move(lags.lags_ns)));
}

Int64Pair later_columns(const std::vector<std::pair<TimeArray, TimeArray>>& changes) {
  std::vector<LagView> views;
  for (const auto& [edges, lags_ns] : changes) views.push_back(lag_view(edges, lags_ns));
  return columns_of(later_lags(views));
}

Int64Pair both_columns(const TimeArray& cost_ns, const std::pair<TimeArray, TimeArray>& one,
                       const std::pair<TimeArray, TimeArray>& other) {
  return columns_of(both_lags(items(cost_ns), lag_view(one.first, one.second),
                              lag_view(other.first, other.second)));
}

void drop_all(GraphDelta& delta, const TimeArray& edges) {
  const std::vector<std::uint32_t> known = numbers(edges, "edges");
  delta.dropped.insert(delta.dropped.end(), known.begin(), known.end());
}

void add_each(GraphDelta& delta, void (GraphDelta::*add)(Point, Point, std::int64_t),
              const TimeArray& sources, const TimeArray& destinations, const TimeArray& lags_ns) {
  if (sources.size() != destinations.size() || sources.size() != lags_ns.size()) {
    throw SchemaError("a source, a destination and a lag for each edge");
  }
  const auto from = numbers(sources, "sources"), to = numbers(destinations, "destinations");
  for (std::size_t i = 0; i < from.size(); ++i) (delta.*add)(from[i], to[i], lags_ns.data()[i]);
}

void add_all(GraphDelta& delta, const TimeArray& sources, const TimeArray& destinations,
             const TimeArray& lags_ns) {
  add_each(delta, &GraphDelta::add, sources, destinations, lags_ns);
}

void carry_all(GraphDelta& delta, const TimeArray& sources, const TimeArray& destinations,
               const TimeArray& lags_ns) {
  add_each(delta, &GraphDelta::carry, sources, destinations, lags_ns);
}

void bind_delta(py::module_& module) {
  py::class_<GraphDelta>(module, "GraphDelta",
                         "What an edit changes in a graph: edges and points as numbers, int64 or "
                         "uint32 arrays, lags in ns as int64 arrays. Raises SchemaError for lags "
                         "beyond all times; a replay does for edges and points that are not there.")
      .def(py::init<>(), "No change yet.")
      .def("set_lags", set_lags, py::arg("edges"), py::arg("lags_ns"),
           "New costs, residuals included; of two for one edge the later holds.")
      .def("drop_all", drop_all, py::arg("edges"), "These dependencies are gone.")
      .def("add_all", add_all, py::arg("sources"), py::arg("destinations"), py::arg("lags_ns"),
           "New dependencies from point to point. Those that close a cycle are left out of every "
           "replay, what contradicts the measured times most first; see `closing_edges`.")
      .def("carry_all", carry_all, py::arg("sources"), py::arg("destinations"), py::arg("lags_ns"),
           "New dependencies from a copy of the run to the next, where there are several.")
      .def_property_readonly(
          "carries", [](const GraphDelta& delta) { return !delta.carried.empty(); },
          "Has it dependencies from a copy of the run to the next?")
      .def("join", &GraphDelta::join, py::arg("other"), "Both; the other's lags win.")
      .def("__len__", &GraphDelta::size);
  module.def("later_lags", later_columns, py::arg("changes"),
             "(edges, lags in ns) of several changes, each int64 [n], one behind the other: edges "
             "each once and in order; of two lags for one edge the later holds.");
  module.def("both_lags", both_columns, py::arg("cost_ns"), py::arg("one"), py::arg("other"),
             "Two changes at once, each as later_lags gives it, of edges that cost cost_ns, int64 "
             "[edges]: where both change an edge their ratios are multiplied; an edge that costs "
             "nothing has no ratio, there what costs more holds.");
}

// ---- replays

Int64Array replay_once(const ExecutionGraph& graph, const GraphDelta* delta, bool with_residuals) {
  TimeVector time_ns;
  {
    const Unlocked unlocked;
    time_ns = replay(graph, delta ? *delta : GraphDelta(), {.with_residuals = with_residuals});
  }
  return adopt(std::move(time_ns));
}

Int64Array replay_copies(const ExecutionGraph& graph, const TimeArray& carries,
                         std::uint32_t copies, const GraphDelta* delta, bool with_residuals) {
  const std::vector<PlainEdge> carried = carried_edges(carries);
  TimeVector time_ns;
  {
    const Unlocked unlocked;
    time_ns = replay_chain(graph, carried, copies, delta ? *delta : GraphDelta(),
                           {.with_residuals = with_residuals});
  }
  const auto points = static_cast<py::ssize_t>(graph.size());
  return adopt(std::move(time_ns)).reshape({static_cast<py::ssize_t>(copies), points});
}

std::unique_ptr<BatchReplayer> batch_replayer(const ExecutionGraph& graph,
                                              const TimeArray& work_points,
                                              const TimeArray& work_offsets,
                                              const TimeArray& carries) {
  const auto points = numbers(work_points, "work_points");
  const auto offsets = numbers(work_offsets, "work_offsets");
  return std::make_unique<BatchReplayer>(graph, StepWork{points, offsets}, carried_edges(carries));
}

using BatchResult = py::typing::Tuple<Int64Array, py::array_t<std::uint32_t>>;

BatchResult replay_batch(BatchReplayer& replayer, const std::vector<const GraphDelta*>& deltas,
                         std::uint32_t copies, bool with_residuals) {
  BatchEnds batch;
  {
    const Unlocked unlocked;
    batch = replayer.run(deltas, copies, {.with_residuals = with_residuals});
  }
  const std::vector<std::size_t> shape{deltas.size(), copies, replayer.steps()};
  return py::make_tuple(adopt(std::move(batch.end_ns)).reshape(shape),
                        adopt(std::move(batch.left_out)));
}

void bind_batches(py::module_& module) {
  py::class_<BatchReplayer>(
      module, "BatchReplayer",
      "Replays many edits of one graph, without Python's lock, and keeps its memory for the next "
      "batch. The points of step i are work_points[work_offsets[i]:work_offsets[i + 1]]; carries "
      "are as replay_chain takes them.")
      .def(py::init(&batch_replayer), py::arg("graph"), py::arg("work_points"),
           py::arg("work_offsets"), py::arg("carries") = TimeArray(0), py::keep_alive<1, 2>())
      .def("run", replay_batch, py::arg("deltas"), py::kw_only(), py::arg("copies") = 1,
           py::arg("with_residuals") = true,
           "When all work of each step has ended, with each edit (None: none): int64 [deltas, "
           "copies, steps]; and uint32 [deltas]: added edges that were left out because they close "
           "a cycle. NEVER for a step without points. On several threads where there is much to "
           "do.");
}

void bind_replays(py::module_& module) {
  module.def("replay", replay_once, py::arg("graph"), py::arg("delta") = py::none(), py::kw_only(),
             py::arg("with_residuals") = true, "int64 [points]: when each point happens.");
  module.def("replay_chain", replay_copies, py::arg("graph"), py::arg("carries"), py::arg("copies"),
             py::arg("delta") = py::none(), py::kw_only(), py::arg("with_residuals") = true,
             "int64 [copies, points]: copies of the run one behind the other; carries are (source, "
             "destination, lag_ns) from a copy to the next, int64 [carries, 3]. NEVER where a "
             "point does not happen.");
  module.def(
      "closing_edges",
      [](const ExecutionGraph& graph, const GraphDelta& delta) {
        std::vector<std::uint32_t> closing;
        {
          const Unlocked unlocked;
          closing = closing_edges(graph, delta);
        }
        return adopt(std::move(closing));
      },
      py::arg("graph"), py::arg("delta"),
      "uint32: which added edges of an edit, in the order in which they were added, replays leave "
      "out because they close a cycle.");
  module.def(
      "held_out_lags",
      [](const ExecutionGraph& graph, const IndexArray& step_of_point, std::uint32_t steps) {
        TimeVector lag_ns;
        {
          const Unlocked unlocked;
          lag_ns = held_out_lags(
              graph, {step_of_point.data(), static_cast<std::size_t>(step_of_point.size())}, steps);
        }
        return adopt(std::move(lag_ns));
      },
      py::arg("graph"), py::arg("step_of_point"), py::arg("steps"),
      "int64 [edges]: what each edge costs (lag and residual); of edges that lead into a step the "
      "mean of the same edge in the other steps, never its own. step_of_point is uint32 [points]: "
      "below `steps`, or NO_ROW.");
  module.attr("NEVER") = kNever;
  module.def(
      "binding_edges",
      [](const ExecutionGraph& graph, const Int64Array& time_ns, bool with_residuals) {
        return adopt(binding_edges(graph,
                                   {time_ns.data(), static_cast<std::size_t>(time_ns.size())},
                                   {.with_residuals = with_residuals}));
      },
      py::arg("graph"), py::arg("time_ns"), py::kw_only(), py::arg("with_residuals") = true,
      "uint32 [points]: the edge that each point waited for, or NO_ROW.");
}

}  // namespace

void bind_simulation(py::module_& module) {
  bind_graph(module);
  bind_delta(module);
  bind_replays(module);
  bind_batches(module);
  module.def("execution_graph", execution_graph, py::arg("ranks"), py::kw_only(),
             py::arg("meetings") = py::none(),
             py::arg("dependencies") = std::vector<DependencyArgument>(),
             py::arg("explicit_only") = false, py::arg("queue_depth") = kQueueDepth,
             "Ranks as (table, tree, offset_ns), where they meet, and (rank index, producer, "
             "consumer) GPU rows of dependencies that are known otherwise, as a graph. "
             "`queue_depth`: launches that a CUDA stream "
             "takes; 0: any number.");
  module.def("plain_graph", plain_graph, py::arg("duration_ns"), py::arg("source"),
             py::arg("destination"), py::arg("lag_ns"), py::kw_only(),
             py::arg("start_ns") = TimeArray(),
             "Nodes with durations, int64 [nodes], and edges, uint32 [edges] twice and int64 "
             "[edges]; node i is the points 2 i (begin) and 2 i + 1 (end). Of edges to one point "
             "that of the node's duration is the first.");
  module.attr("QUEUE_DEPTH") = kQueueDepth;
}

}  // namespace traceap::bindings
