#include "rule_case.hpp"
#include "scene.hpp"

using namespace traceap;

namespace {

constexpr const char* kPageable = "Memcpy HtoD (Pageable -> Device)";
constexpr const char* kPinned = "Memcpy HtoD (Pinned -> Device)";

/// A step of 10 ms with `count` uploads, one every 100 us: the call and the wait behind it hold the
/// host for 30 us in which the GPU idles but for the copy of 2 us; then a kernel of 60 us runs.
void add_step(Scene& scene, int number, int count, long long bytes, const char* name = kPageable,
              bool blocking = true) {
  const double start = number * 10'000.0;
  scene.step(number, start, 10'000);
  for (int i = 0; i < 95; ++i) {
    const double t = start + 100.0 * i;
    if (i < count) {
      scene.op("aten::to", t, 32).op("aten::copy_", t + 1, 30);
      scene.copy(name, t + 1, 10, t + 8, 2, bytes);
      if (blocking) scene.call("cudaStreamSynchronize", t + 12, 18);
    }
    scene.op("aten::mul", t + 33, 6)
        .kernel("vectorized_elementwise_kernel<4>", t + 34, t + 38, 60, 2);
  }
}

Scene steps(int number_of_steps, int count, long long bytes, const char* name = kPageable) {
  Scene scene;
  for (int i = 0; i < number_of_steps; ++i) add_step(scene, 3 + i, count, bytes, name);
  return scene;
}

}  // namespace

TEST_CASE("dozens of small constants in every step are small copies, and no pinning problem",
          "[detect][small_copies]") {
  const Scene scene = steps(3, 90, 2'000);
  const Finding finding = scene.judge("small_copies");
  CHECK(finding.verdict == Verdict::kPresent);
  // The copy and the idle time up to the next kernel: 38 us of each, less what runs before the
  // call. What the first call waits for, 7 us long, is not in the file.
  CHECK(finding.cost_ns == 3 * 90 * 37'000 - 7'000);
  CHECK(finding.evidence_count == 270);
  CHECK(fact(finding, "copies") == "270");
  CHECK(fact(finding, "per step") == "90");
  CHECK(fact(finding, "bytes") == "540000");
  CHECK(fact(finding, "operations") == "aten::to");
  CHECK(scene.judge("no_memory_pin").verdict == Verdict::kAbsent);  // 540 kB, but constants
  CHECK(scene.judge("blocking_copy").verdict == Verdict::kAbsent);
}

namespace {

/// Three steps that begin with so many uploads, one every 100 us as above.
Finding at_once(int count) {
  Scene scene;
  for (int step = 0; step < 3; ++step) {
    const double start = step * 10'000.0;
    scene.step(3 + step, start, 10'000);
    for (int i = 0; i < count; ++i) {
      const double t = start + 100.0 * i;
      scene.op("aten::to", t, 32).copy(kPageable, t + 1, 10, t + 8, 2, 2'000);
      scene.call("cudaStreamSynchronize", t + 12, 18);
    }
    scene.op("aten::mm", start + 9'000, 6).kernel("gemm", start + 9'001, start + 9'005, 900);
  }
  return scene.judge("small_copies");
}

/// Three steps with `groups` uploads of one number, each behind a kernel that it waits for; behind
/// every `each` of them the backward pass runs. The first `with_large` come with a large one.
Finding in_groups(int groups, int each, int with_large = 0) {
  Scene scene;
  for (int step = 0; step < 3; ++step) {
    const double start = step * 10'000.0;
    scene.step(3 + step, start, 10'000);
    for (int i = 0; i < groups; ++i) {
      const double t = start + 400.0 * i;
      scene.op("aten::mul", t, 6).kernel("vectorized_elementwise_kernel<4>", t + 1, t + 5, 40, 2);
      scene.op("aten::to", t + 10, 48).copy(kPageable, t + 12, 10, t + 48, 2, 4);
      scene.call("cudaStreamSynchronize", t + 24, 32);
      if (i < with_large) scene.copy(kPageable, t + 60, 30, t + 62, 25, 1 << 20);
      if ((i + 1) % each != 0) continue;
      scene.op("autograd::engine::evaluate_function: MulBackward0", t + 100, 20);
      scene.op("aten::mul", t + 102, 16).kernel("backward_kernel", t + 104, t + 110, 40);
    }
  }
  return scene.judge("small_copies");
}

}  // namespace

TEST_CASE("a few constants made on the way through a model are no batch",
          "[detect][small_copies]") {
  CHECK(in_groups(8, 8).verdict == Verdict::kPresent);
  CHECK(in_groups(8, 8).evidence_count == 24);
  CHECK(in_groups(7, 7).verdict == Verdict::kAbsent);
  CHECK(in_groups(7, 7).evidence_count == 0);
  CHECK(in_groups(20, 4).evidence_count == 0);  // five microbatches, in four parts each
  CHECK(in_groups(24, 12).evidence_count == 72);
  CHECK(in_groups(8, 8, 1).evidence_count == 0);  // a layer with its bias
  CHECK(in_groups(9, 9, 1).evidence_count == 27);
}

namespace {

/// Three steps with `groups` of `each` uploads, kernels between groups.
Finding in_bursts(int groups, int each) {
  Scene scene;
  for (int step = 0; step < 3; ++step) {
    const double start = step * 10'000.0;
    scene.step(3 + step, start, 10'000);
    for (int i = 0; i < groups; ++i) {
      const double t = start + 1'000.0 * i;
      scene.op("aten::mul", t, 6).kernel("vectorized_elementwise_kernel<4>", t + 1, t + 5, 40, 2);
      for (int j = 0; j < each; ++j) {
        const double at = t + 60 + 60.0 * j;
        scene.op("aten::to", at, 48).copy(kPageable, at + 2, 10, at + 38, 2, 4);
        scene.call("cudaStreamSynchronize", at + 14, 32);
      }
    }
    scene.op("aten::mul", start + 9'000, 6).kernel("gemm", start + 9'001, start + 9'005, 40, 2);
  }
  return scene.judge("small_copies");
}

}  // namespace

TEST_CASE("uploads behind the first group of a pass are made on the way",
          "[detect][small_copies]") {
  CHECK(in_bursts(2, 7).verdict == Verdict::kPresent);
  CHECK(in_bursts(2, 7).evidence_count == 42);
  CHECK(in_bursts(3, 4).evidence_count == 36);
  CHECK(in_bursts(2, 6).evidence_count == 0);   // a loss with its targets
  CHECK(in_bursts(1, 14).evidence_count == 0);  // a batch
}

TEST_CASE("how many small copies are too many, and how small", "[detect][small_copies]") {
  CHECK(at_once(64).verdict == Verdict::kPresent);
  CHECK(at_once(63).verdict == Verdict::kAbsent);
  CHECK(steps(3, 90, (64 << 10) - 1).judge("small_copies").verdict == Verdict::kPresent);
  CHECK(steps(3, 90, 64 << 10).judge("small_copies").verdict == Verdict::kAbsent);
  CHECK(steps(3, 90, 64 << 10).judge("no_memory_pin").verdict == Verdict::kPresent);
}

TEST_CASE("a few large uploads are a batch", "[detect][small_copies]") {
  Scene scene;
  for (int i = 0; i < 3; ++i) {
    const double t = 10'000.0 * (3 + i);
    scene.step(3 + i, t, 10'000);
    for (int j = 0; j < 3; ++j) {
      scene.op("aten::to", t + 900.0 * j, 850);
      scene.copy(kPageable, t + 900.0 * j, 800, t + 900.0 * j + 10, 800, 8 << 20);
    }
    scene.op("aten::mm", t + 3'000, 20).kernel("gemm", t + 3'005, t + 3'030, 6'000);
  }
  CHECK(scene.judge("small_copies").verdict == Verdict::kAbsent);
  CHECK(scene.judge("no_memory_pin").verdict == Verdict::kPresent);
}

TEST_CASE("small copies at the start only are a set-up", "[detect][small_copies]") {
  Scene first_step;
  for (int i = 0; i < 4; ++i) add_step(first_step, 3 + i, i == 0 ? 90 : 0, 2'000);
  CHECK(first_step.judge("small_copies").verdict == Verdict::kAbsent);
  Scene model;  // its parameters move one after the other, and then it runs
  for (int i = 0; i < 90; ++i) {
    model.op("aten::to", 20.0 * i, 18).copy(kPageable, 20.0 * i + 1, 10, 20.0 * i + 8, 2, 4'096);
  }
  for (int i = 0; i < 20; ++i) {
    model.op("aten::mm", 1'900 + 20.0 * i, 15)
        .kernel("gemm", 1'902 + 20.0 * i, 1'910 + 20.0 * i, 18);
  }
  CHECK(model.judge("small_copies").verdict == Verdict::kAbsent);
}

TEST_CASE("without steps the kernels between them tell", "[detect][small_copies]") {
  Scene scene;
  for (int i = 0; i < 90; ++i) {
    const double t = 100.0 * i;
    scene.op("aten::to", t, 32).copy(kPageable, t + 1, 10, t + 8, 2, 4'096);
    scene.call("cudaStreamSynchronize", t + 12, 18);
    scene.op("aten::mm", t + 33, 6).kernel("gemm", t + 34, t + 38, 60, 2);
  }
  CHECK(scene.judge("small_copies").verdict == Verdict::kPresent);
}

TEST_CASE("ten groups of uploads with kernels between them are a loop, nine are not",
          "[detect][small_copies]") {
  const auto groups = [](int count) {
    Scene scene;
    for (int i = 0; i < 90; ++i) {
      const double t = 100.0 * i;
      scene.op("aten::to", t, 32).copy(kPageable, t + 1, 10, t + 8, 2, 4'096);
      if (i < count) scene.op("aten::mm", t + 33, 6).kernel("gemm", t + 34, t + 38, 60, 2);
    }
    return scene.judge("small_copies").evidence_count;
  };
  CHECK(groups(9) == 90);  // the tenth group has no kernel behind it
  CHECK(groups(8) == 0);
}

TEST_CASE("values read back and pinned batches are not small copies", "[detect][small_copies]") {
  CHECK(steps(3, 90, 8, "Memcpy DtoH (Device -> Pageable)").judge("small_copies").verdict ==
        Verdict::kAbsent);
  CHECK(steps(3, 90, 2'000, kPinned).judge("small_copies").verdict == Verdict::kAbsent);
  CHECK(steps(3, 90, 2'000, kPinned).judge("blocking_copy").verdict == Verdict::kPresent);
}

TEST_CASE("copies without a size could be small", "[detect][small_copies]") {
  const auto unsized = [](int count) {
    RuleCase t;
    for (int step = 0; step < 2; ++step) {
      t.step(3 + step, 10'000.0 * step, 10'000);
      for (int i = 0; i < count; ++i) {
        const double at = 10'000.0 * step + 100.0 * i;
        const std::string id = R"("correlation":)" + std::to_string(1'000 * (step + 1) + i);
        t.host("cuda_runtime", "cudaMemcpyAsync", at, 10, id);
        t.gpu("gpu_memcpy", kPageable, at + 12, 2, 7, 1'000 * (step + 1) + i);
      }
    }
    return judge("small_copies", t);
  };
  CHECK(unsized(64).missing_signals == std::vector<std::string>{"sizes of the copies"});
  CHECK(unsized(63).verdict == Verdict::kAbsent);
}

TEST_CASE("small copies that hold nobody cost their calls and no stall behind them",
          "[detect][small_copies]") {
  Scene scene;
  for (int i = 0; i < 3; ++i) {
    const double t = 10'000.0 * (3 + i);
    scene.step(3 + i, t, 10'000);
    scene.op("aten::mm", t + 5, 20).kernel("gemm", t + 10, t + 40, 9'900);  // a full queue
    for (int j = 0; j < 90; ++j) {
      scene.op("aten::to", t + 100.0 * j, 15);
      scene.copy(kPageable, t + 100.0 * j + 1, 10, t + 9'945 + 0.5 * j, 0.4, 2'000);
    }
  }
  const Finding finding = scene.judge("small_copies");
  CHECK(finding.verdict == Verdict::kAbsent);
  CHECK(finding.evidence_count == 270);
}
