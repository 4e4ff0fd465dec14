#include <algorithm>
#include <numeric>

#include "analysis/analysed.hpp"
#include "catch.hpp"

using namespace traceap;
using Lines = std::vector<std::string>;

namespace {

constexpr const char* kNccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL";
constexpr const char* kLoader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__";

/// A kernel on the GPU in [10, 20) us, launched at 0; host rows and the next kernel are the test's.
TraceText first_kernel() { return TraceText().launch("gemm", 0, 5, 10, 10, 7, 1); }

/// The same with the next kernel at [start, start + 10), its call 10 us earlier and 5 us long.
TraceText& next_kernel(TraceText& text, double start_us, int correlation = 2) {
  return text.launch("relu", start_us - 10, 5, start_us, 10, 7, correlation);
}

Lines idle_of(const TraceText& text) {
  const Analysed a(text);
  return describe(a, a.idle());
}

/// An asynchronous copy call and its GPU event.
TraceText& copy(TraceText& text, const std::string& kind, double call_us, double call_dur_us,
                double ts_us, double dur_us, int correlation) {
  text.host("cuda_runtime", "cudaMemcpyAsync", call_us, call_dur_us,
            "\"correlation\":" + std::to_string(correlation));
  return text.gpu("gpu_memcpy", "Memcpy " + kind, ts_us, dur_us, 7, correlation, "\"bytes\":4");
}

void check_exact(const Analysed& a, Interval bounds) {
  const IdleBreakdown idle = a.idle(bounds);
  const IntervalSet expected = set_complement(a.gpu.busy, bounds);
  std::vector<Interval> pieces;
  std::array<std::int64_t, kIdleCauseCount> totals{};
  for (std::size_t i = 0; i < idle.intervals.size(); ++i) {
    const IdleInterval& piece = idle.intervals[i];
    pieces.push_back(piece.interval);
    totals[static_cast<std::size_t>(piece.cause)] += piece.interval.length_ns();
    REQUIRE(piece.interval.length_ns() > 0);
    if (i > 0) REQUIRE(piece.interval.start_ns >= idle.intervals[i - 1].interval.end_ns);
    if (piece.next_gpu_row != kNoRow) {
      CHECK(a.table.ts_ns[piece.next_gpu_row] >= piece.interval.end_ns);
    }
  }
  CHECK(make_union(pieces) == expected);
  CHECK(totals == idle.total_ns);
  CHECK(std::accumulate(totals.begin(), totals.end(), std::int64_t{0}) ==
        total_length_ns(expected));
}

IdleBreakdown clip(const IdleBreakdown& idle, Interval bounds) {
  IdleBreakdown clipped;
  for (IdleInterval piece : idle.intervals) {
    piece.interval.start_ns = std::max(piece.interval.start_ns, bounds.start_ns);
    piece.interval.end_ns = std::min(piece.interval.end_ns, bounds.end_ns);
    if (piece.interval.length_ns() > 0) clipped.intervals.push_back(piece);
  }
  return clipped;
}

}  // namespace

TEST_CASE("a host that launches late is host wait, its launch's latency included", "[analysis]") {
  TraceText text = first_kernel();
  text.host("cpu_op", "aten::relu", 30, 70);
  CHECK(idle_of(next_kernel(text, 90)) == Lines{"host_wait 20-90 by aten::relu"});
}

TEST_CASE("nothing runs of what is launched while a graph is recorded", "[analysis]") {
  TraceText text = first_kernel();
  text.host("cuda_runtime", "cudaStreamBeginCapture", 30, 5);
  text.host("cpu_op", "aten::mm", 40, 200).host("cuda_runtime", "cudaLaunchKernel", 50, 100);
  text.host("cuda_runtime", "cudaStreamEndCapture", 300, 50);
  text.host("cuda_runtime", "cudaGraphInstantiate", 360, 100);
  CHECK(idle_of(next_kernel(text, 500)) == Lines{"host_wait 20-30 by cudaLaunchKernel",
                                                 "compilation 30-460 by cudaStreamBeginCapture",
                                                 "host_wait 460-500 by cudaLaunchKernel"});
}

