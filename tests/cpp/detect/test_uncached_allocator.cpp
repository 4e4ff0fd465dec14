#include "scene.hpp"

using namespace traceap;

namespace {

/// 120 operators in three steps: memory, a launch, memory given back, as `take` and `give` call it.
Scene operators(const char* take, const char* give, int every = 1) {
  Scene scene;
  for (int step = 0; step < 3; ++step) {
    scene.step(3 + step, 10'000.0 * step, 10'000);
    for (int i = 0; i < 40; ++i) {
      const double t = 10'000.0 * step + 200.0 * i;
      scene.op("aten::mul", t, 180);
      if (i % every == 0 && take != nullptr) scene.call(take, t + 1, 60);
      scene.kernel("elementwise_kernel", t + 70, t + 76, 30);
      if (i % every == 0 && give != nullptr) scene.call(give, t + 110, 60);
    }
  }
  return scene;
}

}  // namespace

TEST_CASE("a cudaMalloc and a cudaFree for each tensor", "[detect][uncached_allocator]") {
  const Scene scene = operators("cudaMalloc", "cudaFree");
  const Finding finding = scene.judge("uncached_allocator");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(fact(finding, "mallocs") == "120");
  CHECK(fact(finding, "frees") == "120");
  CHECK(fact(finding, "per step") == "80");
  CHECK(finding.cost_ns > 0);
  CHECK(scene.judge("allocator_thrash").verdict == Verdict::kAbsent);  // counted once
}

TEST_CASE("a cache that is emptied in every step is used badly, but it is there",
          "[detect][uncached_allocator]") {
  Scene scene;
  for (int step = 0; step < 3; ++step) {
    scene.step(3 + step, 10'000.0 * step, 10'000);
    for (int i = 0; i < 40; ++i) {
      const double t = 10'000.0 * step + 100.0 * i;
      scene.op("aten::mul", t, 90).call("cudaMalloc", t + 1, 60);
      scene.kernel("elementwise_kernel", t + 70, t + 76, 10);
    }
    for (int i = 0; i < 40; ++i) scene.call("cudaFree", 10'000.0 * step + 5'000 + 70.0 * i, 60);
  }
  CHECK(scene.judge("uncached_allocator").verdict == Verdict::kAbsent);
  CHECK(scene.judge("allocator_thrash").verdict == Verdict::kPresent);
}

TEST_CASE("pools of the driver, pools that grow, and few calls are caches",
          "[detect][uncached_allocator]") {
  CHECK(operators("cudaMallocAsync", "cudaFreeAsync").judge("uncached_allocator").verdict ==
        Verdict::kAbsent);
  CHECK(operators("cudaMalloc", nullptr).judge("uncached_allocator").verdict == Verdict::kAbsent);
  CHECK(operators("cudaMalloc", "cudaFree", 2).judge("uncached_allocator").verdict ==
        Verdict::kAbsent);  // 60 of them
  CHECK(operators(nullptr, nullptr).judge("uncached_allocator").verdict == Verdict::kAbsent);
}

TEST_CASE("calls while the GPU works cost nothing", "[detect][uncached_allocator]") {
  Scene scene = operators("cudaMalloc", "cudaFree");
  scene.text().launch("gemm", 0.2, 0.1, 0.5, 30'000, 8, 9'000);
  CHECK(scene.judge("uncached_allocator").verdict == Verdict::kAbsent);
}

TEST_CASE("a cache that takes much and gives some of it back", "[detect][uncached_allocator]") {
  // `launches` kernels for each cudaMalloc, a cudaFree behind every n-th operator.
  const auto taken = [](int launches, int free_every) {
    Scene scene;
    for (int i = 0; i < 120; ++i) {
      const double t = 1'000.0 * i;
      scene.op("aten::mul", t, 900).call("cudaMalloc", t + 1, 60);
      for (int k = 0; k < launches; ++k) {
        scene.kernel("elementwise_kernel", t + 70 + 40 * k, t + 76 + 40 * k, 20);
      }
      if (i % free_every == 0) scene.call("cudaFree", t + 300, 60);
    }
    return scene.judge("uncached_allocator").verdict;
  };
  CHECK(taken(4, 2) == Verdict::kPresent);
  CHECK(taken(5, 2) == Verdict::kAbsent);
  CHECK(taken(4, 3) == Verdict::kAbsent);
}
