#include "scene.hpp"

using namespace traceap;

namespace {

/// Four backward nodes of 400 us with a kernel of 200 us each; in the first of them, `inside` runs
/// before, with a kernel of 100 us.
TraceText backward(const std::string& inside) {
  TraceText text;
  for (int i = 0; i < 4; ++i) {
    const double t = 1'000.0 * i;
    text.host("cpu_op", "autograd::engine::evaluate_function: MmBackward0", t, 400);
    text.host("cpu_op", "MmBackward0", t + 5, 390);
    if (i == 0) {
      text.host("cpu_op", inside, t + 10, 100);
      text.launch("gemm", t + 20, 5, t + 30, 100, 7, 100);
    }
    text.host("cpu_op", "aten::mm", t + 150, 100);
    text.launch("gemm", t + 160, 5, t + 170, 200, 7, 1 + i);
  }
  return text;
}

constexpr const char* kDevice = R"("deviceProperties":[{"id":0,"name":"x","totalGlobalMem":1000}])";

}  // namespace

TEST_CASE("layers that run inside the backward pass run a second time",
          "[detect][recomputed_activations]") {
  const Finding finding = judge("recomputed_activations", backward("aten::linear"));
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(finding.cost_ns == 100'000);
  CHECK(fact(finding, "layers") == "1");
  CHECK(fact(finding, "operations") == "aten::linear");
  CHECK(finding.confidence == 0.5);
  CHECK(finding.missing_signals.size() == 1);
}

TEST_CASE("what a backward pass does anyway is not repeated", "[detect][recomputed_activations]") {
  for (const char* inside : {"aten::native_layer_norm_backward", "aten::mul", "aten::mm"}) {
    INFO(inside);
    CHECK(judge("recomputed_activations", backward(inside)).verdict == Verdict::kAbsent);
  }
  TraceText forward;
  forward.host("cpu_op", "aten::linear", 0, 100).launch("gemm", 10, 5, 20, 500, 7, 1);
  CHECK(judge("recomputed_activations", forward).verdict == Verdict::kAbsent);
}

TEST_CASE("memory decides whether keeping them would fit", "[detect][recomputed_activations]") {
  const auto with_memory = [](int reserved) {
    TraceText text = backward("aten::linear");
    text.top(kDevice);
    text.raw(R"({"ph":"i","cat":"cpu_instant_event","name":"[memory]","pid":1,"tid":1,"ts":50,)"
             R"("args":{"Device Type":1,"Device Id":0,"Total Reserved":)" +
             std::to_string(reserved) + "}}");
    return judge("recomputed_activations", text);
  };
  CHECK(with_memory(300).verdict == Verdict::kPresent);
  CHECK(fact(with_memory(300), "memory reserved") == "0.3");
  CHECK(with_memory(300).missing_signals.empty());
  CHECK(with_memory(701).verdict == Verdict::kAbsent);
}

TEST_CASE("what runs in a node before and behind the repeated layers is its own",
          "[detect][recomputed_activations]") {
  TraceText text = backward("aten::linear");
  text.host("cpu_op", "aten::add_", 7, 2).launch("elementwise", 7.5, 1, 10, 15, 7, 500);
  text.host("cpu_op", "aten::mm", -900, 100).launch("gemm", -890, 5, -800, 300, 7, 501);
  text.gpu("kernel", "gemm", 4'000, 50, 7, 502);  // an orphan
  CHECK(judge("recomputed_activations", text).cost_ns == 100'000);
}

TEST_CASE("without launch calls nothing is known of what layers cost",
          "[detect][recomputed_activations]") {
  TraceText text;
  text.host("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 0, 400);
  text.host("cpu_op", "aten::linear", 10, 100).gpu("kernel", "gemm", 30, 100, 7, 900);
  CHECK(judge("recomputed_activations", text).missing_signals ==
        std::vector<std::string>{"launch calls of GPU events"});
}

TEST_CASE("a range that is called like a layer is none", "[detect][recomputed_activations]") {
  TraceText text = backward("aten::mul");
  text.host("user_annotation", "aten::linear", 9, 105);
  CHECK(judge("recomputed_activations", text).verdict == Verdict::kAbsent);
}

TEST_CASE("one half of what memory takes tells nothing", "[detect][recomputed_activations]") {
  const auto memory = [](const std::string& name, int reserved) {
    return R"({"ph":"i","cat":"cpu_instant_event","name":")" + name +
           R"(","pid":1,"tid":1,"ts":50,"args":{"Device Id":0,"Total Reserved":)" +
           std::to_string(reserved) + "}}";
  };
  TraceText no_device = backward("aten::linear");
  no_device.raw(memory("[memory]", 900));
  TraceText no_events = backward("aten::linear");
  no_events.top(kDevice);
  TraceText other = backward("aten::linear");
  other.top(kDevice).raw(memory("[other]", 900));
  for (const TraceText& text : {no_device, no_events, other}) {
    const Finding finding = judge("recomputed_activations", text);
    CHECK(finding.verdict == Verdict::kPresent);
    CHECK(finding.confidence == 0.5);
    CHECK(fact(finding, "memory reserved").empty());
  }
}
