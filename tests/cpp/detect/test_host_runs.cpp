// Rules on runs that compute on the host: operators are the work, and their time is the cost.
#include "rule_case.hpp"

using namespace traceap;

namespace {

constexpr const char* kFrame = "python_function";

/// Three steps of 10 ms that compute for their second half.
class HostRun : public RuleCase {
 public:
  explicit HostRun(int first = 3) {
    for (int i = 0; i < 3; ++i) {
      step(first + i, start(i), 10'000).op("aten::mkldnn_convolution", start(i) + 5'000, 5'000);
    }
  }
  static double start(int step) { return 10'000.0 * step; }
  static constexpr int kSteps = 3;
};

std::string copy_args(const std::string& to_type, const std::string& from_type,
                      const std::string& dims = "[32,256]",
                      const std::string& to_strides = "[256,1]",
                      const std::string& from_strides = "[256,1]") {
  return R"("Input Dims":[)" + dims + "," + dims + R"(,[]],"Input type":[")" + to_type + R"(",")" +
         from_type + R"(","Scalar"],"Input Strides":[)" + to_strides + "," + from_strides + ",[]]";
}

/// `count` times the operator with a copy inside, 100 us each, in each step.
HostRun copying(const std::string& called, const std::string& args, int count = 5) {
  HostRun t;
  for (int i = 0; i < HostRun::kSteps; ++i) {
    for (int n = 0; n < count; ++n) {
      const double at = HostRun::start(i) + 100 + 150.0 * n;
      t.op(called, at, 100);
      t.host("cpu_op", "aten::copy_", at + 20, 70, args);
    }
  }
  return t;
}

/// An optimizer's step of 4 ms over `parameters`, with `operators` inside.
HostRun stepping(int parameters, const std::vector<std::string>& operators) {
  HostRun t;
  for (int i = 0; i < HostRun::kSteps; ++i) {
    const double at = HostRun::start(i);
    t.annotation("Optimizer.step#Adam.step", at, 4'000);
    const double each = 3'800.0 / (parameters * static_cast<double>(operators.size()));
    double begin = at + 100;
    for (int p = 0; p < parameters; ++p) {
      for (const std::string& name : operators) {
        t.op(name, begin, 0.8 * each);
        begin += each;
      }
    }
  }
  return t;
}

const std::vector<std::string> kAdam{"aten::lerp_", "aten::mul_", "aten::addcmul_", "aten::sqrt",
                                     "aten::addcdiv_"};

}  // namespace

// ------------------------------------------------------------------------------- optimizers

