#include <set>

#include "catch.hpp"
#include "traceap/tree/excerpt.hpp"
#include "tree_helpers.hpp"

using namespace traceap;

namespace {

/// Four steps of 100 us on two threads; the kernel of each runs into the next step.
Built four_steps() {
  TraceText text;
  text.host("user_annotation", "whole loop", 0, 450);
  for (int i = 0; i < 4; ++i) {
    const double at = 10 + 100 * i;
    const std::string number = std::to_string(i);
    text.host("user_annotation", "ProfilerStep#" + number, at, 100)
        .host("cpu_op", "aten::linear", at + 10, 40, R"("Sequence number":)" + number)
        .host("cpu_op", "aten::addmm", at + 15, 30, R"("Input Dims":[[3,)" + number + "]]")
        .launch("gemm_" + number, at + 20, 5, at + 60, 90, 7, 100 + i)
        .complete("cpu_op", "worker", at + 30, 10, 1, "2")
        .complete("cuda_runtime", "cudaLaunchKernel", at + 31, 4, 1, "2",
                  R"("correlation":)" + std::to_string(200 + i))
        .gpu("kernel", "copy_" + number, at + 50, 5, 20, 200 + i);
  }
  return build(text);
}

Excerpt steps_of(const Built& whole, std::size_t first, std::size_t last) {
  const auto& steps = whole.tree.steps;
  return take_excerpt(whole.table, whole.tree, {{steps[first].start_ns, steps[last].end_ns}});
}

std::vector<std::string> step_names(const EventTree& tree) {
  std::vector<std::string> names;
  for (const Step& step : tree.steps) names.push_back(step.name);
  return names;
}

}  // namespace

TEST_CASE("an excerpt holds what lies in the stretch, and the work launched there", "[tree]") {
  const Built whole = four_steps();
  const Excerpt part = steps_of(whole, 1, 2);
  std::set<std::string> names;
  for (Row row = 0; row < part.table.size(); ++row) {
    names.insert(std::string(part.table.name_of(row)));
  }
  CHECK(names == std::set<std::string>{"ProfilerStep#1", "ProfilerStep#2", "aten::linear",
                                       "aten::addmm", "cudaLaunchKernel", "worker", "gemm_1",
                                       "gemm_2", "copy_1", "copy_2"});
  CHECK(step_names(part.tree) == std::vector<std::string>{"ProfilerStep#1", "ProfilerStep#2"});
  CHECK(part.tree.profiled == Interval{whole.tree.steps[1].start_ns, whole.tree.steps[2].end_ns});
}

TEST_CASE("an excerpt of several stretches leaves out what lies between", "[tree]") {
  const Built whole = four_steps();
  const auto& steps = whole.tree.steps;
  const IntervalSet windows{{steps[0].start_ns, steps[0].end_ns},
                            {steps[3].start_ns, steps[3].end_ns}};
  const IntervalSet between{{steps[0].end_ns, steps[3].start_ns}};
  const Excerpt part = take_excerpt(whole.table, whole.tree, windows, between);
  CHECK(step_names(part.tree) == std::vector<std::string>{"ProfilerStep#0", "ProfilerStep#3"});
  CHECK(part.tree.recording.not_judged == between);
  std::set<std::string> kernels;
  for (const Row row : part.tree.gpu_rows) {
    kernels.insert(std::string(part.table.name_of(row)));
    CHECK(part.tree.launch[row] != kNoRow);
  }
  CHECK(kernels == std::set<std::string>{"gemm_0", "copy_0", "gemm_3", "copy_3"});
}

TEST_CASE("the texts of events are those of the whole trace", "[tree]") {
  const Built whole = four_steps();
  const Excerpt part = steps_of(whole, 1, 2);
  std::set<std::string> all;
  for (Row row = 0; row < whole.table.size(); ++row) all.insert(event_json(whole.table, row));
  for (Row row = 0; row < part.table.size(); ++row) {
    CHECK(all.contains(event_json(part.table, row)));
  }
}

