#include "scene.hpp"

using namespace traceap;

namespace {

/// A kernel, then `turns` turns of operators of 10 us each; those named in `launching` run a kernel
/// of 4 us.
Scene loop(int turns, const std::vector<std::string>& operators, const std::string& launching,
           bool copies = false) {
  Scene scene;
  scene.op("aten::mm", -100, 9).kernel("gemm", -99, -90, 10, 2);
  double t = 0.0;
  for (int i = 0; i < turns; ++i) {
    for (const std::string& name : operators) {
      scene.op(name, t, 9);
      if (name == launching && copies) {
        scene.copy("Memcpy DtoH (Device -> Pageable)", t + 1, 6, t + 4, 2, 4);
      } else if (name == launching) {
        scene.kernel("elementwise_kernel", t + 1, t + 5, 4, 2);
      }
      t += 10;
    }
  }
  scene.op("aten::mm", t, 9).kernel("gemm", t + 1, t + 5, 40, 2);
  return scene;
}

}  // namespace

TEST_CASE("a loop over the rows of a tensor", "[detect][for_loop_indexing]") {
  const Finding finding =
      loop(30, {"aten::select", "aten::mul", "aten::add_"}, "aten::mul").judge("for_loop_indexing");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(fact(finding, "loops") == "1");
  CHECK(fact(finding, "turns") == "30");
  // 899 us of host time, less the kernels in it.
  CHECK(finding.cost_ns == 899'000 - 30 * 4'000);
}

TEST_CASE("ten turns are a loop, nine are not", "[detect][for_loop_indexing]") {
  const std::vector<std::string> turn{"aten::select", "aten::mul"};
  CHECK(loop(10, turn, "aten::mul").judge("for_loop_indexing").evidence_count == 20);
  CHECK(loop(9, turn, "aten::mul").judge("for_loop_indexing").evidence_count == 0);
}

TEST_CASE("a turn may index several tensors", "[detect][for_loop_indexing]") {
  const Finding finding = loop(20, {"aten::select", "aten::select", "aten::mul"}, "aten::mul")
                              .judge("for_loop_indexing");
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(fact(finding, "turns") == "20");
}

TEST_CASE("layers, reads by the host, and views alone are no such loops",
          "[detect][for_loop_indexing]") {
  const auto verdict = [](const Scene& scene) { return scene.judge("for_loop_indexing").verdict; };
  // q, k, v of one layer after the other
  CHECK(verdict(loop(24, {"aten::select", "aten::select", "aten::linear"}, "aten::linear")) ==
        Verdict::kAbsent);
  CHECK(verdict(loop(24, {"aten::select", "aten::item"}, "aten::item", true)) == Verdict::kAbsent);
  CHECK(verdict(loop(24, {"aten::select", "aten::view"}, "aten::mm")) == Verdict::kAbsent);
  CHECK(verdict(loop(24, {"aten::mul", "aten::add_"}, "aten::mul")) == Verdict::kAbsent);
}

TEST_CASE("up to four indexings make a turn", "[detect][for_loop_indexing]") {
  const auto turns = [](std::size_t indexings) {
    std::vector<std::string> turn(indexings, "aten::select");
    turn.push_back("aten::mul");
    // The operators between two indexings differ, so that no shorter turn repeats.
    for (std::size_t i = 1; i < indexings; ++i) {
      turn.insert(turn.begin() + static_cast<std::ptrdiff_t>(2 * i - 1),
                  "aten::view_" + std::to_string(i));
    }
    return fact(loop(12, turn, "aten::mul").judge("for_loop_indexing"), "turns");
  };
  CHECK(turns(4) == "12");
  CHECK(turns(5).empty());
}

TEST_CASE("what turns launch only the calls tell", "[detect][for_loop_indexing]") {
  const auto without_calls = [](const char* first) {
    TraceText text;
    for (int i = 0; i < 20; ++i) {
      text.host("cpu_op", first, 20.0 * i, 9).host("cpu_op", "aten::mul", 20.0 * i + 10, 9);
      text.gpu("kernel", "elementwise_kernel", 20.0 * i + 15, 4, 7, 900 + i);
    }
    return judge("for_loop_indexing", text);
  };
  CHECK(without_calls("aten::select").missing_signals ==
        std::vector<std::string>{"launch calls of GPU events"});
  CHECK(without_calls("aten::view").verdict == Verdict::kAbsent);
}
