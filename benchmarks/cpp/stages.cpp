// Time per stage of the way from file to findings, with Google Benchmark's flags:
//   stages [TRACE] [--benchmark_filter=read]     default: the bundled ResNet-50 trace
// Items are objects in traceEvents, bytes are decompressed text: both rates compare across traces.

#include <benchmark/benchmark.h>

#include <cstdio>
#include <string>

#include "traceap/analysis/idle/idle.hpp"
#include "traceap/analysis/idle/timeline.hpp"
#include "traceap/base/error.hpp"
#include "traceap/detect/rules.hpp"
#include "traceap/features/window_features.hpp"
#include "traceap/trace/read.hpp"
#include "traceap/tree/event_tree.hpp"
#include "traceap/windows/window_set.hpp"

namespace {

using namespace traceap;

std::string trace_path = "examples/traces/resnet50_num_workers_0.json.gz";

/// Every stage's output, built once: each benchmark repeats one arrow of the way.
struct Stages {
  EventTable table = read_trace(trace_path);
  EventTree tree = build_tree(table);
  GpuIntervals gpu = build_gpu_intervals(table, tree, {});
  IdleBreakdown idle = explain_idle(table, tree, gpu, tree.profiled);
  WindowSet windows = build_windows(table, tree);
  Signals signals = build_signals(table, tree);
};

const Stages& stages() {
  static const Stages built;
  return built;
}

template <typename Body>
void repeat(benchmark::State& state, Body body) {
  const EventTable& table = stages().table;
  for (auto _ : state) {
    auto result = body();
    benchmark::DoNotOptimize(result);
  }
  const auto runs = static_cast<std::int64_t>(state.iterations());
  state.SetItemsProcessed(runs * static_cast<std::int64_t>(table.total_objects));
  state.SetBytesProcessed(runs * static_cast<std::int64_t>(table.text_bytes));
}

void read(benchmark::State& state) {
  ReadOptions options;
  options.threads = static_cast<unsigned>(state.range(0));
  repeat(state, [&] { return read_trace(trace_path, options); });
}

void tree(benchmark::State& state) {
  repeat(state, [] { return build_tree(stages().table); });
}

void gpu_intervals(benchmark::State& state) {
  repeat(state, [] { return build_gpu_intervals(stages().table, stages().tree, {}); });
}

void idle(benchmark::State& state) {
  repeat(state, [] {
    const Stages& s = stages();
    return explain_idle(s.table, s.tree, s.gpu, s.tree.profiled);
  });
}

void windows(benchmark::State& state) {
  repeat(state, [] { return build_windows(stages().table, stages().tree); });
}

void features(benchmark::State& state) {
  repeat(state, [] {
    const Stages& s = stages();
    return build_features(s.table, s.tree, s.gpu, s.idle, s.windows);
  });
}

void signals(benchmark::State& state) {
  repeat(state, [] { return build_signals(stages().table, stages().tree); });
}

void detect(benchmark::State& state) {
  repeat(state, [] { return detect_all(stages().signals); });
}

// 0 threads: as many as there are cores.
BENCHMARK(read)->Arg(1)->Arg(0)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(tree)->Unit(benchmark::kMillisecond);
BENCHMARK(gpu_intervals)->Unit(benchmark::kMillisecond);
BENCHMARK(idle)->Unit(benchmark::kMillisecond);
BENCHMARK(windows)->Unit(benchmark::kMillisecond);
BENCHMARK(features)->Unit(benchmark::kMillisecond);
BENCHMARK(signals)->Unit(benchmark::kMillisecond);
BENCHMARK(detect)->Unit(benchmark::kMillisecond);

}  // namespace

int main(int argc, char** argv) try {
  benchmark::Initialize(&argc, argv);
  if (argc > 1) trace_path = argv[1];
  stages();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
} catch (const traceap::Error& error) {
  std::fprintf(stderr, "stages: %s\n", error.what());
  return 1;
}
