#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "analysis/analysed.hpp"
#include "catch.hpp"
#include "traceap/base/error.hpp"
#include "traceap/features/window_features.hpp"

using namespace traceap;

namespace {

struct Features {
  Analysed a;
  WindowSet windows;
  IdleBreakdown idle;
  FeatureBlock block;

  Features(Analysed&& analysed, WindowSet&& set)
      : a(std::move(analysed)),
        windows(std::move(set)),
        idle(a.idle({windows.bounds_ns.front(), windows.bounds_ns.back()})),
        block(build_features(a.table, a.tree, a.gpu, idle, windows)) {}

  double at(std::uint32_t window, std::string_view name) const {
    const auto it = std::find(block.names.begin(), block.names.end(), name);
    if (it == block.names.end()) throw std::out_of_range(std::string(name));
    return block
        .values[window * block.names.size() + static_cast<std::size_t>(it - block.names.begin())];
  }
};

Features features_of(const TraceText& text, Interval bounds, std::uint32_t count) {
  Analysed a(text);
  WindowSet windows = build_windows(a.table, a.tree, bounds, {.count = count});
  return Features(std::move(a), std::move(windows));
}

/// Names in the table of docs/scorers.md: the code word that begins each row.
std::vector<std::string> documented_names() {
  const auto root = std::filesystem::path(TRACEAP_SOURCE_DIR);
  std::ifstream file(root / "docs/scorers.md");
  std::vector<std::string> names;
  std::string line;
  while (std::getline(file, line) && line != "## Window features") {
  }
  while (std::getline(file, line) && line.rfind("##", 0) != 0) {
    if (line.rfind("| `", 0) == 0) names.push_back(line.substr(3, line.find('`', 3) - 3));
  }
  return names;
}

}  // namespace

TEST_CASE("docs/scorers.md lists exactly the features, in order", "[features]") {
  const auto names = window_feature_names();
  CHECK(documented_names() == std::vector<std::string>(names.begin(), names.end()));
  CHECK(std::set<std::string_view>(names.begin(), names.end()).size() == names.size());
}

