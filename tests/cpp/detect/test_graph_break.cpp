#include "rule_case.hpp"

using namespace traceap;

namespace {
constexpr const char* kDetect = "graph_break";

/// One compiled call in which the graph ends at 2 ms and goes on at 4 ms, as torch 2.13 draws it.
/// `between` is what stands around the second region.
RuleCase nested_regions(const std::string& second, const char* between = nullptr) {
  RuleCase t;
  t.step(1, 0, 10'000).op("TorchDynamo Cache Lookup", 900, 50);
  t.op("Torch-Compiled Region: 0/0", 1'000, 8'000).op("CompiledFunction", 1'050, 950);
  t.kernel("triton_poi_fused_0", 1'100, 900);
  if (between != nullptr) t.op(between, 2'050, 6'900);
  t.op("TorchDynamo Cache Lookup", 3'900, 50);
  t.op(second, 4'000, 4'900).op("CompiledFunction", 4'050, 4'800);
  return t.kernel("triton_poi_fused_1", 4'100, 5'800);
}
}  // namespace

TEST_CASE("a region inside a region, outside of its graph, is a graph break",
          "[detect][graph_break]") {
  const Finding finding = judge(kDetect, nested_regions("Torch-Compiled Region: 1/0"));
  CHECK(finding.verdict == Verdict::kPresent);
  // From the end of the first graph to the next kernel.
  CHECK(cost_us(finding) == Approx(2'100));
  CHECK(fact(finding, "graph breaks") == "1");
  CHECK(fact(finding, "compiled regions") == "2");
  CHECK(finding.evidence_count == 1);
}

TEST_CASE("what eager code launched in between belongs to the break", "[detect][graph_break]") {
  RuleCase t = nested_regions("Torch-Compiled Region: 1/0");
  t.op("aten::sort", 2'400, 100).kernel("sort", 2'450, 1'000);
  const Finding finding = judge(kDetect, t);
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(cost_us(finding) == Approx(2'100));
  CHECK(finding.saving_high_ns == 1'100'000);  // the sort stays
}

TEST_CASE("a resume function that was not compiled tells by its frame", "[detect][graph_break]") {
  RuleCase t;
  t.step(1, 0, 10'000).op("Torch-Compiled Region: 0/0", 1'000, 8'000);
  t.op("CompiledFunction", 1'050, 950).kernel("triton_poi_fused_0", 1'100, 900);
  t.frame("model.py(9): torch_dynamo_resume_in_forward_at_9", 4'000, 4'900);
  t.op("aten::mm", 4'080, 60).kernel("gemm", 4'100, 5'800);
  CHECK(judge(kDetect, t).verdict == Verdict::kPresent);
}

TEST_CASE("a compiled function that a custom operator calls is no break", "[detect][graph_break]") {
  // modded-nanogpt: region 1/0 lies inside the CompiledFunction of region 0/0.
  RuleCase t;
  t.step(1, 0, 10'000).op("Torch-Compiled Region: 0/0", 1'000, 8'000);
  t.op("CompiledFunction", 1'050, 7'900).kernel("triton_poi_fused_0", 1'100, 900);
  t.op("Torch-Compiled Region: 1/0", 4'000, 4'900).kernel("triton_poi_fused_1", 4'100, 5'800);
  CHECK(judge(kDetect, t).verdict == Verdict::kAbsent);
  SECTION("nor where the operator itself is drawn") {
    const Finding finding =
        judge(kDetect, nested_regions("Torch-Compiled Region: 1/0", "mylib::attention"));
    CHECK(finding.verdict == Verdict::kAbsent);
    CHECK(finding.cost_ns == 0);
  }
}

TEST_CASE("the same function called again is no break", "[detect][graph_break]") {
  RuleCase t;
  t.step(1, 0, 10'000);
  t.op("Torch-Compiled Region: 0/0", 1'000, 1'000).kernel("triton_0", 1'100, 900);
  t.op("Torch-Compiled Region: 0/1", 4'000, 1'000).kernel("triton_0", 4'100, 5'800);
  CHECK(judge(kDetect, t).verdict == Verdict::kAbsent);
}

namespace {
/// Two different compiled frames side by side, with or without Python frames around them.
RuleCase neighbours(const char* first_frame, const char* second_frame) {
  RuleCase t;
  t.step(1, 0, 10'000);
  if (first_frame != nullptr && second_frame == nullptr) t.frame(first_frame, 900, 8'900);
  if (second_frame != nullptr) t.frame(first_frame, 900, 1'300).frame(second_frame, 3'900, 6'000);
  t.op("Torch-Compiled Region: 0/0", 1'000, 1'000).kernel("triton_0", 1'100, 900);
  return t.op("Torch-Compiled Region: 1/0", 4'000, 1'000).kernel("triton_1", 4'100, 5'800);
}
constexpr const char* kEntry = "torch/_dynamo/eval_frame.py(1076): compile_wrapper";
}  // namespace

TEST_CASE("side by side, only Python frames tell one compiled call from two",
          "[detect][graph_break]") {
  const Finding open = judge(kDetect, neighbours(nullptr, nullptr));
  CHECK(open.verdict == Verdict::kUnknown);
  CHECK(contains(open.missing_signals.at(0), "with_stack"));
  CHECK(judge(kDetect, neighbours(kEntry, nullptr)).verdict == Verdict::kPresent);
  CHECK(judge(kDetect, neighbours(kEntry, kEntry)).verdict == Verdict::kAbsent);
}

TEST_CASE("a break in the noise, or none compiled at all, is absent", "[detect][graph_break]") {
  RuleCase busy = nested_regions("Torch-Compiled Region: 1/0");
  busy.queued("long_kernel", 1'060, 1'100, 8'000, 9);
  CHECK(judge(kDetect, busy).verdict == Verdict::kAbsent);
  RuleCase eager;
  eager.step(1, 0, 10'000).op("aten::mm", 10, 50).kernel("gemm", 5'000, 100);
  CHECK(judge(kDetect, eager).verdict == Verdict::kAbsent);
}

TEST_CASE("without GPU events the cost of a break is not known", "[detect][graph_break]") {
  RuleCase t;
  t.step(1, 0, 10'000).op("Torch-Compiled Region: 0/0", 1'000, 8'000);
  t.op("CompiledFunction", 1'050, 950).op("Torch-Compiled Region: 1/0", 4'000, 4'900);
  const Finding finding = judge(kDetect, t);
  CHECK(finding.verdict == Verdict::kUnknown);
  CHECK(finding.missing_signals == std::vector<std::string>{"GPU events"});
}