TEST_CASE("a capture without an end is none", "[analysis]") {
  TraceText text = first_kernel();
  text.host("cuda_runtime", "cudaStreamBeginCapture", 30, 5);
  text.host("cpu_op", "aten::mm", 40, 200);
  CHECK(idle_of(next_kernel(text, 500)) == Lines{"host_wait 20-30 by cudaLaunchKernel",
                                                 "compilation 30-35 by cudaStreamBeginCapture",
                                                 "host_wait 35-500 by cudaLaunchKernel"});
}

TEST_CASE("the first call of an operator compiles if it is far slower than the others",
          "[analysis]") {
  const auto first_cause = [](double first_us, int later) {
    TraceText text = first_kernel();
    text.host("cpu_op", "my::op", 30, first_us)
        .launch("k", 30 + first_us - 8, 5, 40 + first_us, 10, 7, 2);
    for (int i = 0; i < later; ++i) {
      const double t = 100 + first_us + 200 * i;
      text.host("cpu_op", "my::op", t, 100).launch("k", t + 90, 5, t + 105, 10, 7, 3 + i);
    }
    const Analysed a(text);
    return a.idle().intervals[1].cause;
  };
  CHECK(first_cause(1'000, 3) == IdleCause::kCompilation);
  CHECK(first_cause(999, 3) == IdleCause::kHostWait);
  CHECK(first_cause(1'000, 2) == IdleCause::kHostWait);
  CHECK(first_cause(10'005, 2) == IdleCause::kCompilation);
  CHECK(first_cause(10'004, 2) == IdleCause::kHostWait);
}

TEST_CASE("Python that nobody records between two calls is host wait", "[analysis]") {
  TraceText text = first_kernel();
  CHECK(idle_of(next_kernel(text, 500)) == Lines{"host_wait 20-500 by cudaLaunchKernel"});
  TraceText in_step = first_kernel();
  in_step.host("user_annotation", "ProfilerStep#1", 0, 600);
  CHECK(idle_of(next_kernel(in_step, 500)) == Lines{"host_wait 20-500 by ProfilerStep#1"});
}

TEST_CASE("work that was queued before the gap is launch latency", "[analysis]") {
  TraceText text = first_kernel();
  text.launch("relu", 6, 2, 24, 10, 7, 2);
  CHECK(idle_of(text) == Lines{"launch_latency 20-24 by cudaLaunchKernel"});
}

TEST_CASE("queued work behind a collective of another stream waits for it", "[analysis]") {
  TraceText text;
  text.launch(kNccl, 0, 2, 10, 10, 20, 1).launch("relu", 3, 2, 24, 10, 7, 2);
  CHECK(idle_of(text) == Lines{"communication_wait 20-24 by cudaLaunchKernel"});
  TraceText same_stream;
  same_stream.launch(kNccl, 0, 2, 10, 10, 7, 1).launch("relu", 3, 2, 24, 10, 7, 2);
  CHECK(idle_of(same_stream) == Lines{"launch_latency 20-24 by cudaLaunchKernel"});
}

TEST_CASE("queued work that waits for long without a collective is unknown", "[analysis]") {
  TraceText text = first_kernel();
  text.launch("relu", 6, 2, 520, 10, 7, 2);
  CHECK(idle_of(text) == Lines{"unknown 20-520 by cudaLaunchKernel"});
  TraceText collective = first_kernel();
  collective.launch(kNccl, 6, 2, 520, 10, 20, 2);
  CHECK(idle_of(collective) == Lines{"communication_wait 20-520 by cudaLaunchKernel"});
}

TEST_CASE("a device takes up to 100 us to start queued work", "[analysis]") {
  const auto queued_until = [](double start_us) {
    TraceText text = first_kernel();
    return idle_of(text.launch("relu", 6, 2, start_us, 10, 7, 2));
  };
  CHECK(queued_until(120) == Lines{"launch_latency 20-120 by cudaLaunchKernel"});
  CHECK(queued_until(121) == Lines{"unknown 20-121 by cudaLaunchKernel"});
}

TEST_CASE("the loader owns its interval, the launch after it does not", "[analysis]") {
  TraceText text = first_kernel();
  text.host("user_annotation", kLoader, 15, 65).host("cpu_op", "aten::stack", 30, 20);
  text.host("cuda_runtime", "cudaHostAlloc", 60, 5);
  CHECK(idle_of(next_kernel(text, 100)) == Lines{"data_loading 20-80 by " + std::string(kLoader),
                                                 "host_wait 80-100 by cudaLaunchKernel"});
}

TEST_CASE("a loader in Python frames is found without a range", "[analysis]") {
  TraceText text = first_kernel();
  text.host("python_function", "torch/utils/data/dataloader.py(633): __next__", 15, 65);
  text.host("python_function", "dataset.py(12): __getitem__", 20, 55);
  CHECK(idle_of(next_kernel(text, 100))[0] ==
        "data_loading 20-80 by torch/utils/data/dataloader.py(633): __next__");
}

TEST_CASE("the refill behind a synchronisation that drained the queue is its doing", "[analysis]") {
  TraceText text = first_kernel();
  text.host("cuda_runtime", "cudaStreamSynchronize", 8, 14).host("cpu_op", "aten::relu", 30, 45);
  CHECK(idle_of(next_kernel(text, 80)) == Lines{"synchronization 20-80 by cudaStreamSynchronize"});
}

TEST_CASE("the refill is bounded by the wait, or 300 us if that is more", "[analysis]") {
  TraceText text = first_kernel();
  text.host("cuda_runtime", "cudaDeviceSynchronize", 8, 14);
  CHECK(idle_of(next_kernel(text, 1020)) == Lines{"synchronization 20-322 by cudaDeviceSynchronize",
                                                  "host_wait 322-1020 by cudaLaunchKernel"});
  TraceText long_wait;
  long_wait.launch("gemm", 0, 5, 10, 990, 7, 1);
  long_wait.host("cuda_runtime", "cudaDeviceSynchronize", 100, 902);
  CHECK(idle_of(next_kernel(long_wait, 1950)) ==
        Lines{"synchronization 1000-1902 by cudaDeviceSynchronize",
              "host_wait 1902-1950 by cudaLaunchKernel"});
}

TEST_CASE("a host that waits for an idle GPU waits for work outside the file", "[analysis]") {
  const auto synced_until = [](double end_us) {
    TraceText text = first_kernel();
    text.host("cuda_runtime", "cudaStreamSynchronize", 8, end_us - 8);
    return idle_of(next_kernel(text, end_us + 20));
  };
  CHECK(synced_until(120) == Lines{"synchronization 20-140 by cudaStreamSynchronize"});
  CHECK(synced_until(121) == Lines{"unknown 20-121 by cudaStreamSynchronize",
                                   "synchronization 121-141 by cudaStreamSynchronize"});
}

TEST_CASE("a read that waits for an idle GPU waits for work outside the file", "[analysis]") {
  const auto read_at = [](const std::string& kind, double start_us, double dur_us) {
    TraceText text = first_kernel();
    copy(text, kind, 30, start_us + dur_us - 28, start_us, dur_us, 3);
    return idle_of(text)[1];
  };
  const std::string down = "DtoH (Device -> Pageable)", up = "HtoD (Pageable -> Device)";
  CHECK(read_at(down, 130, 2) == "memory_copy 30-130 by cudaMemcpyAsync");
  CHECK(read_at(down, 131, 2) == "unknown 30-131 by cudaMemcpyAsync");
  // What takes long to copy may take as long to prepare.
  CHECK(read_at(down, 131, 500) == "memory_copy 30-131 by cudaMemcpyAsync");
  CHECK(read_at(down, 531, 500) == "unknown 30-531 by cudaMemcpyAsync");
  // Uploads are staged first.
  CHECK(read_at(up, 1030, 2) == "memory_copy 30-1030 by cudaMemcpyAsync");
  CHECK(read_at(up, 1031, 2) == "unknown 30-1031 by cudaMemcpyAsync");
}

TEST_CASE("before the first GPU event a wait is for work outside the file", "[analysis]") {
  TraceText text;
  text.host("user_annotation", "ProfilerStep#1", 0, 200).host("cpu_op", "aten::item", 10, 60);
  text.host("cuda_runtime", "cudaStreamSynchronize", 20, 30).launch("gemm", 80, 5, 90, 10, 7, 1);
  const Analysed a(text);
  CHECK(describe(a, a.idle({0, 100'000})) ==
        Lines{"host_wait 0-10 by ProfilerStep#1", "synchronization 10-20 by aten::item",
              "unknown 20-50 by cudaStreamSynchronize", "synchronization 50-70 by aten::item",
              "host_wait 70-90 by ProfilerStep#1"});
}

TEST_CASE("a host that waits for another thread's launch waits for work in the file",
          "[analysis]") {
  TraceText text;
  text.host("user_annotation", "ProfilerStep#1", 0, 900).launch("gemm", 0, 5, 10, 10, 7, 1);
  text.host("cuda_runtime", "cudaStreamSynchronize", 8, 460);
  text.complete("cuda_runtime", "cudaLaunchKernel", 400, 5, 1, "2", "\"correlation\":2");
  text.gpu("kernel", "relu_backward", 410, 10, 7, 2);
  CHECK(idle_of(text)[0] == "synchronization 20-410 by cudaStreamSynchronize");
}

TEST_CASE("what takes longer than a refill is the host's own work", "[analysis]") {
  const auto next_at = [](double start_us) {
    TraceText text = first_kernel();
    text.host("cpu_op", "aten::to", 2, 30);
    copy(text, "DtoH (Device -> Pageable)", 4, 20, 20, 2, 3);
    text.host("cpu_op", "torchvision::nms", 40, start_us - 60);
    return idle_of(next_kernel(text, start_us));
  };
  // The operator ends at 32: from there 1 ms to the return of the next launch.
  CHECK(next_at(1037) ==
        Lines{"memory_copy 22-332 by cudaMemcpyAsync", "host_wait 332-1037 by torchvision::nms"});
  CHECK(next_at(1038) ==
        Lines{"memory_copy 22-32 by aten::to", "host_wait 32-1038 by torchvision::nms"});
  // A loader in between is no work of the host's own.
  TraceText loading = first_kernel();
  loading.host("cuda_runtime", "cudaStreamSynchronize", 8, 14)
      .host("user_annotation", kLoader, 50, 5'000);
  CHECK(idle_of(next_kernel(loading, 5'100))[0] ==
        "synchronization 20-50 by cudaStreamSynchronize");
}

TEST_CASE("a synchronisation of an idle GPU costs its own time only", "[analysis]") {
  TraceText text = first_kernel();
  text.host("cpu_op", "aten::relu", 12, 28);
  text.host("cuda_runtime", "cudaStreamSynchronize", 40, 5);
  CHECK(idle_of(next_kernel(text, 100)) == Lines{"host_wait 20-40 by aten::relu",
                                                 "synchronization 40-45 by cudaStreamSynchronize",
                                                 "host_wait 45-100 by cudaLaunchKernel"});
}

TEST_CASE("a loader behind a synchronisation is data loading all the same", "[analysis]") {
  TraceText text = first_kernel();
  text.host("cuda_runtime", "cudaStreamSynchronize", 8, 14);
  text.host("user_annotation", kLoader, 30, 50);
  const Lines lines = idle_of(next_kernel(text, 100));
  CHECK(lines == Lines{"synchronization 20-30 by cudaStreamSynchronize",
                       "data_loading 30-80 by " + std::string(kLoader),
                       "synchronization 80-100 by cudaStreamSynchronize"});
}

TEST_CASE("a wait that begins when the GPU is idle already drained nothing", "[analysis]") {
  TraceText text = first_kernel();
  text.host("cuda_runtime", "cudaStreamSynchronize", 20, 5);
  CHECK(idle_of(next_kernel(text, 60)) == Lines{"synchronization 20-25 by cudaStreamSynchronize",
                                                "host_wait 25-60 by cudaLaunchKernel"});
}

TEST_CASE("reading a value is synchronisation, the operator's own time included", "[analysis]") {
  TraceText text = first_kernel();
  text.host("cpu_op", "aten::item", 24, 40).host("cpu_op", "aten::_local_scalar_dense", 26, 36);
  copy(text, "DtoH (Device -> Pageable)", 30, 12, 36, 2, 3);
  text.host("cuda_runtime", "cudaStreamSynchronize", 45, 10);
  const Lines lines = idle_of(next_kernel(text, 90));
  CHECK(lines == Lines{"host_wait 20-24 by cudaMemcpyAsync",
                       "synchronization 24-36 by cudaMemcpyAsync",
                       "synchronization 38-90 by cudaMemcpyAsync"});
}

TEST_CASE("a copy that the host waits for is memory copy, with the operator around it",
          "[analysis]") {
  TraceText text = first_kernel();
  text.host("cpu_op", "aten::to", 24, 40).host("cpu_op", "aten::_to_copy", 25, 38);
  text.host("cpu_op", "aten::copy_", 26, 36);
  copy(text, "HtoD (Pageable -> Device)", 30, 12, 36, 2, 3);
  CHECK(idle_of(next_kernel(text, 90)) == Lines{"host_wait 20-24 by cudaMemcpyAsync",
                                                "memory_copy 24-36 by cudaMemcpyAsync",
                                                "memory_copy 38-90 by cudaMemcpyAsync"});
}

TEST_CASE("a copy operator that synchronises waits for its copy, pinned or not", "[analysis]") {
  TraceText text = first_kernel();
  text.host("cpu_op", "aten::copy_", 24, 46);
  copy(text, "HtoD (Pinned -> Device)", 30, 5, 36, 20, 3);
  text.host("cuda_runtime", "cudaStreamSynchronize", 38, 25);
  CHECK(idle_of(next_kernel(text, 90)) == Lines{"host_wait 20-24 by cudaMemcpyAsync",
                                                "memory_copy 24-36 by aten::copy_",
                                                "memory_copy 56-90 by cudaStreamSynchronize"});
}

TEST_CASE("what takes a millisecond inside a copy operator is not the copy", "[analysis]") {
  TraceText text = first_kernel();
  text.host("cpu_op", "aten::_to_copy", 20, 2060);
  copy(text, "HtoD (Pageable -> Device)", 2030, 12, 2036, 2, 3);
  CHECK(idle_of(text) ==
        Lines{"host_wait 20-2030 by aten::_to_copy", "memory_copy 2030-2036 by cudaMemcpyAsync"});
}

TEST_CASE("copies that nobody waits for are launches like others", "[analysis]") {
  for (const std::string kind : {"HtoD (Pinned -> Device)", "DtoD (Device -> Device)"}) {
    TraceText text = first_kernel();
    text.host("cpu_op", "aten::to", 24, 20);
    copy(text, kind, 30, 5, 38, 20, 3);
    CHECK(idle_of(text) == Lines{"host_wait 20-38 by cudaMemcpyAsync"});
  }
}

TEST_CASE("AMD's copies say nothing of memory: who returns after the copy waited", "[analysis]") {
  TraceText waits = first_kernel();
  waits.host("cuda_runtime", "hipMemcpyAsync", 24, 40, "\"correlation\":3");
  waits.gpu("gpu_memcpy", "CopyHostToDevice", 40, 10, 7, 3);
  CHECK(idle_of(waits) ==
        Lines{"host_wait 20-24 by hipMemcpyAsync", "memory_copy 24-40 by hipMemcpyAsync"});
  TraceText returns = first_kernel();
  returns.host("cuda_runtime", "hipMemcpyAsync", 24, 4, "\"correlation\":3");
  returns.gpu("gpu_memcpy", "CopyHostToDevice", 40, 10, 7, 3);
  CHECK(idle_of(returns) == Lines{"host_wait 20-40 by hipMemcpyAsync"});
}

TEST_CASE("the allocator owns its calls, and the refill of a queue it drained", "[analysis]") {
  TraceText text = first_kernel();
  text.host("cpu_op", "aten::empty", 22, 60).host("cuda_runtime", "cudaMalloc", 30, 50);
  CHECK(idle_of(next_kernel(text, 100)) == Lines{"host_wait 20-30 by aten::empty",
                                                 "allocator 30-80 by cudaMalloc",
                                                 "host_wait 80-100 by cudaLaunchKernel"});
  TraceText drained = first_kernel();
  drained.host("cuda_runtime", "cudaFree", 12, 50);
  CHECK(idle_of(next_kernel(drained, 100)) == Lines{"allocator 20-100 by cudaFree"});
}

TEST_CASE("compilation owns everything inside it", "[analysis]") {
  TraceText text = first_kernel();
  text.host("user_annotation", "_compile.compile_inner (dynamo_timed)", 25, 65);
  text.host("cuda_runtime", "cudaMalloc", 30, 10).host("cuda_runtime", "cuModuleLoadData", 50, 30);
  CHECK(idle_of(next_kernel(text, 120)) ==
        Lines{"host_wait 20-25 by cudaLaunchKernel",
              "compilation 25-90 by _compile.compile_inner (dynamo_timed)",
              "host_wait 90-120 by cudaLaunchKernel"});
}

TEST_CASE("the first launch of a kernel that takes long loads code, a later one does not",
          "[analysis]") {
  TraceText text = first_kernel();
  text.launch("relu", 30, 5000, 5020, 10, 7, 2).launch("relu", 5100, 5000, 10090, 10, 7, 3);
  CHECK(idle_of(text) == Lines{"host_wait 20-30 by cudaLaunchKernel",
                               "compilation 30-5020 by cudaLaunchKernel",
                               "host_wait 5030-10090 by cudaLaunchKernel"});
}

TEST_CASE("a first launch takes long from 1 ms upwards", "[analysis]") {
  const auto first_launch = [](double call_us) {
    TraceText text = first_kernel();
    return idle_of(text.launch("relu", 30, call_us, 1020, 10, 7, 2));
  };
  CHECK(first_launch(1000) ==
        Lines{"host_wait 20-30 by cudaLaunchKernel", "compilation 30-1020 by cudaLaunchKernel"});
  CHECK(first_launch(999) == Lines{"host_wait 20-1020 by cudaLaunchKernel"});
}

TEST_CASE("cudaFree before anything was launched starts the context", "[analysis]") {
  TraceText text;
  text.host("cuda_runtime", "cudaFree", 0, 90'000).launch("gemm", 90'010, 5, 90'020, 10, 7, 1);
  text.host("cuda_runtime", "cudaFree", 90'100, 2'000).launch("relu", 92'110, 5, 92'120, 5, 7, 2);
  const Analysed a(text);
  const Lines lines = describe(a, a.idle({0, 92'125'000}));
  CHECK(lines[0] == "compilation 0-90000 by cudaFree");
  CHECK(lines[3] == "allocator 90100-92100 by cudaFree");
}

TEST_CASE("a convolution synchronises only to try algorithms", "[analysis]") {
  TraceText text = first_kernel();
  text.host("cpu_op", "aten::cudnn_convolution", 22, 60);
  text.host("cuda_runtime", "cudaEventSynchronize", 30, 40);
  CHECK(idle_of(next_kernel(text, 100))[1] == "compilation 30-70 by cudaEventSynchronize");
}

TEST_CASE("the profiler's overhead shows through other causes, not through the loader",
          "[analysis]") {
  TraceText text = first_kernel();
  text.complete("overhead", "Activity Buffer Request", 40, 20, -1, "0");
  CHECK(idle_of(next_kernel(text, 100)) == Lines{"host_wait 20-40 by cudaLaunchKernel",
                                                 "profiler 40-60 by Activity Buffer Request",
                                                 "host_wait 60-100 by cudaLaunchKernel"});
  TraceText loader = first_kernel();
  loader.host("user_annotation", kLoader, 15, 75);
  loader.complete("overhead", "Lazy Function Loading", 40, 20, -1, "0");
  CHECK(idle_of(next_kernel(loader, 100))[0] == "data_loading 20-90 by " + std::string(kLoader));
}

TEST_CASE("where the launching thread is silent the main thread speaks", "[analysis]") {
  TraceText text;
  text.host("user_annotation", "ProfilerStep#1", 0, 300).launch("gemm", 0, 5, 10, 10, 7, 1);
  text.host("cuda_runtime", "cudaStreamSynchronize", 8, 60);
  // The autograd thread launches the next kernel.
  text.complete("cuda_runtime", "cudaLaunchKernel", 90, 5, 1, "2", "\"correlation\":2");
  text.gpu("kernel", "relu_backward", 100, 10, 7, 2);
  CHECK(idle_of(text) == Lines{"synchronization 20-100 by cudaStreamSynchronize"});
}

TEST_CASE("a thread that works is believed, whatever the main thread waits for", "[analysis]") {
  TraceText text;
  text.host("user_annotation", "ProfilerStep#1", 0, 300).launch("gemm", 0, 5, 10, 10, 7, 1);
  text.host("cuda_runtime", "cudaStreamSynchronize", 30, 200);
  text.complete("cpu_op", "autograd::engine::evaluate_function: ReluBackward0", 15, 100, 1, "2");
  text.complete("cuda_runtime", "cudaLaunchKernel", 90, 5, 1, "2", "\"correlation\":2");
  text.gpu("kernel", "relu_backward", 100, 10, 7, 2);
  CHECK(idle_of(text) ==
        Lines{"host_wait 20-100 by autograd::engine::evaluate_function: ReluBackward0"});
}

TEST_CASE("a collective on the host explains a silent thread", "[analysis]") {
  TraceText text = first_kernel();
  text.complete("user_annotation", "gloo:all_reduce", 30, 50, 1, "9");
  CHECK(idle_of(next_kernel(text, 100)) == Lines{"host_wait 20-30 by cudaLaunchKernel",
                                                 "communication_wait 30-80 by gloo:all_reduce",
                                                 "host_wait 80-100 by cudaLaunchKernel"});
}

TEST_CASE("a host that waits for a collective is communication wait, its operators are not",
          "[analysis]") {
  TraceText text = first_kernel();
  text.host("user_annotation", "## KJTAllToAllTensorsAwaitable wait() ##", 22, 58);
  text.host("cuda_runtime", "cudaStreamSynchronize", 25, 20).host("cpu_op", "aten::cat", 50, 20);
  const Lines lines = idle_of(next_kernel(text, 100));
  CHECK(lines == Lines{"host_wait 20-22 by cudaLaunchKernel",
                       "communication_wait 22-50 by cudaStreamSynchronize",
                       "host_wait 50-70 by aten::cat",
                       "communication_wait 70-80 by ## KJTAllToAllTensorsAwaitable wait() ##",
                       "host_wait 80-100 by cudaLaunchKernel"});
}

TEST_CASE("orphans take their cause from the stream's order, else from the main thread",
          "[analysis]") {
  TraceText queued = first_kernel();
  queued.gpu("kernel", "orphan", 24, 10, 7, 77).launch("relu", 6, 2, 34, 10, 7, 3);
  CHECK(idle_of(queued) == Lines{"launch_latency 20-24"});
  TraceText loading = first_kernel();
  loading.host("user_annotation", kLoader, 15, 80).gpu("kernel", "orphan", 90, 10, 7, 77);
  CHECK(idle_of(loading) == Lines{"data_loading 20-90 by " + std::string(kLoader)});
}

TEST_CASE("an orphan with an External id takes its operator for the launch", "[analysis]") {
  TraceText text = first_kernel();
  text.host("cpu_op", "aten::relu", 40, 30, "\"External id\":5");
  text.gpu("kernel", "orphan", 90, 10, 7, 77, "\"External id\":5");
  CHECK(idle_of(text) == Lines{"host_wait 20-90 by aten::relu"});
}

TEST_CASE("without any host event idle time is unknown", "[analysis]") {
  CHECK(idle_of(TraceText().gpu("kernel", "a", 0, 10, 7, 1).gpu("kernel", "b", 30, 10, 7, 2)) ==
        Lines{"unknown 10-30"});
  const Analysed before(TraceText().launch("gemm", 100, 5, 110, 10, 7, 1));
  CHECK(describe(before, before.idle({0, 120'000})) ==
        Lines{"unknown 0-100", "host_wait 100-110 by cudaLaunchKernel"});
}

TEST_CASE("bounds without GPU events are explained by the main thread", "[analysis]") {
  const Analysed a(
      TraceText().host("cpu_op", "aten::add", 0, 10).host("user_annotation", kLoader, 20, 30));
  CHECK(describe(a, a.idle({0, 50'000})) ==
        Lines{"host_wait 0-20 by aten::add", "data_loading 20-50 by " + std::string(kLoader)});
  CHECK(a.idle({50'000, 50'000}).intervals.empty());
  CHECK(a.idle({50'000, 0}).intervals.empty());
}

TEST_CASE("a GPU clock that lags behind the host's is set right before rows are compared",
          "[analysis]") {
  TraceText text;
  const double offset_us = 21'000;
  for (int i = 0; i < 20; ++i) {
    text.launch("gemm", i * 100, 5, i * 100 + 10 + offset_us, 20, 7, i + 1);
  }
  text.host("user_annotation", kLoader, 1935, 1000);
  text.launch("relu", 3000, 5, 3010 + offset_us, 10, 7, 99);
  const Analysed a(text);
  REQUIRE(a.tree.launch_delay_correction_ns < -20'000'000);
  const IdleBreakdown idle = a.idle();
  CHECK(idle.total_ns[static_cast<int>(IdleCause::kDataLoading)] == 1'000'000);
  CHECK(idle.total_ns[static_cast<int>(IdleCause::kLaunchLatency)] == 0);
}

TEST_CASE("every idle cause has a name of its own", "[analysis]") {
  std::vector<std::string> names;
  for (int c = 0; c < kIdleCauseCount; ++c) {
    names.emplace_back(idle_cause_name(static_cast<IdleCause>(c)));
    CHECK(!names.back().empty());
  }
  std::sort(names.begin(), names.end());
  CHECK(std::adjacent_find(names.begin(), names.end()) == names.end());
}

TEST_CASE("idle causes cover the idle time exactly on any trace", "[analysis]") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    INFO("seed " << seed);
    const std::int64_t span = seed % 2 == 0 ? 2'000'000 : 20'000'000;
    const Analysed a(RandomTrace(seed, 10 + static_cast<int>(seed) * 4, span).text());
    check_exact(a, a.span());
    check_exact(a, a.tree.profiled);
    check_exact(a, {-1'000'000, span * 2});
    check_exact(a, {span / 3, span / 2});
    check_exact(a, {span / 2, span / 2 + 1});
  }
}

TEST_CASE("narrower bounds give the same causes, clipped", "[analysis]") {
  for (unsigned seed = 0; seed < 30; ++seed) {
    INFO("seed " << seed);
    const Analysed a(RandomTrace(seed, 80, 5'000'000).text());
    const IdleBreakdown whole = a.idle({0, 7'000'000});
    std::mt19937 random(seed);
    for (int n = 0; n < 40; ++n) {
      const std::int64_t start = static_cast<std::int64_t>(random() % 5'500'000);
      const Interval bounds{start, start + static_cast<std::int64_t>(random() % 1'000'000)};
      const IdleBreakdown narrow = a.idle(bounds), expected = clip(whole, bounds);
      REQUIRE(narrow.intervals.size() == expected.intervals.size());
      for (std::size_t i = 0; i < narrow.intervals.size(); ++i) {
        CHECK(narrow.intervals[i].interval == expected.intervals[i].interval);
        CHECK(narrow.intervals[i].cause == expected.intervals[i].cause);
      }
    }
  }
}

TEST_CASE("a shift of time and another order of the file change nothing", "[analysis]") {
  constexpr std::int64_t kShift = 1'700'000'000'000;  // half an hour in ns, exact as text
  for (unsigned seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    const RandomTrace random(seed, 60, 3'000'000);
    const Analysed plain(random.text()), moved(random.text(kShift, seed + 1));
    const Interval bounds{0, 4'000'000};
    const IdleBreakdown a = plain.idle(bounds);
    const IdleBreakdown b = moved.idle({bounds.start_ns + kShift, bounds.end_ns + kShift});
    REQUIRE(a.intervals.size() == b.intervals.size());
    CHECK(a.total_ns == b.total_ns);
    for (std::size_t i = 0; i < a.intervals.size(); ++i) {
      CHECK(a.intervals[i].interval.start_ns + kShift == b.intervals[i].interval.start_ns);
      CHECK(a.intervals[i].cause == b.intervals[i].cause);
      CHECK(plain.name(a.intervals[i].explained_by) == moved.name(b.intervals[i].explained_by));
    }
  }
}

TEST_CASE("deep stacks and many gaps take linear time", "[analysis]") {
  constexpr int kDepth = 20'000;
  TraceText text;
  for (int i = 0; i < kDepth; ++i) {
    text.host("python_function", "f", i * 0.01, 100'000 - i * 0.02);
  }
  for (int i = 0; i < kDepth; ++i) text.launch("k", 300 + i * 2, 0.5, 301 + i * 2, 0.5, 7, i + 1);
  const Analysed a(text);
  const IdleBreakdown idle = a.idle();  // would need 4e8 steps if each gap climbed the stack
  CHECK(idle.total_ns[static_cast<int>(IdleCause::kHostWait)] == (kDepth - 1) * 1'500);
}
