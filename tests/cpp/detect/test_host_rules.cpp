// Rules on what the host does while the GPU waits: each with its pattern and its look-alikes.

#include "catch.hpp"
#include "scene.hpp"

using namespace traceap;

namespace {

constexpr const char* kMultiFetch = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__";
constexpr const char* kSingleFetch = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__";

/// Three steps of 10 ms; the GPU is busy for the last `busy_us` of each.
Scene three_steps(double busy_us, int first_number = 5) {
  Scene scene;
  for (int i = 0; i < 3; ++i) {
    const double start = 1000 + i * 10000.0;
    scene.step(first_number + i, start, 10000);
    const double kernel_start = start + 10000 - busy_us;
    scene.op("aten::mm", kernel_start - 20, 15)
        .kernel("gemm", kernel_start - 15, kernel_start, busy_us);
  }
  return scene;
}

}  // namespace

TEST_CASE("late workers are found with the waits that the GPU felt", "[detect]") {
  Scene scene = three_steps(6000);
  for (int i = 0; i < 3; ++i) scene.range(kMultiFetch, 1000 + i * 10000.0, 3500);
  const Finding finding = scene.judge("worker_starvation");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.cost_ns == 3 * 3'500'000);
  CHECK(finding.saving_best_ns == finding.cost_ns);
  CHECK(fact(finding, "late fetches") == "3");
  CHECK(finding.evidence.size() == 3);
}

TEST_CASE("workers that deliver in time, or while the GPU works, are no starvation", "[detect]") {
  SECTION("the fetch only takes a batch off the queue") {
    Scene scene = three_steps(6000);
    for (int i = 0; i < 3; ++i) scene.range(kMultiFetch, 1000 + i * 10000.0, 50);
    CHECK(scene.judge("worker_starvation").verdict == Verdict::kAbsent);
  }
  SECTION("the fetch is long and the GPU is busy all the while") {
    Scene scene = three_steps(9900);
    for (int i = 0; i < 3; ++i) scene.range(kMultiFetch, 1200 + i * 10000.0, 7000);
    CHECK(scene.judge("worker_starvation").verdict == Verdict::kAbsent);
  }
  SECTION("the training process loads itself: another type") {
    Scene scene = three_steps(6000);
    for (int i = 0; i < 3; ++i) scene.range(kSingleFetch, 1000 + i * 10000.0, 3500);
    CHECK(scene.judge("worker_starvation").verdict == Verdict::kAbsent);
  }
  SECTION("only the first fetch is slow: the workers start") {
    Scene scene = three_steps(6000);
    scene.range(kMultiFetch, 1000, 3500)
        .range(kMultiFetch, 11000, 50)
        .range(kMultiFetch, 21000, 50);
    CHECK(scene.judge("worker_starvation").verdict == Verdict::kAbsent);
  }
}

TEST_CASE("a slow loader that the GPU waits for once, with work queued behind", "[detect]") {
  const auto verdict = [](double later_us) {
    Scene scene;
    for (int i = 0; i < 3; ++i) {
      const double start = 1000 + i * 10000.0, idle = i == 0 ? 4000 : 20;
      scene.step(5 + i, start, 10000);
      scene.op("aten::mm", start + idle - 20, 15)
          .kernel("gemm", start + idle - 15, start + idle, 10000 - idle);
      scene.range(kMultiFetch, start + 30, i == 0 ? 3500 : later_us);
    }
    return scene.judge("worker_starvation").verdict;
  };
  CHECK(verdict(3000) == Verdict::kPresent);
  CHECK(verdict(1200) == Verdict::kAbsent);  // the workers start
}

TEST_CASE("a fetch is late when the GPU idles for 1 ms in it", "[detect]") {
  Scene scene = three_steps(6000);
  scene.range(kMultiFetch, 1000, 999).range(kMultiFetch, 11000, 1000);
  scene.range(kMultiFetch, 21000, 1000);
  CHECK(fact(scene.judge("worker_starvation"), "late fetches") == "2");
}

TEST_CASE("no host events leave worker starvation unknown", "[detect]") {
  Scene scene;
  scene.text().gpu("kernel", "k", 0, 10, 7, 1).gpu("kernel", "k", 500, 10, 7, 2);
  const Finding finding = scene.judge("worker_starvation");
  CHECK(finding.verdict == Verdict::kUnknown);
  CHECK(finding.missing_signals == std::vector<std::string>{"host operators"});
}

