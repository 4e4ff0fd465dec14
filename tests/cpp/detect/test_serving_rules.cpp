// Rules of serving on a few iterations each; times in microseconds.

#include <functional>

#include "scene.hpp"

using namespace traceap;

namespace {

constexpr const char* kDecode = "execute_context_0(0)_generation_64(64)";

/// Iterations every 1,000 us. Each has a graph that is launched at its begin and runs three kernels
/// of 200 us; `between` adds what the host does in the 350 us behind them.
class Iterations {
 public:
  std::string annotation = kDecode;
  std::string grid = "[64,1,1]";
  std::function<void(TraceText&, double)> between = [](TraceText&, double) {};

  TraceText text(int count = 6) const {
    TraceText text;
    for (int i = 0; i < count; ++i) {
      const double t = 1'000.0 * (i + 1);
      text.host("user_annotation", annotation, t, 40);
      text.host("cuda_runtime", "cudaGraphLaunch", t + 5, 20, correlation(i));
      for (int k = 0; k < 3; ++k) {
        const char* names[] = {"rms_norm_kernel", "nvjet_gemm", "rotary_embedding_kernel"};
        text.gpu("kernel", names[k], t + 40 + 200 * k, 200, 7, 100 + i, R"("grid":)" + grid);
      }
      between(text, t + 640);
    }
    return text;
  }
  Finding judge(std::string_view type, const DetectOptions& options = {}) const {
    return ::judge(type, text(), options);
  }

 private:
  static std::string correlation(int i) { return R"("correlation":)" + std::to_string(100 + i); }
};

Iterations scheduled(const std::string& frame) {
  Iterations iterations;
  iterations.between = [frame](TraceText& text, double t) {
    text.host("python_function", frame, t + 10, 300);
  };
  return iterations;
}

/// The host waits for the copy of the tokens, samples, and launches.
Iterations reading() {
  Iterations iterations;
  iterations.between = [id = 1'000](TraceText& text, double t) mutable {
    ++id;
    text.host("cuda_runtime", "cudaMemcpyAsync", t - 600, 5,
              R"("correlation":)" + std::to_string(id));
    text.gpu("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", t + 2, 3, 7, id, R"("bytes":512)");
    text.host("cuda_runtime", "cudaStreamSynchronize", t - 590, 600);
    text.host("python_function", "vllm/v1/sample/sampler.py(40): forward", t + 15, 200);
  };
  return iterations;
}

/// Decode iterations of 40 kernels of 10 us, each launched by its own call every `every` us.
TraceText eager(double every, int graphs_of = 0) {
  TraceText text;
  int id = 1'000;
  for (int i = 0; i < 4; ++i) {
    const double t = 10'000.0 * (i + 1);
    text.host("user_annotation", kDecode, t, 40 * every + 10);
    for (int k = 0; k < 40; ++k) {
      const bool starts = graphs_of == 0 || k % graphs_of == 0;
      const double call = t + 5 + every * (graphs_of == 0 ? k : k - k % graphs_of);
      if (starts) {
        text.host("cuda_runtime", graphs_of == 0 ? "cudaLaunchKernel" : "cudaGraphLaunch", call, 4,
                  R"("correlation":)" + std::to_string(++id));
      }
      const double start = call + 6 + 10.0 * (graphs_of == 0 ? 0 : k % graphs_of);
      text.gpu("kernel", "kernel", start, 10, 7, id);
    }
  }
  return text;
}

}  // namespace

TEST_CASE("the scheduler between two iterations costs its bubbles",
          "[detect][host_between_tokens]") {
  const Finding finding =
      scheduled("vllm/v1/core/sched/scheduler.py(300): schedule").judge("host_between_tokens");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.cost_ns == 5 * 400'000);
  CHECK(fact(finding, "bubbles") == "5");
  CHECK(fact(finding, "mostly") == "scheduling");
  CHECK(fact(finding, "host work") == "vllm/v1/core/sched/scheduler.py(300): schedule");
  CHECK(scheduled("a.py(1): schedule").judge("synchronous_sampling").verdict == Verdict::kAbsent);
}