TEST_CASE("an optimizer's loop on the host costs from its first to its last operator",
          "[detect][host]") {
  HostRun t = stepping(20, kAdam);
  t.op("autograd::engine::evaluate_function: MmBackward0", 4'500, 100);
  const Finding finding = judge("unfused_optimizer", t);
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(cost_us(finding) == Approx(3 * (3'800 - 0.2 * 38)));
  CHECK(fact(finding, "operators per step") == "100");
  CHECK(finding.saving_best_ns == finding.cost_ns / 2);
}

TEST_CASE("few parameters, foreach, fused and product optimizers are no loop", "[detect][host]") {
  CHECK(judge("unfused_optimizer", stepping(3, kAdam)).verdict == Verdict::kAbsent);
  CHECK(judge("unfused_optimizer", stepping(12, {"aten::_foreach_mul_"})).cost_ns == 0);
  CHECK(judge("unfused_optimizer", stepping(1, {"aten::_fused_adam_"})).cost_ns == 0);
  CHECK(judge("unfused_optimizer", stepping(50, {"aten::mm", "aten::mm", "aten::mul"})).cost_ns ==
        0);
}

TEST_CASE("a loop over parameters of a program's own is found behind a backward pass",
          "[detect][host]") {
  const auto updating = [](const char* before, const std::vector<std::string>& turn) {
    HostRun t;
    for (int i = 0; i < HostRun::kSteps; ++i) {
      t.op(before, HostRun::start(i), 500)
          .op("aten::linalg_vector_norm", HostRun::start(i) + 600, 50);
      for (int n = 0; n < 30; ++n) {
        double at = HostRun::start(i) + 1'000 + 100.0 * n;
        for (const std::string& name : turn) {
          t.op(name, at, 40);
          at += 50;
        }
      }
    }
    return judge("unfused_optimizer", t);
  };
  const char* backward = "autograd::engine::evaluate_function: MmBackward0";
  const Finding finding = updating(backward, {"aten::mul", "aten::sub_"});
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(cost_us(finding) == Approx(3 * (29 * 100 + 90)));
  CHECK(fact(finding, "operators per step") == "60");
  CHECK(updating(backward, {"aten::mul", "aten::mm"}).cost_ns == 0);
  CHECK(updating(backward, {"aten::mul", "aten::add"}).cost_ns == 0);      // a loss, written out
  CHECK(updating("aten::mm", {"aten::mul_", "aten::add_"}).cost_ns == 0);  // a forward pass
}

TEST_CASE("what a foreach operator calls inside is no loop of Python's", "[detect][host]") {
  HostRun t;
  for (int i = 0; i < HostRun::kSteps; ++i) {
    t.annotation("Optimizer.step#Adam.step", HostRun::start(i), 4'000);
    t.op("aten::_foreach_mul_", HostRun::start(i) + 50, 3'900);
    for (int n = 0; n < 80; ++n) t.op("aten::mul_", HostRun::start(i) + 60 + 40 * n, 30);
  }
  CHECK(judge("unfused_optimizer", t).cost_ns == 0);
}

TEST_CASE("gradients that are filled on the host cost their filling", "[detect][host]") {
  HostRun t;
  for (int i = 0; i < HostRun::kSteps; ++i) {
    t.annotation("Optimizer.zero_grad#SGD.zero_grad", HostRun::start(i), 1'000);
    for (int n = 0; n < 8; ++n) t.op("aten::zero_", HostRun::start(i) + 100 + 100 * n, 100);
  }
  const Finding finding = judge("zero_grad_not_none", t);
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(cost_us(finding) == Approx(3 * 800));
  HostRun none;
  none.annotation("Optimizer.zero_grad#SGD.zero_grad", 0, 1'000);
  CHECK(judge("zero_grad_not_none", none).cost_ns == 0);
}

// ------------------------------------------------------------------------------- copies

TEST_CASE("casts on the host cost the operator that the program called", "[detect][host]") {
  const HostRun t = copying("aten::to", copy_args("double", "float"));
  const Finding finding = judge("cast_storm", t);
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(cost_us(finding) == Approx(3 * 5 * 100));
  CHECK(fact(finding, "casts") == "15");
  CHECK(fact(finding, "example") == "float to double");
  CHECK(judge("device_to_device_copies", t).cost_ns == 0);
  CHECK(judge("layout_conversion", t).cost_ns == 0);
}

TEST_CASE("integers made floating, numbers of Python's and a loader's casts are no casts",
          "[detect][host]") {
  CHECK(judge("cast_storm", copying("aten::to", copy_args("float", "unsigned char"))).cost_ns == 0);
  CHECK(judge("cast_storm", copying("aten::to", copy_args("float", "double", "[]", "[]", "[]")))
            .cost_ns == 0);
  HostRun t = copying("aten::to", copy_args("double", "float"));
  for (int i = 0; i < HostRun::kSteps; ++i) {
    t.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
                 HostRun::start(i) + 50, 1'500);
  }
  CHECK(judge("cast_storm", t).cost_ns == 0);
}

TEST_CASE("a thread that the steps don't wait for costs nothing", "[detect][host]") {
  HostRun t;
  for (int n = 0; n < 30; ++n) {
    t.complete("cpu_op", "aten::clone", 100.0 + 300 * n, 250, 1, "9");
    t.complete("cpu_op", "aten::copy_", 110.0 + 300 * n, 230, 1, "9", copy_args("float", "float"));
  }
  CHECK(judge("device_to_device_copies", t).cost_ns == 0);
}

TEST_CASE("without types a cast can't be told from a copy", "[detect][host]") {
  for (const char* type : {"cast_storm", "layout_conversion", "device_to_device_copies"}) {
    const Finding finding = judge(type, copying("aten::to", ""));
    CHECK(finding.verdict == Verdict::kUnknown);
    CHECK(finding.missing_signals.size() == 1);
    CHECK(judge(type, copying("aten::to", "", 1)).verdict == Verdict::kAbsent);  // immaterial
  }
}

TEST_CASE("copies on the host between layouts are conversions, others are copies",
          "[detect][host]") {
  const std::string dims = "[8,16,32,32]", nchw = "[16384,1024,32,1]", nhwc = "[16384,1,512,16]";
  const HostRun turning =
      copying("aten::contiguous", copy_args("float", "float", dims, nchw, nhwc));
  const Finding finding = judge("layout_conversion", turning);
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(cost_us(finding) == Approx(3 * 5 * 100));
  CHECK(judge("device_to_device_copies", turning).cost_ns == 0);

  const HostRun cloning = copying("aten::clone", copy_args("float", "float", dims, nchw, nchw));
  CHECK(judge("layout_conversion", cloning).cost_ns == 0);
  CHECK(cost_us(judge("device_to_device_copies", cloning)) == Approx(3 * 5 * 100));
  // One channel has the same order either way.
  const HostRun grey = copying("aten::contiguous", copy_args("float", "float", "[8,1,32,32]",
                                                             "[1024,1024,32,1]", "[1024,1,32,1]"));
  CHECK(judge("layout_conversion", grey).cost_ns == 0);
}

TEST_CASE("joined tensors are copied, views and a program's own copy_ are not", "[detect][host]") {
  HostRun t;
  for (int i = 0; i < HostRun::kSteps; ++i) {
    t.op("aten::cat", HostRun::start(i) + 100, 700);
    t.op("aten::reshape", HostRun::start(i) + 900, 300);
    t.op("aten::view", HostRun::start(i) + 950, 100);
    t.host("cpu_op", "aten::copy_", HostRun::start(i) + 2'000, 900, copy_args("float", "float"));
  }
  const Finding finding = judge("device_to_device_copies", t);
  CHECK(cost_us(finding) == Approx(3 * 700));
  CHECK(fact(finding, "operations") == "aten::cat");
}

// ------------------------------------------------------------------------------- loops, memory

TEST_CASE("a Python loop over a tensor costs its time on the host", "[detect][host]") {
  HostRun t;
  for (int i = 0; i < HostRun::kSteps; ++i) {
    for (int n = 0; n < 12; ++n) {
      t.op("aten::select", HostRun::start(i) + 100 + 100 * n, 20);
      t.op("aten::mul_", HostRun::start(i) + 130 + 100 * n, 60);
    }
  }
  const Finding finding = judge("for_loop_indexing", t);
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(cost_us(finding) == Approx(3 * (11 * 100 + 90)));
  HostRun views;
  for (int n = 0; n < 12; ++n) views.op("aten::select", 100 + 100 * n, 60);
  CHECK(judge("for_loop_indexing", views).cost_ns == 0);
}

TEST_CASE("slow allocations of steady state cost their time on the host", "[detect][host]") {
  HostRun t;
  for (int i = 0; i < HostRun::kSteps; ++i) {
    for (int n = 0; n < 4; ++n) t.op("aten::empty", HostRun::start(i) + 100 + 200 * n, 150);
    for (int n = 0; n < 90; ++n)
      t.op("aten::empty_strided", HostRun::start(i) + 1'000 + 20 * n, 19);
  }
  const Finding finding = judge("allocator_thrash", t);
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(cost_us(finding) == Approx(3 * 4 * 150));
  CHECK(fact(finding, "mallocs") == "12");
  HostRun cold(0);  // the first step warms up
  for (int n = 0; n < 9; ++n) cold.op("aten::empty", 100 + 200 * n, 150);
  CHECK(judge("allocator_thrash", cold).cost_ns == 0);
}

TEST_CASE("silence between operators is lost on the host, a loader's is not", "[detect][host]") {
  RuleCase t;
  t.step(3, 0, 30'000).op("aten::mm", 0, 8'000).op("aten::mm", 22'000, 8'000);
  const Finding finding = judge("host_silence", t);
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(cost_us(finding) == Approx(14'000));
  t.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 8'500, 13'000);
  CHECK(judge("host_silence", t).cost_ns == 0);
  RuleCase end;  // nothing goes on behind it
  end.step(3, 0, 30'000).op("aten::mm", 0, 8'000);
  CHECK(judge("host_silence", end).cost_ns == 0);
}

// ------------------------------------------------------------------------------- logging

TEST_CASE("frames that print and write cost their time on the host",
          "[detect][synchronous_logging]") {
  HostRun t;
  for (int i = 0; i < HostRun::kSteps; ++i) {
    t.frame("train.py(7): step", HostRun::start(i), 10'000);
    t.frame("<built-in function print>", HostRun::start(i) + 100, 500);
    t.frame("<built-in method write of _io.TextIOWrapper object at 0x7f>", HostRun::start(i) + 150,
            400);
    t.frame("logging/__init__.py(1473): info", HostRun::start(i) + 700, 300);
  }
  const Finding finding = judge("synchronous_logging", t);
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(cost_us(finding) == Approx(3 * 800));
  CHECK(fact(finding, "writes") == "6");
}

TEST_CASE("checkpoints, other threads' logging, a bar's loop and one line are no logging",
          "[detect][synchronous_logging]") {
  HostRun t;
  t.frame("torch/serialization.py(900): save", 100, 3'000);
  t.frame("<built-in method write of _io.BufferedWriter object at 0x7f>", 200, 1'000);
  t.frame("<built-in method write of _io.BufferedWriter object at 0x7f>", 1'300, 1'000);
  t.frame("<built-in function print>", 4'000, 900);  // once
  t.frame("tqdm/std.py(1160): __iter__", 10'000, 9'000);
  t.complete(kFrame, "logging/__init__.py(1473): info", 100, 4'000, 1, "9");
  t.complete(kFrame, "logging/__init__.py(1473): info", 5'000, 4'000, 1, "9");
  CHECK(judge("synchronous_logging", t).cost_ns == 0);
}

TEST_CASE("waits for the GPU inside a log line are not the line's",
          "[detect][synchronous_logging]") {
  RuleCase t;
  for (int i = 0; i < 3; ++i) {
    const double at = 10'000.0 * i;
    t.step(3 + i, at, 10'000).op("aten::mm", at, 20).kernel("gemm", at + 10, 4'000);
    t.frame("<built-in function print>", at + 1'000, 8'000);
    t.op("aten::item", at + 1'010, 3'500).api("cudaStreamSynchronize", at + 1'020, 3'400);
  }
  // The GPU idles from 4,010 us of each step; the host is free again at 4,420.
  const Finding finding = judge("synchronous_logging", t);
  CHECK(finding.verdict == Verdict::kPresent);
  CHECK(cost_us(finding) == Approx(3 * (9'000.0 - 4'420.0)).margin(30.0));
}

TEST_CASE("without frames silence could be logging", "[detect][synchronous_logging]") {
  HostRun t;  // 5 ms of silence in each step
  const Finding finding = judge("synchronous_logging", t);
  CHECK(finding.verdict == Verdict::kUnknown);
  CHECK(finding.missing_signals == std::vector<std::string>{"Python frames (with_stack)"});
  HostRun busy;
  for (int i = 0; i < HostRun::kSteps; ++i) busy.op("aten::mm", HostRun::start(i), 5'000);
  CHECK(judge("synchronous_logging", busy).verdict == Verdict::kAbsent);
}