TEST_CASE("links of an excerpt are what its own events say", "[tree]") {
  const Built whole = four_steps();
  const Excerpt part = steps_of(whole, 1, 2);
  const EventTree fresh = build_tree(part.table);
  CHECK(part.tree.parent == fresh.parent);
  CHECK(part.tree.depth == fresh.depth);
  CHECK(part.tree.host_rows == fresh.host_rows);
  CHECK(part.tree.host_offsets == fresh.host_offsets);
  CHECK(part.tree.host_position == fresh.host_position);
  CHECK(part.tree.subtree_end == fresh.subtree_end);
  CHECK(part.tree.host_tracks == fresh.host_tracks);
  CHECK(part.tree.api == fresh.api);
  CHECK(part.tree.launch == fresh.launch);
  CHECK(part.tree.launched_offsets == fresh.launched_offsets);
  CHECK(part.tree.launched_rows == fresh.launched_rows);
  CHECK(part.tree.op == fresh.op);
  CHECK(part.tree.gpu_class == fresh.gpu_class);
  CHECK(part.tree.gpu_rows == fresh.gpu_rows);
  CHECK(part.tree.linked_gpu_rows == fresh.linked_gpu_rows);
  CHECK(part.tree.stream_of == fresh.stream_of);
  CHECK(part.tree.step == fresh.step);
  CHECK(part.tree.main_track == fresh.main_track);
}

TEST_CASE("warm-up and phases stay those of the whole trace", "[tree]") {
  const Built whole = four_steps();
  const Excerpt part = steps_of(whole, 2, 3);
  CHECK(part.tree.warm_up.known == whole.tree.warm_up.known);
  CHECK(part.tree.warm_up.end_ns == whole.tree.warm_up.end_ns);
  for (Row row = 0; row < part.table.size(); ++row) {
    const Row there = whole.row(part.table.name_of(row));
    if (part.table.name_of(row).starts_with("gemm")) {
      CHECK(part.tree.phase[row] == whole.tree.phase[there]);
    }
  }
}

TEST_CASE("an empty stretch is an empty trace", "[tree]") {
  const Built whole = four_steps();
  const Excerpt part = take_excerpt(whole.table, whole.tree, {{-10, -5}});
  CHECK(part.table.size() == 0);
  CHECK(part.tree.gpu_rows.empty());
  CHECK(part.tree.host_offsets.back() == 0);
}

TEST_CASE("an excerpt may be profiled until its work has ended", "[tree]") {
  const Built whole = four_steps();
  const Step& step = whole.tree.steps[1];
  const Interval profiled{step.start_ns, step.end_ns + 50'000};
  const Excerpt part =
      take_excerpt(whole.table, whole.tree, {{step.start_ns, step.end_ns}}, {}, profiled);
  CHECK(part.tree.profiled == profiled);
  CHECK(step_names(part.tree) == std::vector<std::string>{"ProfilerStep#1"});
}

TEST_CASE("an excerpt has the notes on its time and on no time", "[tree]") {
  Built whole = four_steps();
  const auto& steps = whole.tree.steps;
  const Interval second{steps[1].start_ns, steps[1].end_ns};
  whole.tree.recording.notes = {
      {RecordingFault::kLaunchesWithoutGpuWork, 1, second, "in the second step"},
      {RecordingFault::kImpossibleDuration, 1, std::nullopt, "at no time"},
  };
  CHECK(steps_of(whole, 1, 1).tree.recording.notes.size() == 2);
  CHECK(steps_of(whole, 2, 3).tree.recording.notes.size() == 1);
}

TEST_CASE("what shows a workload may be any event of its name", "[tree]") {
  Built whole = four_steps();
  const Row first = whole.row("aten::linear");
  whole.tree.workload.role_row = first;
  whole.tree.workload.framework_row = whole.row("gemm_0");
  const Excerpt part = steps_of(whole, 1, 1);
  REQUIRE(part.tree.workload.role_row != kNoRow);
  CHECK(part.table.name_of(part.tree.workload.role_row) == "aten::linear");
  CHECK(part.tree.workload.framework_row == kNoRow);
}