namespace {

/// Per step: work, then .item() of 2 ms that ends at 4 ms, then a gap of `gap_us`, then work.
Scene item_in_loop(double gap_us, long long bytes = 4) {
  Scene scene;
  for (int i = 0; i < 3; ++i) {
    const double t = 1000 + i * 10000.0;
    scene.step(5 + i, t, 10000);
    scene.op("aten::mm", t, 20).kernel("gemm", t + 5, t + 10, 3980);
    scene.op("aten::item", t + 2000, 2005).op("aten::_local_scalar_dense", t + 2001, 2003);
    scene.copy("Memcpy DtoH (Device -> Pageable)", t + 2002, 10, t + 3990, 2, bytes);
    scene.call("cudaStreamSynchronize", t + 2013, 1985);
    const double next = t + 3992 + gap_us;
    scene.op("aten::mm", next - 10, 8).kernel("gemm", next - 8, next, t + 9990 - next);
  }
  return scene;
}

}  // namespace

TEST_CASE("item() in the loop costs the idle time until the queue is filled again", "[detect]") {
  const Finding finding = item_in_loop(400).judge("host_sync_in_loop");
  CHECK(finding.verdict == Verdict::kPresent);
  // Copy to next kernel, and the idle around the synchronisation itself.
  CHECK(finding.cost_ns >= 3 * 400'000);
  CHECK(finding.cost_ns <= 3 * 420'000);
  CHECK(fact(finding, "syncs") == "3");
  CHECK(fact(finding, "per step") == "1");
  CHECK(fact(finding, "operations") == "aten::item");
}

TEST_CASE("what looks like host_sync_in_loop and is not", "[detect]") {
  SECTION("the GPU has its next work at once") {
    CHECK(item_in_loop(10).judge("host_sync_in_loop").verdict == Verdict::kAbsent);
  }
  SECTION("item() of a CPU tensor copies and waits for nothing") {
    Scene scene = three_steps(9000);
    for (int i = 0; i < 3; ++i) scene.op("aten::item", 1100 + i * 10000.0, 500);
    CHECK(scene.judge("host_sync_in_loop").verdict == Verdict::kAbsent);
  }
  SECTION("one read in the whole trace is no loop") {
    Scene scene = three_steps(6000);
    scene.op("aten::item", 1000, 3000);
    scene.copy("Memcpy DtoH (Device -> Pageable)", 1002, 10, 1010, 2, 4);
    scene.call("cudaStreamSynchronize", 1013, 2900);
    CHECK(scene.judge("host_sync_in_loop").verdict == Verdict::kAbsent);
  }
  SECTION("large results are high_memcpy's") {
    CHECK(item_in_loop(400, 10 << 20).judge("host_sync_in_loop").verdict == Verdict::kAbsent);
  }
}

TEST_CASE("a small read has 64 KiB at most, and what takes more than 1 ms behind it is no refill",
          "[detect]") {
  CHECK(item_in_loop(400, 65'536).judge("host_sync_in_loop").verdict == Verdict::kPresent);
  CHECK(item_in_loop(400, 65'537).judge("host_sync_in_loop").verdict == Verdict::kAbsent);
  CHECK(item_in_loop(990).judge("host_sync_in_loop").cost_ns >= 3 * 990'000);
  CHECK(item_in_loop(2500).judge("host_sync_in_loop").cost_ns <= 3 * 20'000);
  CHECK(item_in_loop(2500).judge("host_silence").cost_ns >= 3 * 2'470'000);
}

namespace {

/// Per step: 4 ms of work, .item() of 2 ms that ends with it, and eight kernels of 50 us, of which
/// each is launched 50 us after the one before has ended. `between` calls something behind four of
/// them.
Scene late_behind_item(const std::string& between, double wait_us = 2000) {
  Scene scene;
  for (int i = 0; i < 3; ++i) {
    const double t = 1000 + i * 10000.0;
    scene.step(5 + i, t, 10000);
    scene.op("aten::mm", t, 20).kernel("gemm", t + 5, t + 10, 3980);
    const double begin = t + 4000 - wait_us;
    scene.op("aten::item", begin, wait_us + 5);
    scene.copy("Memcpy DtoH (Device -> Pageable)", begin + 2, 10, t + 3990, 2, 4);
    scene.call("cudaStreamSynchronize", begin + 13, wait_us - 15);
    for (int k = 0; k < 8; ++k) {
      const double start = t + 4050 + 100 * k;
      scene.op("aten::mul", start - 15, 12).kernel("mul", start - 10, start, 50);
      if (k == 3 && !between.empty()) scene.call(between, start + 10, 45);
    }
    scene.op("aten::mm", t + 4800, 20).kernel("gemm", t + 4805, t + 4850, 5100);
  }
  return scene;
}

}  // namespace

TEST_CASE("what a read makes late counts as long as the lead that it took", "[detect]") {
  // Eight gaps of 50 us and the first of 58, each step's 60 us before the first kernel but once.
  const std::int64_t all_ns = late_behind_item("").judge("host_sync_in_loop").cost_ns;
  CHECK(all_ns >= 3 * 450'000);
  CHECK(all_ns <= 3 * 530'000);
  // Nobody else waits in between, and the call was long enough for all of the gaps.
  CHECK(late_behind_item("", 250).judge("host_sync_in_loop").cost_ns <= 3 * 250'000);
  // A wait of the program's own ends it: what is late behind that is not the read's.
  const std::int64_t half_ns =
      late_behind_item("cudaDeviceSynchronize").judge("host_sync_in_loop").cost_ns;
  CHECK(half_ns >= 3 * 200'000);
  CHECK(half_ns <= 3 * 290'000);
}

namespace {

Scene synchronize_in_loop(double gap_us, const std::string& around) {
  Scene scene;
  for (int i = 0; i < 3; ++i) {
    const double t = 1000 + i * 10000.0;
    scene.step(5 + i, t, 10000);
    scene.op("aten::mm", t, 20).kernel("gemm", t + 5, t + 10, 3980);
    if (!around.empty()) scene.op(around, t + 1999, 2002);
    scene.call("cudaDeviceSynchronize", t + 2000, 2000);
    const double next = t + 4000 + gap_us;
    scene.op("aten::mm", next - 10, 8).kernel("gemm", next - 8, next, t + 9990 - next);
  }
  return scene;
}

}  // namespace

TEST_CASE("torch.cuda.synchronize() in the loop is found", "[detect]") {
  const Finding finding = synchronize_in_loop(500, "").judge("explicit_synchronize");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.cost_ns >= 3 * 500'000);
  CHECK(finding.cost_ns <= 3 * 530'000);  // with the gaps between the steps: lost lead
  CHECK(fact(finding, "calls") == "3");
}

TEST_CASE("a wait for a GPU that has nothing to do costs its own time", "[detect]") {
  Scene scene;
  for (int i = 0; i < 3; ++i) {
    const double t = 1000 + i * 10000.0;
    scene.step(5 + i, t, 10000).op("aten::mm", t + 10, 20).kernel("gemm", t + 20, t + 30, 2000);
    scene.call("cudaDeviceSynchronize", t + 5000, 10);  // then the host goes on for 40 us
    scene.op("aten::mm", t + 5050, 20).kernel("gemm", t + 5055, t + 5060, 2000);
  }
  const Finding finding = scene.judge("explicit_synchronize");
  CHECK(finding.cost_ns <= 3 * 10'000);
}

TEST_CASE("waits that the program did not ask for are not explicit", "[detect]") {
  SECTION("inside an operator") {
    CHECK(synchronize_in_loop(500, "aten::nonzero").judge("explicit_synchronize").verdict ==
          Verdict::kAbsent);
  }
  SECTION("the profiler's own, before the first and behind the last kernel") {
    Scene scene;
    scene.step(5, 1000, 20000).call("cudaDeviceSynchronize", 1000, 4000);
    scene.op("aten::mm", 5100, 20).kernel("gemm", 5105, 5110, 8000);
    scene.call("cudaDeviceSynchronize", 6000, 12000);
    CHECK(scene.judge("explicit_synchronize").verdict == Verdict::kAbsent);
  }
  SECTION("on a thread that launches nothing") {
    Scene scene = three_steps(6000);
    scene.text().complete("cuda_runtime", "cudaEventSynchronize", 12000, 3000, 1, "99");
    CHECK(scene.judge("explicit_synchronize").verdict == Verdict::kAbsent);
  }
  SECTION("the queue was filled far enough") {
    Scene scene = synchronize_in_loop(0, "");
    CHECK(scene.judge("explicit_synchronize").verdict == Verdict::kAbsent);
  }
}

namespace {

/// Three steps; in each a call of `dur` before the kernel, with the GPU idle.
Scene calls_in_steps(const std::string& name, double dur, int first_number, int from_step) {
  Scene scene;
  for (int i = 0; i < 3; ++i) {
    const double t = 1000 + i * 10000.0;
    scene.step(first_number + i, t, 10000);
    double at = t + 10;
    if (i >= from_step) {
      scene.op("aten::empty", at, dur + 2).call(name, at + 1, dur);
      at += dur + 2;
    }
    scene.op("aten::mm", at + 5, 20).kernel("gemm", at + 10, at + 20, t + 9990 - (at + 20));
  }
  return scene;
}

}  // namespace

TEST_CASE("cudaMalloc in steady steps is allocator thrash", "[detect]") {
  const Finding finding = calls_in_steps("cudaMalloc", 800, 5, 0).judge("allocator_thrash");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(fact(finding, "mallocs") == "3");
  CHECK(finding.cost_ns >= 2 * 800'000);  // before the first kernel nothing is recorded
  CHECK(finding.cost_ns <= 2 * 860'000);  // with the gaps between the steps: lost lead
}

namespace {

/// No steps: `rounds` of an allocation of 1 ms and 10 kernels, with names that repeat or do not.
Scene rounds_without_steps(int rounds, bool repeat) {
  Scene scene;
  for (int i = 0; i < rounds; ++i) {
    const double t = i * 5000.0;
    scene.op("aten::empty", t, 1002).call("cudaMalloc", t + 1, 1000);
    for (int k = 0; k < 10; ++k) {
      const std::string name = "kernel_" + std::to_string(repeat ? k : i * 10 + k);
      scene.kernel(name, t + 1010 + k * 10.0, t + 1020 + k * 390.0, 390);
    }
  }
  return scene;
}

}  // namespace

TEST_CASE("without steps a loop tells thrash from growth", "[detect]") {
  const Finding loop = rounds_without_steps(10, true).judge("allocator_thrash");
  CHECK(loop.verdict == Verdict::kPresent);
  CHECK(fact(loop, "mallocs") == "9");  // the first one is before the loop has shown itself
  CHECK(loop.confidence < 0.9);
  const Finding once = rounds_without_steps(10, false).judge("allocator_thrash");
  CHECK(once.verdict == Verdict::kUnknown);
  CHECK(rounds_without_steps(10, false).judge("cold_start").verdict == Verdict::kPresent);
  CHECK(rounds_without_steps(10, true).judge("cold_start").cost_ns == 1'000'000);
}

TEST_CASE("allocation that does not hurt is no thrash", "[detect]") {
  SECTION("in the first steps of the program") {
    Scene scene = calls_in_steps("cudaMalloc", 50, 0, 3);
    scene.call("cudaMalloc", 1011, 1);
    CHECK(scene.judge("allocator_thrash").verdict == Verdict::kAbsent);
  }
  SECTION("while the GPU works through its queue") {
    Scene scene = three_steps(9900);
    for (int i = 0; i < 3; ++i) scene.call("cudaMalloc", 3000 + i * 10000.0, 2000);
    CHECK(scene.judge("allocator_thrash").verdict == Verdict::kAbsent);
  }
}

TEST_CASE("growth of the pool in the first step is a cold start", "[detect]") {
  Scene scene = calls_in_steps("cudaMalloc", 50, 0, 3);
  scene.op("aten::empty", 1011, 0.5);
  Scene cold;
  cold.step(0, 1000, 10000).step(1, 11000, 10000);
  cold.op("aten::empty", 1010, 3002).call("cudaMalloc", 1011, 3000);
  cold.op("aten::mm", 4020, 20).kernel("gemm", 4025, 4030, 6960);
  cold.op("aten::mm", 11010, 20).kernel("gemm", 11015, 11020, 9900);
  const Finding finding = cold.judge("cold_start");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.cost_ns == 3'000'000);
  CHECK(fact(finding, "kinds") == "allocation of memory");
  CHECK(cold.judge("allocator_thrash").verdict == Verdict::kAbsent);
}

TEST_CASE("the slow first launch of a kernel and module loading are a cold start", "[detect]") {
  Scene scene;
  scene.op("aten::mm", 0, 3000).kernel("gemm", 5, 3010, 1000, 2990);
  scene.op("aten::mm", 4100, 20).kernel("gemm", 4105, 4110, 4000);
  scene.call("cuLibraryLoadData", 8200, 1500);
  scene.op("aten::add", 9710, 20).kernel("add", 9715, 9720, 3000);
  const Finding finding = scene.judge("cold_start");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(fact(finding, "kinds") == "first launches of kernels, loading of modules");
  // To the start of the work: what the device takes behind such a call has its cause.
  CHECK(finding.cost_ns == 3'005'000 + 1'500'000);
}

TEST_CASE("the first call of the runtime starts the context: a cold start", "[detect]") {
  const auto scene = [](double first_us) {
    Scene made;
    made.op("aten::empty", 0, first_us + 10).call("cudaStreamIsCapturing", 5, first_us);
    const double at = first_us + 20;
    made.op("aten::mm", at, 20).kernel("gemm", at + 5, at + 10, 6000);
    return made;
  };
  const Finding finding = scene(20'000).judge("cold_start");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(fact(finding, "kinds") == "first calls of the runtime");
  CHECK(finding.cost_ns == 20'000'000);
  CHECK(finding.evidence.size() == 1);
  SECTION("short ones are none") { CHECK(scene(900).judge("cold_start").cost_ns == 0); }
  SECTION("nor is a later call of the name") {
    Scene later = scene(10);
    later.op("aten::empty", 6100, 9000).call("cudaStreamIsCapturing", 6105, 8900);
    later.op("aten::mm", 15'200, 20).kernel("gemm", 15'205, 15'210, 6000);
    CHECK(later.judge("cold_start").cost_ns == 0);
  }
}

TEST_CASE("a first launch is slow from 1 ms upwards", "[detect]") {
  const auto verdict = [](double launch_us) {
    Scene scene;
    scene.op("aten::mm", 0, 1200).kernel("gemm", 5, 1210, 1000, launch_us);
    return scene.judge("cold_start").verdict;
  };
  CHECK(verdict(1000) == Verdict::kPresent);
  CHECK(verdict(999) == Verdict::kAbsent);
}

TEST_CASE("what looks like a cold start and is not", "[detect]") {
  SECTION("a launch is slow because the queue is full: the GPU works") {
    Scene scene;
    scene.op("aten::mm", 0, 20).kernel("gemm", 5, 10, 9000);
    scene.op("aten::add", 30, 5000).kernel("add", 35, 9011, 100, 4900);
    CHECK(scene.judge("cold_start").verdict == Verdict::kAbsent);
  }
  SECTION("a later launch of the same kernel is slow") {
    Scene scene;
    scene.op("aten::mm", 0, 20).kernel("gemm", 5, 10, 900);
    scene.op("aten::mm", 1000, 5000).kernel("gemm", 1005, 6000, 900, 4900);
    CHECK(scene.judge("cold_start").verdict == Verdict::kAbsent);
  }
  SECTION("allocation in a step that comes after others") {
    CHECK(calls_in_steps("cudaMalloc", 800, 5, 0).judge("cold_start").verdict == Verdict::kAbsent);
  }
}

namespace {

Scene compile_at(int first_number, int in_step, double dur) {
  Scene scene;
  for (int i = 0; i < 3; ++i) {
    const double t = 1000 + i * 10000.0;
    scene.step(first_number + i, t, 10000);
    double at = t + 10;
    if (i == in_step) {
      scene.range("_compile.compile_inner (dynamo_timed)", at, dur);
      scene.range("inductor_compile (dynamo_timed)", at + 10, dur - 20);
      at += dur;
    }
    scene.op("Torch-Compiled Region: 0/0", at + 2, 30);
    scene.op("CompiledFunction", at + 3, 28)
        .kernel("triton_poi_fused_0", at + 10, at + 20, t + 9990 - (at + 20));
  }
  return scene;
}

}  // namespace

TEST_CASE("compilation in a late step is a recompilation", "[detect]") {
  const Finding finding = compile_at(5, 1, 4000).judge("recompilation");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.cost_ns == 4'000'000);
  CHECK(fact(finding, "compilations") == "1");  // the inner phase is part of the outer one
  CHECK(compile_at(5, 1, 4000).judge("cold_start").verdict == Verdict::kAbsent);
}

TEST_CASE("compilation in the first step is a cold start, not a recompilation", "[detect]") {
  CHECK(compile_at(0, 0, 4000).judge("recompilation").verdict == Verdict::kAbsent);
  CHECK(compile_at(0, 0, 4000).judge("cold_start").verdict == Verdict::kPresent);
}

TEST_CASE("calls of compiled code and guard checks are no recompilation", "[detect]") {
  Scene scene = three_steps(6000);
  for (int i = 0; i < 3; ++i) {
    scene.op("TorchDynamo Cache Lookup", 1010 + i * 10000.0, 3000);
    scene.op("Torch-Compiled Region: 0/1", 4020 + i * 10000.0, 500);
  }
  const Finding finding = scene.judge("recompilation");
  CHECK(finding.verdict == Verdict::kAbsent);
  CHECK(finding.confidence < 0.9);
}

TEST_CASE("without steps a region that already ran makes compilation a recompilation", "[detect]") {
  const auto trace = [](bool region_first) {
    Scene scene;
    if (region_first) scene.op("Torch-Compiled Region: 0/0", 0, 40);
    scene.op("aten::mm", 50, 20).kernel("gemm", 55, 60, 40);
    scene.range("entire_frame_compile (dynamo_timed)", 110, 4000);
    scene.op("aten::mm", 4120, 20).kernel("gemm", 4125, 4130, 4000);
    return scene.judge("recompilation").verdict;
  };
  CHECK(trace(true) == Verdict::kPresent);
  CHECK(trace(false) == Verdict::kAbsent);
}

namespace {

/// A copy from `memory` with or without a synchronise call; then `gap_us` until the next kernel.
Scene upload(const std::string& name, bool synchronise, double gap_us) {
  Scene scene;
  for (int i = 0; i < 3; ++i) {
    const double t = 1000 + i * 10000.0;
    scene.step(5 + i, t, 10000);
    scene.op("aten::to", t, 1010).op("aten::copy_", t + 1, 1008);
    scene.copy(name, t + 2, 8, t + 12, 900, 10'000'000);
    if (synchronise) scene.call("cudaStreamSynchronize", t + 11, 905);
    const double next = t + 912 + gap_us;
    scene.op("aten::mm", next - 8, 6).kernel("gemm", next - 6, next, t + 9990 - next);
  }
  return scene;
}

}  // namespace

TEST_CASE("a synchronised copy from pinned memory is a blocking copy", "[detect]") {
  const Finding finding =
      upload("Memcpy HtoD (Pinned -> Device)", true, 700).judge("blocking_copy");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.cost_ns >= 3 * 700'000);
  CHECK(fact(finding, "copies") == "3");
  CHECK(fact(finding, "bytes") == "30000000");
}

TEST_CASE("other uploads are no blocking copies", "[detect]") {
  CHECK(upload("Memcpy HtoD (Pinned -> Device)", false, 700).judge("blocking_copy").verdict ==
        Verdict::kAbsent);
  CHECK(upload("Memcpy HtoD (Pageable -> Device)", true, 700).judge("blocking_copy").verdict ==
        Verdict::kAbsent);
}

TEST_CASE("a blocking copy costs its own time where the queue is refilled at once", "[detect]") {
  const Finding slow = upload("Memcpy HtoD (Pinned -> Device)", true, 700).judge("blocking_copy");
  const Finding quick = upload("Memcpy HtoD (Pinned -> Device)", true, 20).judge("blocking_copy");
  CHECK(quick.verdict == Verdict::kPresent);
  CHECK(slow.cost_ns - quick.cost_ns == 3 * 680'000);
}

TEST_CASE("a copy that does not name its memory leaves blocking_copy unknown", "[detect]") {
  const Finding finding = upload("CopyHostToDevice", true, 700).judge("blocking_copy");
  CHECK(finding.verdict == Verdict::kUnknown);
  CHECK(finding.missing_signals.size() == 1);
}

TEST_CASE("DDP's search for unused parameters is found by its range", "[detect]") {
  Scene scene = three_steps(6000);
  for (int i = 0; i < 3; ++i) {
    scene.op("torch.distributed.ddp.reducer::search_unused_parameters", 1010 + i * 10000.0, 1500);
  }
  const Finding finding = scene.judge("find_unused_parameters");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.cost_ns == 3 * 1'500'000);
}

TEST_CASE("DDP without the search, or with it behind a full queue, is fine", "[detect]") {
  Scene plain = three_steps(6000);
  plain.range("DistributedDataParallel.forward", 1010, 1500);
  CHECK(plain.judge("find_unused_parameters").verdict == Verdict::kAbsent);
  Scene hidden = three_steps(9900);
  for (int i = 0; i < 3; ++i) {
    hidden.op("torch.distributed.ddp.reducer::search_unused_parameters", 2000 + i * 10000.0, 1500);
  }
  CHECK(hidden.judge("find_unused_parameters").verdict == Verdict::kAbsent);
}

namespace {

Scene silent_loop(const std::string& range, double silence_us, bool as_operator) {
  Scene scene;
  for (int i = 0; i < 3; ++i) {
    const double t = 1000 + i * 50000.0;
    scene.step(5 + i, t, 50000);
    if (!range.empty()) {
      if (as_operator) {
        scene.op(range, t + 1, silence_us);
      } else {
        scene.range(range, t + 1, silence_us);
      }
    }
    const double next = t + silence_us + 20;
    scene.op("aten::mm", next - 15, 14).kernel("gemm", next - 10, next, t + 49990 - next);
  }
  return scene;
}

}  // namespace

TEST_CASE("a host that does nothing for long while the GPU idles is silent", "[detect]") {
  const Finding finding = silent_loop("", 20000, false).judge("host_silence");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(fact(finding, "gaps") == "2");       // what came before the first kernel is not in the file
  CHECK(finding.cost_ns == 2 * 20'030'000);  // with the launch behind it: lost lead
}

namespace {

/// Three steps in which the GPU has work for `queued_us` more when a silence of 20 ms begins.
/// Behind it the host needs 300 us for each of ten launches of 100 us of work.
Finding silence_with_queue(double queued_us) {
  Scene scene;
  for (int i = 0; i < 3; ++i) {
    const double t = 1000 + i * 23'000.0;
    scene.step(5 + i, t, 23'000);
    scene.op("aten::mm", t, 20).kernel("gemm", t + 5, t + 20, queued_us);
    for (int j = 0; j < 10; ++j) {
      const double next = t + 20'020 + 300.0 * j;
      scene.op("aten::mm", next, 20).kernel("gemm", next + 5, next + 20, 100);
    }
  }
  return scene.judge("host_silence");
}

}  // namespace

TEST_CASE("a silence costs the host its lead, too", "[detect]") {
  // 5 ms are hidden. The 200 us before each later launch would have been gained on that time.
  const Finding finding = silence_with_queue(5'000);
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(fact(finding, "gaps") == "3");
  CHECK(finding.cost_ns > 3 * (15'000'000 + 9 * 200'000) - 200'000);
  CHECK(finding.cost_ns < 3 * 20'000'000);
  // All of it is hidden: nobody waits for the silence.
  CHECK(silence_with_queue(20'100).verdict == Verdict::kAbsent);
}

TEST_CASE("silence names the Python frame around it", "[detect]") {
  Scene scene = silent_loop("", 20000, false);
  for (int i = 0; i < 3; ++i)
    scene.python("train.py(7): save_checkpoint", 1005 + i * 50000.0, 19990);
  CHECK(fact(scene.judge("host_silence"), "frame") == "train.py(7): save_checkpoint");
}

TEST_CASE("an annotation around silence does not make it work", "[detect]") {
  const Finding finding = silent_loop("my_validation", 20000, false).judge("host_silence");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(fact(finding, "range") == "my_validation");
}

TEST_CASE("silence asks for Python frames only where none are recorded", "[detect]") {
  const Scene bare = silent_loop("", 20000, false);
  CHECK(bare.judge("host_silence").missing_signals ==
        std::vector<std::string>{"Python frames (with_stack)"});
  Scene framed = bare;
  framed.python("train.py(3): loop", 900, 160'000);
  CHECK(framed.judge("host_silence").missing_signals.empty());
}

namespace {

/// An operator of 20 ms that says nothing of itself but what it launches at its end.
Scene quiet_operator(const std::string& name, bool with_annotations) {
  Scene scene;
  for (int i = 0; i < 3; ++i) {
    const double t = 1000 + i * 50000.0;
    if (with_annotations) scene.step(5 + i, t, 50000);
    scene.op(name, t + 1, 20'020);
    scene.op("aten::mm", t + 20'005, 14).kernel("gemm", t + 20'008, t + 20'020, 29'000);
  }
  return scene;
}

}  // namespace

TEST_CASE("an operator's time is no silence, whatever it is called", "[detect]") {
  CHECK(quiet_operator("FlashAttnFunc", true).judge("host_silence").verdict == Verdict::kAbsent);
  CHECK(quiet_operator("CompiledFunction", true).judge("host_silence").verdict == Verdict::kAbsent);
  // Before annotations had a category of their own they were written as operators.
  CHECK(quiet_operator("## forward ##", false).judge("host_silence").verdict == Verdict::kPresent);
}

TEST_CASE("what looks like silence and is not", "[detect]") {
  CHECK(silent_loop(kMultiFetch, 20000, false).judge("host_silence").verdict == Verdict::kAbsent);
  CHECK(silent_loop("aten::sort", 20000, true).judge("host_silence").verdict == Verdict::kAbsent);
  CHECK(
      silent_loop("inductor_compile (dynamo_timed)", 20000, false).judge("host_silence").verdict ==
      Verdict::kAbsent);
}

TEST_CASE("silence between steps counts from 10 ms upwards", "[detect]") {
  const auto verdict = [](double silence_us) {
    Scene scene = silent_loop("", silence_us, false);
    for (int i = 0; i < 3; ++i) scene.op("aten::add", 50'975 + i * 50'000.0, 20);
    return scene.judge("host_silence").verdict;
  };
  CHECK(verdict(9'990) == Verdict::kPresent);
  CHECK(verdict(9'980) == Verdict::kAbsent);
  // Without the operator at the end of the step the GPU hides most of a longer silence.
  CHECK(silent_loop("", 8'000, false).judge("host_silence").verdict == Verdict::kPresent);
}

namespace {

/// Five steps of 50 ms with 1 ms of work, a silence, and work to the end of the step.
Scene pause_in_step(double silence_us, bool with_frames = false) {
  Scene scene;
  for (int i = 0; i < 5; ++i) {
    const double t = 1000 + i * 50'000.0;
    scene.step(5 + i, t, 50'000);
    scene.op("aten::mm", t + 5, 20).kernel("gemm", t + 10, t + 20, 980);
    const double next = t + 40 + silence_us;
    if (with_frames) scene.python("train.py(7): update", t + 30, silence_us);
    scene.op("aten::mm", next - 15, 20).kernel("gemm", next - 10, next, t + 49'990 - next);
  }
  return scene;
}

}  // namespace

TEST_CASE("silence inside of a step counts from a tenth of it upwards", "[detect]") {
  const Finding finding = pause_in_step(5'500).judge("host_silence");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(fact(finding, "gaps") == "5");
  CHECK(pause_in_step(5'500).judge("cpu_bound").verdict == Verdict::kAbsent);
  CHECK(pause_in_step(4'500).judge("host_silence").verdict == Verdict::kAbsent);
  CHECK(pause_in_step(4'500).judge("cpu_bound").verdict == Verdict::kPresent);
  // Python at work has a name, which cpu_bound tells.
  CHECK(pause_in_step(5'500, true).judge("host_silence").verdict == Verdict::kAbsent);
  CHECK(pause_in_step(5'500, true).judge("cpu_bound").verdict == Verdict::kPresent);
  CHECK(pause_in_step(12'000, true).judge("host_silence").verdict == Verdict::kPresent);
}

namespace {

/// A kernel, 20 ms without operators, and a kernel of 20 ms behind it; `more` adds to them.
template <class More>
Finding judge_silence(More&& more, double silence_us = 20'000, double dur_us = 20'000) {
  Scene scene;
  scene.op("aten::mm", 0, 20).kernel("gemm", 5, 20, 1'000);
  const double next = 1'020 + silence_us;
  scene.op("aten::mm", next - 15, 14).kernel("gemm", next - 10, next, dur_us);
  more(scene, next + dur_us);
  return scene.judge("host_silence");
}

}  // namespace

TEST_CASE("silence at the ends of a trace is nobody's", "[detect]") {
  const auto nothing = [](Scene&, double) {};
  CHECK(judge_silence(nothing).cost_ns == 20'000'000);  // with the launch behind it: lost lead
  const auto op_at = [](double offset) {
    return [offset](Scene& scene, double end) {
      const double at = offset < 0 ? offset : end + offset;
      scene.range("whole run", std::min(at, 0.0), std::max(end, at + 20) - std::min(at, 0.0));
      scene.op("aten::add", at, 20);
    };
  };
  CHECK(judge_silence(op_at(-60'000)).cost_ns == 20'000'000);
  CHECK(judge_silence(op_at(60'000)).cost_ns == 20'000'000);
  const auto orphan = [](Scene& scene, double end) {
    scene.op("aten::add", end + 40'000, 20);
    scene.text().gpu("kernel", "gemm", end + 40'010, 100, 9, 9'000);
  };
  CHECK(judge_silence(orphan).cost_ns == 20'000'000);
}

TEST_CASE("work that was queued before the silence waits for something else", "[detect]") {
  // The kernel behind a collective of another stream.
  Scene scene;
  scene.op("aten::mm", 0, 20).kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 5, 20, 1'000);
  scene.op("aten::mm", 30, 20);
  scene.text().launch("gemm", 35, 5, 21'000, 20'000, 8, 9'000);
  scene.op("aten::add", 30'000, 20);
  CHECK(scene.judge("host_silence").verdict == Verdict::kAbsent);
}

TEST_CASE("loaders and compilers on any thread break the silence", "[detect]") {
  for (const char* name : {"enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
                           "inductor_compile (dynamo_timed)"}) {
    INFO(name);
    const auto beside = [&](Scene& scene, double) {
      scene.text().complete("user_annotation", name, 1'000, 20'000, 1, "5");
    };
    CHECK(judge_silence(beside).verdict == Verdict::kAbsent);
  }
}

TEST_CASE("without launch calls silence is open where it matters", "[detect]") {
  const auto verdict = [](double silence_us, double dur_us) {
    TraceText text;
    text.host("cpu_op", "aten::mm", 0, 20).gpu("kernel", "gemm", 20, 1'000, 7, 1);
    const double next = 1'020 + silence_us;
    text.host("cpu_op", "aten::mm", next - 15, 14).gpu("kernel", "gemm", next, dur_us, 7, 2);
    return judge("host_silence", text).verdict;
  };
  CHECK(verdict(20'000, 20'000) == Verdict::kUnknown);
  CHECK(verdict(1'000, 20'000) == Verdict::kAbsent);  // below a tenth of the recording
  CHECK(verdict(20'000, 2'000'000) == Verdict::kAbsent);
}
