#include <pybind11/stl.h>

#include "traceap/bindings/columns.hpp"
#include "traceap/bindings/handles.hpp"
#include "traceap/bindings/interrupt.hpp"
#include "traceap/simulation/graph_parts.hpp"
#include "traceap/simulation/row_times.hpp"
#include "traceap/tree/flows.hpp"

namespace traceap::bindings {
namespace {

using Numbers = AnyArray<std::uint32_t>;
using AnyTimes = AnyArray<std::int64_t>;
using SmallCodes = AnyArray<std::uint8_t>;

std::shared_ptr<ExecutionGraph> graph_of_parts(
    const Numbers& lane_rank, const SmallCodes& lane_kind, const Numbers& lane_index,
    const AnyTimes& time_ns, const Numbers& lane, const Numbers& row, const SmallCodes& is_end,
    const SmallCodes& held, const Numbers& name, const Numbers& source, const Numbers& destination,
    const SmallCodes& kind, const SmallCodes& evidence, const Numbers& owner,
    const AnyTimes& lag_ns, const AnyTimes& residual_ns, const Numbers& rows) {
  GraphParts parts;
  parts.lane_rank = items(lane_rank);
  parts.lane_kind = items(lane_kind);
  parts.lane_index = items(lane_index);
  parts.time_ns = items(time_ns);
  parts.lane = items(lane);
  parts.row = items(row);
  parts.is_end = items(is_end);
  parts.held = items(held);
  parts.name = items(name);
  parts.source = items(source);
  parts.destination = items(destination);
  parts.kind = items(kind);
  parts.evidence = items(evidence);
  parts.owner = items(owner);
  parts.lag_ns = items(lag_ns);
  parts.residual_ns = items(residual_ns);
  parts.rows = items(rows);
  const Unlocked unlocked;
  return std::make_shared<ExecutionGraph>(build_graph(parts));
}

using TimesOut = py::typing::Tuple<Int64Array, Int64Array>;
TimesOut times_of_rows(const ExecutionGraph& graph, std::uint32_t rank, const EventTable& table,
                       const AnyTimes& replayed_ns, std::int64_t gpu_shift_ns) {
  RowTimes times;
  {
    const Unlocked unlocked;
    times = row_times(graph, rank, table, items(replayed_ns), gpu_shift_ns);
  }
  return py::make_tuple(adopt(std::move(times.ts_ns)), adopt(std::move(times.dur_ns)));
}

py::array_t<bool> without_loose_flows(const EventTable& table, const SmallCodes& kept) {
  if (static_cast<std::size_t>(kept.size()) != table.size()) {
    throw SchemaError("kept: one for each row was expected");
  }
  std::vector<std::uint8_t> rows(kept.data(), kept.data() + kept.size());
  {
    const Unlocked unlocked;
    drop_loose_flows(table, rows);
  }
  return adopt(std::move(rows)).attr("view")("bool");
}

}  // namespace

void bind_built(py::module_& module) {
  module.def("build_graph", graph_of_parts, py::kw_only(), py::arg("lane_rank"),
             py::arg("lane_kind"), py::arg("lane_index"), py::arg("time_ns"), py::arg("lane"),
             py::arg("row"), py::arg("is_end"), py::arg("held"), py::arg("name"), py::arg("source"),
             py::arg("destination"), py::arg("kind"), py::arg("evidence"), py::arg("owner"),
             py::arg("lag_ns"), py::arg("residual_ns"), py::arg("rows"),
             "A graph of lanes [lanes], points [points] and edges [edges], named as the columns of "
             "ExecutionGraph; `rows` [ranks]: of each rank's table. Points of a lane stand "
             "together, edges in any order; points happen when a replay says.");
  module.def(
      "row_times", times_of_rows, py::arg("graph"), py::arg("rank"), py::arg("table"),
      py::arg("replayed_ns"), py::kw_only(), py::arg("gpu_shift_ns") = 0,
      "When the events of a rank happen in a replay, int64 [points], on its own clock: ts_ns "
      "and dur_ns, int64 [rows].");
  module.def("without_loose_flows", without_loose_flows, py::arg("table"), py::arg("kept"),
             "bool [rows]: `kept` without flows that start or end with an event that is not kept.");
}

}  // namespace traceap::bindings
