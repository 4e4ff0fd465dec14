#include "catch.hpp"
#include "trace_interrupts.hpp"
#include "traceap/analysis/costs/gpu_costs.hpp"
#include "traceap/analysis/idle/idle.hpp"
#include "traceap/detect/rules.hpp"
#include "traceap/tree/excerpt.hpp"

using namespace traceap;

namespace {

struct Stage {
  const char* name;
  std::function<void(const EventTable&, const EventTree&)> run;
};

const std::vector<Stage>& stages() {
  static const std::vector<Stage> all{
      {"tree", [](const EventTable& table, const EventTree&) { build_tree(table); }},
      {"excerpt", [](const EventTable& table,
                     const EventTree& tree) { take_excerpt(table, tree, {tree.profiled}); }},
      {"costs",
       [](const EventTable& table, const EventTree& tree) { build_gpu_costs(table, tree); }},
      {"idle",
       [](const EventTable& table, const EventTree& tree) {
         explain_idle(table, tree, build_gpu_intervals(table, tree), tree.profiled);
       }},
      {"signals",
       [](const EventTable& table, const EventTree& tree) { build_signals(table, tree); }},
      {"rules", [](const EventTable& table,
                   const EventTree& tree) { detect_all(build_signals(table, tree)); }},
  };
  return all;
}

}  // namespace

TEST_CASE("every stage looks more often the more events there are", "[detect]") {
  const EventTable few = many_steps(100).table(), many = many_steps(400).table();
  const EventTree of_few = build_tree(few), of_many = build_tree(many);
  for (const Stage& stage : stages()) {
    INFO(stage.name);
    const std::size_t less = looks_of([&] { stage.run(few, of_few); });
    const std::size_t more = looks_of([&] { stage.run(many, of_many); });
    CHECK(less > 0);
    CHECK(more >= less + many.size() / 512);
  }
}

TEST_CASE("reading looks more often the more events there are", "[detect]") {
  const TraceText few = many_steps(100), many = many_steps(400);
  const std::size_t less = looks_of([&] { static_cast<void>(few.table()); });
  const std::size_t more = looks_of([&] { static_cast<void>(many.table()); });
  CHECK(more > 2 * less);
}

TEST_CASE("a stage that was stopped anywhere can be run again", "[detect]") {
  const EventTable table = many_steps(60).table();
  const EventTree tree = build_tree(table);
  const Signals signals = build_signals(table, tree);
  const std::vector<Finding> whole = detect_all(signals);
  std::size_t stops = 0;
  while (stops_at(stops, [&] { detect_all(signals); })) ++stops;
  CHECK(stops >= all_rules().size());
  const std::vector<Finding> again = detect_all(signals);
  REQUIRE(again.size() == whole.size());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    CHECK(again[i].verdict == whole[i].verdict);
    CHECK(again[i].cost_ns == whole[i].cost_ns);
  }
}