TEST_CASE("shares, counts and delays of one window", "[features]") {
  TraceText text;
  text.launch("gemm", 0, 5, 10, 20, 7, 1);
  text.launch("relu", 30, 5, 40, 4, 7, 2);
  text.host("cuda_runtime", "cudaMemcpyAsync", 50, 20, R"("correlation":3)");
  text.gpu("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 60, 10, 7, 3, R"("bytes":1023)");
  text.host("cuda_runtime", "cudaStreamSynchronize", 75, 10)
      .host("cuda_runtime", "cudaMalloc", 86, 4);
  const Features f = features_of(text, {0, 100'000}, 1);
  CHECK(f.at(0, "busy_share") == Approx(0.34));
  CHECK(f.at(0, "compute_share") == Approx(0.24));
  CHECK(f.at(0, "memcpy_share") == Approx(0.10));
  CHECK(f.at(0, "exposed_memcpy_share") == Approx(0.10));
  CHECK(f.at(0, "communication_share") == 0);
  CHECK(f.at(0, "communication_overlap_ratio") == 0);
  CHECK(f.at(0, "idle_longest_share") == Approx(0.30));  // 70 to 100
  CHECK(f.at(0, "launch_count") == 3);
  CHECK(f.at(0, "kernel_count") == 2);
  CHECK(f.at(0, "copy_count") == 1);
  CHECK(f.at(0, "small_kernel_share") == Approx(0.5));
  CHECK(f.at(0, "kernel_median_us") == Approx(12));
  CHECK(f.at(0, "launch_delay_p10_us") == Approx(10));
  CHECK(f.at(0, "launch_delay_p90_us") == Approx(10));
  CHECK(f.at(0, "host_busy_share") == Approx(0.44));
  CHECK(f.at(0, "synchronization_share") == Approx(0.10));
  CHECK(f.at(0, "blocking_copy_share") == Approx(0.20));
  CHECK(f.at(0, "allocator_share") == Approx(0.04));
  CHECK(f.at(0, "allocator_count") == 1);
  CHECK(f.at(0, "copy_bytes_htod_pageable_log2") == Approx(10));
  CHECK(f.at(0, "copy_bytes_htod_pinned_log2") == 0);
  CHECK(f.at(0, "stream_count") == 1);
  CHECK(f.at(0, "window_length_log10_us") == Approx(2));
}

TEST_CASE("collectives: exposed time, overlap, size and time", "[features]") {
  const std::string message = R"("In msg nelems":256,"Out msg nelems":256,"dtype":"Float")";
  TraceText text;
  text.launch("ncclDevKernel_AllReduce", 0, 1, 10, 40, 20, 1, message);
  text.launch("gemm", 2, 1, 30, 30, 7, 2);
  const Features f = features_of(text, {0, 100'000}, 1);
  CHECK(f.at(0, "communication_share") == Approx(0.4));
  CHECK(f.at(0, "exposed_communication_share") == Approx(0.2));
  CHECK(f.at(0, "communication_overlap_ratio") == Approx(0.5));
  CHECK(f.at(0, "collective_count") == 1);
  CHECK(f.at(0, "collective_median_us") == Approx(40));
  CHECK(f.at(0, "collective_median_bytes_log2") == Approx(std::log2(1025)));
  CHECK(f.at(0, "stream_count") == 2);
}

TEST_CASE("the queue holds launches until their first event starts", "[features]") {
  TraceText text;
  text.launch("a", 0, 1, 10, 10, 7, 1).launch("b", 2, 1, 20, 10, 7, 2);
  text.host("cuda_runtime", "cudaGraphLaunch", 4, 1, R"("correlation":3)");
  text.gpu("kernel", "node", 30, 5, 7, 3).gpu("kernel", "node", 36, 4, 7, 3);
  const Features f = features_of(text, {0, 40'000}, 2);
  // Depth 1 in [0,2), 2 in [2,4), 3 in [4,10), 2 in [10,20), 1 in [20,30), 0 afterwards.
  CHECK(f.at(0, "queue_depth_mean") == Approx((2 + 4 + 18 + 20) / 20.0));
  CHECK(f.at(0, "queue_depth_max") == 3);
  CHECK(f.at(0, "queue_depth_min") == 1);
  CHECK(f.at(1, "queue_depth_mean") == Approx(0.5));
  CHECK(f.at(1, "queue_depth_max") == 1);
  CHECK(f.at(1, "queue_depth_min") == 0);
}

TEST_CASE("an event that reaches into a window makes it busy but counts in its own", "[features]") {
  const Features f = features_of(TraceText().launch("gemm", 0, 5, 10, 60, 7, 1), {0, 100'000}, 2);
  CHECK(f.at(0, "kernel_count") == 1);
  CHECK(f.at(1, "kernel_count") == 0);
  CHECK(f.at(1, "busy_share") == Approx(0.4));
  CHECK(f.at(1, "stream_count") == 1);
}

TEST_CASE("compiled regions, loader, compilation, phases and steps", "[features]") {
  TraceText text;
  text.host("user_annotation", "ProfilerStep#1", 0, 100);
  text.host("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0,
            20);
  text.host("user_annotation", "Torch-Compiled Region: 0/0", 20, 10)
      .launch("a", 22, 2, 30, 5, 7, 1);
  text.host("cpu_op", "aten::add", 32, 8).launch("b", 34, 2, 40, 5, 7, 2);
  text.host("user_annotation", "Torch-Compiled Region: 1/0", 50, 10)
      .launch("c", 52, 2, 60, 5, 7, 3);
  text.launch("c", 56, 2, 66, 5, 7, 4);
  text.host("user_annotation", "Optimizer.step#SGD.step", 70, 20).launch("d", 72, 2, 80, 5, 7, 5);
  text.host("user_annotation", "compile_fx (dynamo_timed)", 90, 5);
  const Features f = features_of(text, {0, 100'000}, 1);
  CHECK(f.at(0, "data_loading_share") == Approx(0.2));
  CHECK(f.at(0, "compilation_share") == Approx(0.05));
  CHECK(f.at(0, "compiled_region_transitions") == 3);  // 0/0, eager, 1/0, eager
  CHECK(f.at(0, "phase_input_share") == Approx(0.2));
  CHECK(f.at(0, "phase_optimizer_share") == Approx(0.2));
  CHECK(f.at(0, "step_position") == Approx(0.5));
  const Features quarters = features_of(text, {0, 200'000}, 4);
  CHECK(quarters.at(0, "step_position") == Approx(0.25));
  CHECK(quarters.at(3, "step_position") == 0);
}

TEST_CASE("threads that feed nothing to the GPU don't count", "[features]") {
  TraceText text;
  text.launch("gemm", 0, 5, 10, 20, 7, 1);
  text.complete("cuda_runtime", "cudaEventSynchronize", 0, 100, 1, "77");
  CHECK(features_of(text, {0, 100'000}, 1).at(0, "synchronization_share") == 0);
}

TEST_CASE("steps that a legacy trace writes as operators don't make the host busy", "[features]") {
  TraceText text;
  text.host("Operator", "ProfilerStep#1", 0, 100).host("Operator", "aten::add", 10, 20);
  CHECK(features_of(text, {0, 100'000}, 1).at(0, "host_busy_share") == Approx(0.2));
}

TEST_CASE("a trace without GPU events has finite features", "[features]") {
  const Features f = features_of(TraceText().host("cpu_op", "aten::add", 0, 10), {0, 20'000}, 4);
  for (const double value : f.block.values) CHECK(std::isfinite(value));
  CHECK(f.at(0, "busy_share") == 0);
  const Features empty = features_of(TraceText().host("cpu_op", "aten::add", 0, 10), {5, 5}, 3);
  for (const double value : empty.block.values) CHECK(std::isfinite(value));
}

TEST_CASE("shares agree with the timeline and the idle causes of each window", "[features]") {
  for (unsigned seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    const Features f = features_of(RandomTrace(seed, 80, 900'000).text(), {-50'000, 1'000'000}, 9);
    for (std::uint32_t w = 0; w < f.windows.count(); ++w) {
      const Interval bounds = f.windows.bounds(w);
      const Timeline t = compute_timeline(f.a.gpu, bounds);
      const auto share = [&](std::int64_t ns) {
        return Approx(static_cast<double>(ns) / static_cast<double>(t.span_ns)).margin(1e-12);
      };
      CHECK(f.at(w, "busy_share") == share(t.busy_ns));
      CHECK(f.at(w, "compute_share") == share(t.compute_ns));
      CHECK(f.at(w, "communication_share") == share(t.communication_ns));
      CHECK(f.at(w, "memcpy_share") == share(t.memcpy_ns));
      CHECK(f.at(w, "exposed_communication_share") == share(t.exposed_communication_ns));
      CHECK(f.at(w, "exposed_memcpy_share") == share(t.exposed_memcpy_ns));
      const IdleBreakdown idle = f.a.idle(bounds);
      const auto ns_of = [&](IdleCause cause) {
        return idle.total_ns[static_cast<std::size_t>(cause)];
      };
      for (int c = 0; c < kIdleCauseCount; ++c) {
        const auto cause = static_cast<IdleCause>(c);
        if (cause == IdleCause::kWithinGraph) continue;  // scorers know it as launch latency
        const bool latency = cause == IdleCause::kLaunchLatency;
        const auto name = "idle_" + std::string(idle_cause_name(cause)) + "_share";
        CHECK(f.at(w, name) ==
              share(ns_of(cause) + (latency ? ns_of(IdleCause::kWithinGraph) : 0)));
      }
      CHECK(f.at(w, "queue_depth_min") <= f.at(w, "queue_depth_mean") + 1e-9);
      CHECK(f.at(w, "queue_depth_mean") <= f.at(w, "queue_depth_max") + 1e-9);
    }
  }
}

TEST_CASE("z-scores are robust, clipped, and fall back where most windows are equal",
          "[features]") {
  const std::vector<double> values{1, 5, 0, 2, 5, 0, 3, 5, 0, 4, 5, 0, 1000, 5, 8};
  const std::vector<double> z = robust_zscores(values, 5, 3);
  CHECK(z[0] == Approx((1 - 3) / 1.4826));  // median 3, MAD 1
  CHECK(z[6] == 0);
  CHECK(z[12] == 10);
  for (int row = 0; row < 5; ++row) CHECK(z[static_cast<std::size_t>(row) * 3 + 1] == 0);
  CHECK(z[14] == Approx(8 / (1.2533 * 1.6)));  // MAD 0, mean deviation 8 / 5
  CHECK(z[2] == 0);
  CHECK(robust_zscores({}, 0, 3).empty());
  CHECK_THROWS_AS(robust_zscores(values, 4, 3), SchemaError);
}
