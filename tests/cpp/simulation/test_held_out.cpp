#include <algorithm>
#include <array>

#include "analysis/analysed.hpp"
#include "catch.hpp"
#include "traceap/base/error.hpp"
#include "traceap/simulation/held_out.hpp"

using namespace traceap;

namespace {

constexpr int kStepUs = 1000;

struct Stepped {
  Analysed trace;
  ExecutionGraph graph;
  std::vector<std::uint32_t> step_of;
  std::uint32_t steps;

  Stepped(const TraceText& text, std::uint32_t count)
      : trace(text.table()),
        graph(build_execution_graph(std::array{GraphRank{&trace.table, &trace.tree}})),
        step_of(graph.size(), kNoStep),
        steps(count) {
    for (Point p = 0; p < graph.size(); ++p) {
      const auto step = static_cast<std::uint32_t>(graph.points.time_ns[p] / (1000 * kStepUs));
      if (step < steps) step_of[p] = step;
    }
  }
  EdgeId execution(Row row) const {
    const Point end = graph.end_of[0][row];
    return graph.points.in_offsets[end];
  }
  std::vector<std::int64_t> executions(const std::vector<std::int64_t>& lags) const {
    std::vector<std::int64_t> found;
    for (const Row row : trace.tree.gpu_rows) found.push_back(lags[execution(row)]);
    return found;
  }
};

}  // namespace

TEST_CASE("An edge costs the mean of the same edge in the other steps") {
  TraceText text;
  const std::array<double, 4> durations{100, 130, 160, 400};
  for (int k = 0; k < 4; ++k) {
    text.launch("a", kStepUs * k + 10, 4, kStepUs * k + 20, durations[static_cast<std::size_t>(k)],
                7, 2 * k + 1);
    text.launch("a", kStepUs * k + 500, 4, kStepUs * k + 510, 10 + k, 7, 2 * k + 2);
  }
  const Stepped s(text, 3);  // the last of them lies outside of all steps
  CHECK(s.executions(held_out_lags(s.graph, s.step_of, 3)) ==
        std::vector<std::int64_t>{145'000, 11'500, 130'000, 11'000, 115'000, 10'500, 400'000,
                                  13'000});
}

TEST_CASE("An edge that no other step has never keeps its own cost") {
  TraceText text;
  for (int k = 0; k < 3; ++k) {
    text.launch("a", kStepUs * k + 10, 4, kStepUs * k + 20, 100, 7, 3 * k + 1);
    text.launch(k == 1 ? "odd" : "b", kStepUs * k + 200, 4, kStepUs * k + 210, k == 1 ? 500 : 60, 7,
                3 * k + 2);
    if (k == 2) text.launch("a", kStepUs * k + 400, 4, kStepUs * k + 410, 300, 8, 3 * k + 3);
  }
  const Stepped s(text, 3);
  // "odd": what kernels cost in the other steps; the "a" on another stream: what an "a" does.
  CHECK(s.executions(held_out_lags(s.graph, s.step_of, 3)) ==
        std::vector<std::int64_t>{100'000, 60'000, 100'000, 124'000, 100'000, 60'000, 100'000});
}

TEST_CASE("Costs beyond all times are those that an edit can set") {
  const std::vector<std::int64_t> durations(6, kMaxTimeNs);
  const ExecutionGraph graph = build_plain_graph(durations, {});
  std::vector<std::uint32_t> step_of(graph.size());
  for (Point p = 0; p < graph.size(); ++p) step_of[p] = p / 4;
  for (const std::int64_t lag : held_out_lags(graph, step_of, 3)) {
    CHECK(lag > 0);
    CHECK(lag <= kMaxTimeNs);
  }
}

TEST_CASE("Steps that are not there are refused") {
  const ExecutionGraph graph = build_plain_graph(std::vector<std::int64_t>{1, 2}, {});
  CHECK_THROWS_AS(held_out_lags(graph, std::vector<std::uint32_t>{0, 1, 0, 2}, 2), SchemaError);
  CHECK_THROWS_AS(held_out_lags(graph, std::vector<std::uint32_t>{0, 1}, 2), SchemaError);
}
