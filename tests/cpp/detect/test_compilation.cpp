// What is compiled for the first time, what again, and compilers inside of operators.

#include "catch.hpp"
#include "scene.hpp"
#include "traceap/detect/queries/compile.hpp"

using namespace traceap;

namespace {

std::string region_name(const std::string& number) { return "Torch-Compiled Region: " + number; }

/// A call of compiled code from `ts` on, with a kernel of `dur`.
void call_region(Scene& scene, const std::string& number, double ts, double dur) {
  scene.op(region_name(number), ts, 30);
  scene.op("CompiledFunction", ts + 1, 28);
  scene.kernel("triton_poi_" + number.substr(0, number.find('/')), ts + 8, ts + 18, dur);
}

/// Four warm steps of 10 ms that call region 0/0; in the third one `number` is compiled and called
/// before it.
Scene compile_in_third(const std::string& number) {
  Scene scene;
  for (int i = 0; i < 4; ++i) {
    const double t = 1000 + i * 10000.0;
    scene.step(5 + i, t, 10000);
    double at = t + 10;
    if (i == 2) {
      scene.range("_compile.compile_inner (dynamo_timed)", at, 4000);
      call_region(scene, number, at + 4005, 500);
      at += 4600;
    }
    call_region(scene, "0/0", at, t + 9990 - (at + 18));
  }
  return scene;
}

}  // namespace

TEST_CASE("a region's number says which frame it is and which compilation", "[detect]") {
  CHECK(region_number("Torch-Compiled Region: 3/2")->frame == "3");
  CHECK(region_number("Torch-Compiled Region: 3/2")->compilation == 2);
  CHECK(region_number("Torch-Compiled Region: !0/3/1")->frame == "!0/3");
  CHECK_FALSE(region_number("Torch-Compiled Region"));
  CHECK_FALSE(region_number("Torch-Compiled Region: x/y"));
  CHECK_FALSE(region_number("aten::div: 1/2"));
}

TEST_CASE("the first compilation of each function is a first call, in whatever step",
          "[detect][recompilation]") {
  const Scene scene = compile_in_third("1/0");
  CHECK(scene.judge("recompilation").verdict == Verdict::kAbsent);
  const Finding cold = scene.judge("cold_start");
  CHECK(cold.verdict == Verdict::kPresent);
  CHECK(cold.cost_ns == 4'000'000);
  CHECK(fact(cold, "kinds") == "compilation");
}

TEST_CASE("another compilation of a function is a recompilation", "[detect][recompilation]") {
  for (const char* number : {"0/1", "1/1", "0/0"}) {  // 0/0 again: dynamo was reset
    const Scene scene = compile_in_third(number);
    CHECK(scene.judge("recompilation").cost_ns == 4'000'000);
    CHECK(scene.judge("cold_start").verdict == Verdict::kAbsent);
  }
}

TEST_CASE("without steps the numbers of regions tell first compilations from others",
          "[detect][recompilation]") {
  const auto with = [](const std::string& second) {
    Scene scene;
    double t = 0;
    for (const std::string& number : {std::string("0/0"), second}) {
      scene.range("entire_frame_compile (dynamo_timed)", t, 3000);
      call_region(scene, number, t + 3005, 500);
      call_region(scene, number, t + 3600, 500);
      t += 5000;
    }
    return scene;
  };
  CHECK(with("1/0").judge("recompilation").verdict == Verdict::kAbsent);
  CHECK(with("1/0").judge("cold_start").cost_ns == 6'000'000);
  CHECK(with("0/1").judge("recompilation").cost_ns == 3'000'000);
}

TEST_CASE("what is tuned inside a region belongs to the region", "[detect][recompilation]") {
  const auto with = [](const std::string& number) {
    Scene scene;
    for (int i = 0; i < 4; ++i) {
      const double t = 1000 + i * 10000.0;
      scene.step(5 + i, t, 10000);
      const double tuning = i == 2 ? 3000 : 0;
      scene.op(region_name(i < 2 ? "0/0" : number), t + 10, tuning + 40);
      if (tuning > 0) {
        scene.range("CachingAutotuner.benchmark_all_configs (dynamo_timed)", t + 12, tuning);
      }
      scene.kernel("triton_mm", t + tuning + 25, t + tuning + 40, 9900 - tuning);
    }
    return scene;
  };
  CHECK(with("1/0").judge("recompilation").verdict == Verdict::kAbsent);
  CHECK(fact(with("1/0").judge("cold_start"), "kinds") == "autotuning");
  CHECK(with("0/1").judge("recompilation").cost_ns == 3'000'000);
}

