#include "scene.hpp"

using namespace traceap;

namespace {

/// Three steps: `made` takes 400 us on the host (with a kernel of its own if it is on the device),
/// `between` may follow, `moved` copies 4 MiB with a call of 300 us, and a kernel of 1 ms runs.
Scene steps(const std::string& made, const std::string& between, const std::string& moved,
            bool on_device = false, const char* copy = "Memcpy HtoD (Pageable -> Device)") {
  Scene scene;
  for (int i = 0; i < 3; ++i) {
    const double t = 3'000.0 * i;
    scene.step(3 + i, t, 3'000);
    scene.op(made, t, 400);
    if (on_device) scene.kernel("distribution_elementwise_kernel", t + 5, t + 390, 5);
    if (!between.empty()) scene.op(between, t + 401, 5);
    scene.op(moved, t + 410, 310).op("aten::copy_", t + 412, 305);
    scene.copy(copy, t + 414, 300, t + 420, 280, 4 << 20);
    scene.op("aten::mm", t + 730, 20).kernel("gemm", t + 735, t + 750, 1'000);
  }
  return scene;
}

}  // namespace

TEST_CASE("tensors that are filled on the host and then moved", "[detect][created_on_host]") {
  const Finding finding = steps("aten::randn", "", "aten::to").judge("created_on_host");
  CHECK(finding.verdict == Verdict::kPresent);
  // Filling, copying and the way to the next kernel: 740 us of each step less 10 us between them.
  // What lies before the first copy, 406 us, is not in the file.
  CHECK(finding.cost_ns == 3 * 736'000 - 406'000);
  CHECK(fact(finding, "copies") == "3");
  CHECK(fact(finding, "operations") == "aten::randn");
}

TEST_CASE("batches, tensors made on the device, and what is done with a filled one first",
          "[detect][created_on_host]") {
  const auto verdict = [](const Scene& scene) { return scene.judge("created_on_host").verdict; };
  CHECK(verdict(steps("aten::stack", "", "aten::to")) == Verdict::kAbsent);  // collated
  CHECK(verdict(steps("aten::zeros", "", "aten::to", true)) == Verdict::kAbsent);
  CHECK(verdict(steps("aten::zeros", "aten::index_put_", "aten::to")) == Verdict::kAbsent);
  CHECK(verdict(steps("aten::zeros", "", "aten::mul")) == Verdict::kAbsent);
  CHECK(verdict(steps("aten::zeros", "", "aten::to", false, "Memcpy DtoH (Device -> Pageable)")) ==
        Verdict::kAbsent);
}

TEST_CASE("dozens of small constants per step are small copies", "[detect][created_on_host]") {
  Scene scene;
  for (int step = 0; step < 3; ++step) {
    scene.step(3 + step, 10'000.0 * step, 10'000);
    for (int i = 0; i < 90; ++i) {
      const double t = 10'000.0 * step + 100.0 * i;
      scene.op("aten::zeros", t, 10).op("aten::to", t + 11, 32);
      scene.copy("Memcpy HtoD (Pageable -> Device)", t + 12, 10, t + 18, 2, 2'000);
      scene.op("aten::mm", t + 50, 6).kernel("gemm", t + 51, t + 55, 40, 2);
    }
  }
  CHECK(scene.judge("created_on_host").verdict == Verdict::kAbsent);
  CHECK(scene.judge("small_copies").verdict == Verdict::kPresent);
}

TEST_CASE("an upload may be converted behind the copy, but is one", "[detect][created_on_host]") {
  const auto moved = [](int copies, bool cast) {
    Scene scene;
    for (int i = 0; i < 3; ++i) {
      const double t = 3'000.0 * i;
      scene.step(3 + i, t, 3'000).op("aten::zeros", t, 400).op("aten::to", t + 410, 310);
      for (int c = 0; c < copies; ++c) {
        scene.copy("Memcpy HtoD (Pageable -> Device)", t + 414 + 100 * c, 90, t + 420 + 100 * c, 80,
                   4 << 20);
      }
      if (cast) scene.kernel("elementwise_kernel", t + 700, t + 710, 10);
      scene.op("aten::mm", t + 730, 20).kernel("gemm", t + 735, t + 750, 1'000);
    }
    return scene.judge("created_on_host").verdict;
  };
  CHECK(moved(1, false) == Verdict::kPresent);
  CHECK(moved(1, true) == Verdict::kPresent);
  CHECK(moved(2, false) == Verdict::kAbsent);
  CHECK(moved(0, true) == Verdict::kAbsent);
}

TEST_CASE("copies beside computation, and of unknown size", "[detect][created_on_host]") {
  Scene covered = steps("aten::randn", "", "aten::to");
  covered.text().launch("gemm", 0.2, 0.1, 0.5, 9'000, 8, 9'000);
  CHECK(covered.judge("created_on_host").verdict == Verdict::kAbsent);
  Scene scene;
  scene.op("aten::mm", 0, 5).kernel("gemm", 1, 8, 20).op("aten::zeros", 50, 400);
  scene.op("aten::to", 460, 300).copy("Memcpy HtoD (Pageable -> Device)", 465, 290, 470, 280, -1);
  const Finding finding = scene.judge("created_on_host");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(fact(finding, "bytes").empty());
}

TEST_CASE("which operator copied what only the calls tell", "[detect][created_on_host]") {
  const auto without_calls = [](bool copy) {
    TraceText text;
    text.host("cpu_op", "aten::zeros", 0, 400).host("cpu_op", "aten::to", 410, 300);
    if (copy) text.gpu("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 420, 280, 7, 900);
    text.gpu("kernel", "gemm", 720, 100, 7, 901);
    return judge("created_on_host", text);
  };
  CHECK(without_calls(true).missing_signals ==
        std::vector<std::string>{"launch calls of GPU events"});
  CHECK(without_calls(false).verdict == Verdict::kAbsent);
}
