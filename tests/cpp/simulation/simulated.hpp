#pragma once
// A trace of one rank as a graph that can be replayed, for tests.

#include <string>
#include <vector>

#include "analysis/analysed.hpp"
#include "traceap/simulation/replay.hpp"

namespace traceap {

struct Simulated {
  Analysed trace;
  std::vector<GraphRank> ranks;
  ExecutionGraph graph;

  explicit Simulated(const TraceText& text, const ExecutionOptions& options = {})
      : trace(text.table()),
        ranks{{&trace.table, &trace.tree}},
        graph(build_execution_graph(ranks, {}, options)) {}

  Row row(const std::string& name) const {
    for (Row r = 0; r < trace.table.size(); ++r) {
      if (trace.table.name_of(r) == name) return r;
    }
    return kNoRow;
  }
  Point begin(const std::string& name) const { return graph.begin_of[0][row(name)]; }
  Point end(const std::string& name) const { return graph.end_of[0][row(name)]; }
  EdgeId edge_into(Point point, DependencyKind kind) const {
    for (EdgeId e = graph.points.in_offsets[point]; e < graph.points.in_offsets[point + 1]; ++e) {
      if (graph.points.kind[e] == kind) return e;
    }
    return kNoEdge;
  }
};

}  // namespace traceap