TEST_CASE("a backward pass compiled late belongs to its forward region",
          "[detect][recompilation]") {
  const auto with = [](const std::string& number) {
    Scene scene;
    for (int i = 0; i < 4; ++i) {
      const double t = 1000 + i * 10000.0;
      scene.step(5 + i, t, 10000);
      const bool late = i == 2;
      scene.op(region_name(late ? number : "0/0"), t + 10, 40);
      const std::string sequence = R"("Sequence number":)" + std::to_string(40 + i);
      scene.op("CompiledFunction", t + 12, 30, sequence + R"(,"Fwd thread id":0)");
      scene.kernel("triton_fwd", t + 15, t + 25, 100);
      scene.op("CompiledFunctionBackward", t + 60, late ? 3100 : 100,
               sequence + R"(,"Fwd thread id":1)");
      if (late) scene.range("backward._backward_impl (dynamo_timed)", t + 130, 3000);
      const double launch = t + (late ? 3135 : 70);
      scene.kernel("triton_bwd", launch, launch + 10, t + 9990 - (launch + 10));
    }
    return scene;
  };
  CHECK(with("1/0").judge("recompilation").verdict == Verdict::kAbsent);
  CHECK(with("1/0").judge("cold_start").cost_ns == 3'000'000);
  CHECK(with("0/1").judge("recompilation").verdict == Verdict::kPresent);
}

TEST_CASE("a compiler outside of regions makes the kernel that comes next",
          "[detect][recompilation]") {
  const auto with = [](const std::string& frame, const std::string& kernel) {
    Scene scene;
    for (int i = 0; i < 4; ++i) {
      const double t = 1000 + i * 10000.0;
      scene.step(5 + i, t, 10000);
      double at = t + 10;
      if (i == 2) {
        scene.python(frame, at, 4000);
        scene.kernel(kernel, at + 4005, at + 4015, 100);
        at += 4200;
      }
      scene.op("aten::mm", at, 20).kernel("gemm", at + 5, at + 15, t + 9990 - (at + 15));
    }
    return scene;
  };
  const std::string triton = "triton/compiler/compiler.py(240): compile";
  CHECK(with(triton, "fused").judge("recompilation").verdict == Verdict::kAbsent);
  CHECK(with(triton, "fused").judge("cold_start").cost_ns == 4'000'000);
  CHECK(with(triton, "gemm").judge("recompilation").cost_ns == 4'000'000);
  const Finding tuned =
      with("triton/runtime/autotuner.py(190): _bench", "fused").judge("cold_start");
  CHECK(fact(tuned, "kinds") == "autotuning");
  const Finding built =
      with("flashinfer/jit/core.py(230): build_and_load", "decode").judge("cold_start");
  CHECK(fact(built, "kinds") == "building of extensions");
  CHECK(with("app/jit/core.py(230): build_report", "decode").judge("cold_start").verdict ==
        Verdict::kAbsent);
}

namespace {

/// Calls of an operator that launches a kernel when it has taken `own_us` by itself.
Scene operator_calls(const std::vector<double>& own_us, int first_step, bool launches = true) {
  Scene scene;
  double t = 1000;
  double end = t;
  for (double own : own_us) end += own + 1000;
  if (first_step >= 0) scene.step(first_step, t, end - t);
  for (double own : own_us) {
    scene.op("vllm::attention", t, own + 20);
    if (launches) {
      scene.kernel("decode", t + own + 5, t + own + 15, 900);
    } else {
      scene.op("aten::mm", t + own + 30, 20).kernel("gemm", t + own + 35, t + own + 45, 900);
    }
    t += own + 1000;
  }
  return scene;
}

}  // namespace