TEST_CASE("waiting counts where requests in generation wait", "[detect][host_between_tokens]") {
  Iterations waiting = scheduled("zmq/sugar/socket.py(700): recv");
  CHECK(waiting.judge("host_between_tokens").cost_ns > 5 * 300'000);
  waiting.annotation = "execute_context_1(512)_generation_0(0)";
  CHECK(waiting.judge("host_between_tokens").verdict == Verdict::kAbsent);
}

TEST_CASE("iterations that are queued have no bubble of the host",
          "[detect][host_between_tokens]") {
  TraceText text;
  for (int i = 0; i < 6; ++i) {
    const double t = 100.0 * (i + 1);
    text.host("user_annotation", kDecode, t, 40);
    text.host("cuda_runtime", "cudaGraphLaunch", t + 5, 20,
              R"("correlation":)" + std::to_string(100 + i));
    text.gpu("kernel", "kernel", 200 + 1'000.0 * i, 950, 7, 100 + i);
  }
  for (const char* type : {"host_between_tokens", "synchronous_sampling", "graph_not_used",
                           "piecewise_gaps", "graph_padding", "idle_draft"}) {
    CHECK(judge(type, text).verdict == Verdict::kAbsent);
  }
}

TEST_CASE("a copy that is awaited in front of the launch is synchronous sampling",
          "[detect][synchronous_sampling]") {
  const Finding finding = reading().judge("synchronous_sampling");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.cost_ns == 5 * 398'000);  // 2 us pass before the copy begins
  CHECK(finding.evidence_count == 5);
  CHECK(reading().judge("host_between_tokens").verdict == Verdict::kAbsent);
}

TEST_CASE("kernels that are launched one by one need a graph where the GPU waits",
          "[detect][graph_not_used]") {
  const Finding finding = judge("graph_not_used", eager(30));
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.cost_ns == 4 * 39 * 20'000);
  CHECK(fact(finding, "kernels") == "40");
  CHECK(judge("graph_not_used", eager(10)).verdict == Verdict::kAbsent);
  CHECK(judge("graph_not_used", eager(30, 4)).verdict == Verdict::kAbsent);
}

TEST_CASE("gaps between pieces of a graph cost their time", "[detect][piecewise_gaps]") {
  const Finding finding = judge("piecewise_gaps", eager(30, 4));
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.cost_ns == 4 * 9 * 80'000);
  CHECK(fact(finding, "graphs") == "10");
  CHECK(judge("piecewise_gaps", eager(10, 4)).verdict == Verdict::kAbsent);
  CHECK(judge("piecewise_gaps", eager(30)).verdict == Verdict::kAbsent);
}

TEST_CASE("rows of a graph without a request are padding", "[detect][graph_padding]") {
  Iterations padded;
  padded.annotation = "execute_context_0(0)_generation_40(40)";
  const Finding finding = padded.judge("graph_padding");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.cost_ns == 6 * 225'000);  // 24 of 64 rows of 600 us
  CHECK(fact(finding, "graph") == "64");
  padded.annotation = "decode[bs=40/64 tok=40 d=40]";
  padded.grid = "[1000,1,1]";
  CHECK(padded.judge("graph_padding").cost_ns == 6 * 225'000);
  padded.annotation = "execute_context_0(0)_generation_60(60)";
  padded.grid = "[64,1,1]";
  CHECK(padded.judge("graph_padding").verdict == Verdict::kAbsent);
  padded.annotation = "execute_context_0(0)_generation_40(40)";
  padded.grid = "[40,1,1]";
  CHECK(padded.judge("graph_padding").verdict == Verdict::kAbsent);
}

TEST_CASE("a batch far below the knee is small", "[detect][decode_batch_small]") {
  DetectOptions options;
  options.matrix_units = {
      .half_ratio = 16, .tf32_ratio = 8, .half_flops_per_byte = 256, .device = "some GPU"};
  Iterations small;
  small.annotation = "step[DECODE bs=4]";
  const Finding finding = small.judge("decode_batch_small", options);
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.cost_ns == 6 * 196'875);  // 252 of 256 parts of 200 us
  CHECK(small.judge("decode_batch_small").verdict == Verdict::kUnknown);
  small.annotation = kDecode;
  CHECK(small.judge("decode_batch_small", options).verdict == Verdict::kAbsent);
}

TEST_CASE("mixed iterations that take much longer stall decode",
          "[detect][prefill_stalls_decode]") {
  const auto judged = [](double mixed_us) {
    TraceText text;
    double t = 1'000;
    for (int i = 0; i < 8; ++i) {
      const bool mixed = i == 4;
      text.host("user_annotation", mixed ? "step[MIXED bs=65 c=1 g=64]" : "step[DECODE bs=64]", t,
                40);
      text.host("cuda_runtime", "cudaGraphLaunch", t + 5, 20,
                R"("correlation":)" + std::to_string(100 + i));
      const double length = mixed ? mixed_us : 1'000;
      text.gpu("kernel", "kernel", t + 40, length, 7, 100 + i);
      t += length + 40;
    }
    return judge("prefill_stalls_decode", text);
  };
  CHECK(judged(5'000).verdict == Verdict::kPresent);
  CHECK(judged(5'000).cost_ns == 4'000'000);
  CHECK(judged(1'300).verdict == Verdict::kAbsent);
}

TEST_CASE("prompts that are read between two decodes stall requests that go on",
          "[detect][prefill_stalls_decode]") {
  const auto judged = [](const char* prefill, double prefill_us, int place) {
    TraceText text;
    double t = 1'000;
    for (int i = 0; i < 8; ++i) {
      text.host("user_annotation", i == place ? prefill : "step[DECODE bs=64]", t, 40);
      text.host("cuda_runtime", "cudaGraphLaunch", t + 5, 20,
                R"("correlation":)" + std::to_string(100 + i));
      const double length = i == place ? prefill_us : 1'000;
      text.gpu("kernel", "kernel", t + 40, length, 7, 100 + i);
      t += length + 40;
    }
    return judge("prefill_stalls_decode", text);
  };
  const char* some = "step[EXTEND bs=2 toks=900]";
  CHECK(judged(some, 3'000, 4).verdict == Verdict::kPresent);
  CHECK(judged(some, 3'000, 4).cost_ns == 3'000'000);
  CHECK(judged(some, 300, 4).verdict == Verdict::kAbsent);
  CHECK(judged(some, 3'000, 0).verdict == Verdict::kAbsent);  // nothing generated before
  CHECK(judged(some, 3'000, 7).verdict == Verdict::kAbsent);  // or goes on behind
  CHECK(judged("step[EXTEND bs=64 toks=900]", 3'000, 4).verdict == Verdict::kAbsent);
}

TEST_CASE("a GPU that idles while tokens are drafted", "[detect][idle_draft]") {
  const Iterations drafting = scheduled("vllm/v1/spec_decode/eagle.py(100): propose");
  const Finding finding = drafting.judge("idle_draft");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.cost_ns >= 5 * 300'000);
  CHECK(drafting.judge("host_between_tokens").cost_ns <= 5 * 100'000);
  CHECK(scheduled("a.py(1): verify_draft_tokens").judge("idle_draft").verdict == Verdict::kAbsent);
}

TEST_CASE("graphs that are captured while an engine serves are recaptures",
          "[detect][graph_recapture]") {
  const auto judged = [](int captures) {
    Iterations iterations;
    int number = 0;
    iterations.between = [=](TraceText& text, double t) mutable {
      // The first stands behind the first iteration.
      if (++number > captures) return;
      text.host("cuda_runtime", "cudaStreamBeginCapture", t, 10);
      text.host("cuda_runtime", "cudaStreamEndCapture", t + 290, 10);
    };
    TraceText text = iterations.text(12);
    return ::judge("graph_recapture", text);
  };
  CHECK(judged(3).verdict == Verdict::kPresent);
  CHECK(judged(3).cost_ns == 3 * 300'000);
  CHECK(judged(1).verdict == Verdict::kAbsent);
}

TEST_CASE("what no engine runs is not served", "[detect][host_between_tokens]") {
  Iterations iterations = scheduled("a.py(1): schedule");
  iterations.annotation = "forward";
  TraceText text = iterations.text();
  text.host("user_annotation", "Optimizer.step#SGD.step", 100, 5);
  CHECK(judge("host_between_tokens", text).verdict == Verdict::kAbsent);
}