TEST_CASE("an operator whose first call compiles is a cold start, named as what it is",
          "[detect][cold_start]") {
  const Scene scene = operator_calls({50'000, 30, 30, 30}, -1);
  const Finding cold = scene.judge("cold_start");
  CHECK(cold.verdict == Verdict::kPresent);
  CHECK(fact(cold, "kinds") == "first calls of operators");
  CHECK(cold.cost_ns >= 50'000'000);
  CHECK(cold.cost_ns <= 50'100'000);
  CHECK(scene.judge("cpu_bound").cost_ns < 500'000);
  CHECK(scene.judge("host_silence").verdict == Verdict::kAbsent);
}

TEST_CASE("what looks like an operator that compiles and does not", "[detect][cold_start]") {
  const auto cold = [](const Scene& scene) { return scene.judge("cold_start").verdict; };
  CHECK(cold(operator_calls({50'000, 50'000, 50'000, 50'000}, -1)) == Verdict::kAbsent);
  CHECK(cold(operator_calls({900, 5, 5, 5}, -1)) == Verdict::kAbsent);
  // It launches nothing, so it computes on the host.
  CHECK(cold(operator_calls({50'000, 30, 30, 30}, -1, false)) == Verdict::kAbsent);
  // Called once, it has to spend 10 ms by itself, in a profile that does not begin warm.
  CHECK(cold(operator_calls({10'100}, -1)) == Verdict::kPresent);
  CHECK(cold(operator_calls({9'000}, -1)) == Verdict::kAbsent);
  CHECK(cold(operator_calls({10'100}, 5)) == Verdict::kAbsent);
}

namespace {

/// `steps` steps of 10 ms; those in [from, to) record a graph for 4 ms before they launch it.
Scene graph_steps(int steps, int first_number, int from, int to) {
  Scene scene;
  for (int i = 0; i < steps; ++i) {
    const double t = 1000 + i * 10000.0;
    if (first_number >= 0) scene.step(first_number + i, t, 10000);
    double at = t + 10;
    if (i >= from && i < to) {
      scene.call("cudaStreamBeginCapture", at, 10);
      scene.op("aten::mm", at + 20, 2000).call("cudaLaunchKernel", at + 1000, 900);
      scene.call("cudaStreamEndCapture", at + 3000, 100);
      scene.call("cudaGraphInstantiate", at + 3200, 800);
      at += 4000;
    }
    scene.text().launch("graph_kernel", at + 5, 5, at + 20, t + 9990 - (at + 20), 7, 9000 + i);
    scene.call("cudaGraphLaunch", at + 12, 2);
  }
  return scene;
}

}  // namespace

TEST_CASE("graphs that are recorded in step after step are found", "[detect][graph_recapture]") {
  const Scene scene = graph_steps(4, 5, 0, 4);
  const Finding finding = scene.judge("graph_recapture");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.cost_ns == 4 * 4'000'000);
  CHECK(fact(finding, "recordings") == "4");
  CHECK(fact(finding, "per step") == "1");
  CHECK(finding.evidence_count == 4);
  CHECK(scene.judge("cold_start").verdict == Verdict::kAbsent);
  CHECK(scene.judge("cpu_bound").cost_ns < 500'000);
}

TEST_CASE("a graph that is recorded once is a cold start", "[detect][graph_recapture]") {
  for (const Scene& scene : {graph_steps(4, 0, 0, 1), graph_steps(4, 5, 1, 2)}) {
    CHECK(scene.judge("graph_recapture").verdict == Verdict::kAbsent);
    const Finding cold = scene.judge("cold_start");
    CHECK(cold.verdict == Verdict::kPresent);
    CHECK(fact(cold, "kinds") == "recording of CUDA graphs");
    CHECK(cold.cost_ns == 4'000'000);
  }
}

TEST_CASE("graphs that are replayed are neither", "[detect][graph_recapture]") {
  const Scene scene = graph_steps(4, 5, 0, 0);
  CHECK(scene.judge("graph_recapture").verdict == Verdict::kAbsent);
  CHECK(scene.judge("graph_recapture").evidence_count == 0);
  CHECK(scene.judge("cold_start").verdict == Verdict::kAbsent);
}

TEST_CASE("without steps graphs are recorded anew if that goes on to the end",
          "[detect][graph_recapture]") {
  const auto judged = [](int captures_from, int captures_to) {
    Scene scene;
    for (int i = 0; i < 12; ++i) {
      const double t = 1000 + i * 10000.0;
      double at = t + 10;
      if (i >= captures_from && i < captures_to) {
        scene.call("cudaStreamBeginCapture", at, 10).call("cudaStreamEndCapture", at + 3900, 100);
        at += 4000;
      }
      scene.call("cudaGraphLaunch", at, 5);
      for (int k = 0; k < 10; ++k) {
        scene.kernel("kernel_" + std::to_string(k), at + 10 + 10 * k, at + 120 + 500.0 * k, 500);
      }
    }
    return scene.judge("graph_recapture");
  };
  const Finding anew = judged(2, 12);
  CHECK(anew.verdict == Verdict::kPresent);
  CHECK(anew.confidence < 0.9);
  CHECK(judged(0, 6).verdict == Verdict::kAbsent);
  CHECK(judged(10, 12).verdict == Verdict::kAbsent);  // two are a shape and another one
}

TEST_CASE("half of the steady steps record, and two at least", "[detect][graph_recapture]") {
  const auto verdict = [](int steps, int first_number, int from, int to) {
    return graph_steps(steps, first_number, from, to).judge("graph_recapture").verdict;
  };
  CHECK(verdict(4, 5, 0, 2) == Verdict::kPresent);
  CHECK(verdict(5, 5, 0, 2) == Verdict::kAbsent);
  CHECK(verdict(2, 5, 0, 1) == Verdict::kAbsent);
  CHECK(verdict(5, 0, 1, 3) == Verdict::kPresent);  // the first one is warm-up
}

TEST_CASE("a recording under other work costs nothing", "[detect][graph_recapture]") {
  Scene scene = graph_steps(4, 5, 0, 4);
  scene.text().launch("gemm", 1'000.2, 0.2, 1'001, 39'990, 8, 8'000);
  CHECK(scene.judge("graph_recapture").verdict == Verdict::kAbsent);
}

namespace {

/// No steps: rounds of ten kernels each, in which [from, to) record a graph and launch it; each
/// launches `others` graphs beside.
struct Rounds {
  int count = 16, from = 12, to = 16;
  int others = 0;
  bool repeat = true;     ///< the same kernels in each round
  double tail = 0;        ///< calls that go on behind the last round
  int replays_first = 0;  ///< launches of graphs in the first round
};
Finding recapture(const Rounds& rounds) {
  Scene scene;
  const auto name = [&](int round, int kernel) {
    return "kernel_" + std::to_string(kernel + (rounds.repeat ? 0 : 100 * round));
  };
  for (int i = 0; i < rounds.count; ++i) {
    const double t = 1'000 + 20'000.0 * i;
    double at = t + 10;
    const int replays = rounds.others + (i == 0 ? rounds.replays_first : 0);
    for (int k = 0; k < replays; ++k) scene.call("cudaGraphLaunch", at + 6 * k, 5);
    at += 6 * replays;
    if (i >= rounds.from && i < rounds.to) {
      scene.call("cudaStreamBeginCapture", at, 10).call("cudaStreamEndCapture", at + 3'900, 100);
      scene.call("cudaGraphLaunch", at + 4'001, 5);
      at += 4'010;
    }
    for (int k = 0; k < 60; ++k) {
      scene.kernel(name(i, k), at + 10 + 10 * k, at + 700 + 200.0 * k, 200);
    }
  }
  if (rounds.tail > 0) {
    for (int k = 0; k < 20; ++k) {
      scene.call("cudaEventQuery", 1'000 + 20'000.0 * rounds.count + rounds.tail * k / 20, 5);
    }
  }
  return scene.judge("graph_recapture");
}

}  // namespace

TEST_CASE("without steps recordings go on to the end, with hardly a replay",
          "[detect][graph_recapture]") {
  CHECK(recapture({}).verdict == Verdict::kPresent);
  CHECK(recapture({.from = 14}).verdict == Verdict::kAbsent);            // two
  CHECK(recapture({.from = 2, .to = 8}).verdict == Verdict::kAbsent);    // not to the end
  CHECK(recapture({.others = 1}).verdict == Verdict::kAbsent);           // 16 replays of 4
  CHECK(recapture({.repeat = false}).verdict == Verdict::kAbsent);       // no loop: first calls
  CHECK(recapture({.replays_first = 20}).verdict == Verdict::kPresent);  // in warm-up
  CHECK(recapture({.tail = 300'000}).verdict == Verdict::kPresent);      // no work behind them
}
