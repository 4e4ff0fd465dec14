#include "catch.hpp"
#include "tree_helpers.hpp"

using namespace traceap;

namespace {

std::vector<std::string> step_names(const EventTree& tree) {
  std::vector<std::string> names;
  for (const Step& step : tree.steps) names.push_back(step.name);
  return names;
}

std::string sequence(int number, int forward_thread = 0) {
  return R"("Sequence number":)" + std::to_string(number) + R"(,"Fwd thread id":)" +
         std::to_string(forward_thread);
}

const std::string kEngine = "autograd::engine::evaluate_function: ";

/// One training step of `length` us at `t`, as the profiler writes it: main thread 1, engine 2.
void add_training_step(TraceText& text, double t, const std::string& annotation) {
  if (!annotation.empty()) text.host("user_annotation", annotation, t, 100);
  text.host("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", t + 1,
            8)
      .host("cpu_op", "aten::stack", t + 2, 3)
      .host("cpu_op", "aten::to", t + 10, 4)
      .host("user_annotation", "Optimizer.zero_grad#SGD.zero_grad", t + 15, 5)
      .host("cpu_op", "aten::zero_", t + 16, 2)
      .host("cpu_op", "aten::linear", t + 21, 10, sequence(int(t)))
      .host("cpu_op", "aten::addmm", t + 22, 8, sequence(int(t)))
      .launch("gemm", t + 24, 2, t + 28, 10, 7, int(t) + 1)
      .complete("cpu_op", kEngine + "AddmmBackward0", t + 40, 10, 1, "2", sequence(int(t), 1))
      .complete("cpu_op", "AddmmBackward0", t + 41, 8, 1, "2", sequence(int(t), 1))
      .complete("cuda_runtime", "cudaLaunchKernel", t + 43, 2, 1, "2",
                R"("correlation":)" + std::to_string(int(t) + 2))
      .gpu("kernel", "gemm_backward", t + 48, 10, 7, int(t) + 2)
      .complete("cpu_op", "engine bookkeeping", t + 52, 2, 1, "2")
      .host("user_annotation", "Optimizer.step#SGD.step", t + 60, 20)
      .host("cpu_op", "aten::_foreach_add_", t + 62, 10)
      .launch("multi_tensor_apply", t + 64, 2, t + 70, 5, 7, int(t) + 3)
      .host("cpu_op", "aten::item", t + 85, 5);
}

}  // namespace

TEST_CASE("steps come from ProfilerStep annotations of the host", "[tree]") {
  const Built b = build(TraceText()
                            .host("user_annotation", "ProfilerStep#9", 0, 100)
                            .host("user_annotation", "ProfilerStep#10", 100.5, 100)
                            .host("user_annotation", "ProfilerStep#x", 300, 10)
                            .complete("gpu_user_annotation", "ProfilerStep#9", 20, 150, 0, "7")
                            .complete("Trace", "PyTorch Profiler (0)", -50, 900, 1, "Traces")
                            .gpu("kernel", "k", 250, 100, 7, 1));
  CHECK(step_names(b.tree) == std::vector<std::string>{"ProfilerStep#9", "ProfilerStep#10"});
  CHECK(b.tree.steps[0].row == b.row("ProfilerStep#9"));
  CHECK_FALSE(b.tree.steps_inferred);
  CHECK(b.tree.profiled == Interval{0, 200'500});
}

TEST_CASE("legacy steps are operators", "[tree]") {
  const Built b = build(TraceText()
                            .host("Operator", "ProfilerStep#1", 0, 10)
                            .host("Operator", "ProfilerStep#2", 10, 10));
  CHECK(b.tree.steps.size() == 2);
}

TEST_CASE("steps of several threads count once, overlapping ones don't", "[tree]") {
  TraceText text;
  for (int i = 0; i < 3; ++i) {
    text.host("user_annotation", "ProfilerStep#" + std::to_string(i), 100 * i, 100.4);
    text.complete("user_annotation", "ProfilerStep#" + std::to_string(i), 100 * i + 1, 90, 1, "2");
  }
  text.host("cuda_runtime", "cudaLaunchKernel", 5, 1, R"("correlation":1)")
      .gpu("kernel", "k", 9, 1, 7, 1);
  text.host("user_annotation", "ProfilerStep#7", 120, 20);
  const Built b = build(text);
  CHECK(b.tree.steps.size() == 3);
  CHECK(b.table.tracks[b.tree.main_track].tid == "1");
  CHECK(b.tree.steps[0].end_ns == b.tree.steps[1].start_ns);  // the rounding overlap is cut
  CHECK(b.count("steps_on_other_threads") == 3);
  CHECK(b.count("overlapping_steps") == 1);
}

TEST_CASE("without steps the profiled time is that of all complete events", "[tree]") {
  const Built b = build(TraceText()
                            .complete("Trace", "PyTorch Profiler (0)", -50, 900, 1, "Traces")
                            .host("cpu_op", "op", 5, 10)
                            .complete("cuda_sync", "Stream Sync", 2, 1, 0, "7")
                            .gpu("kernel", "k", 250, 100, 7, 1)
                            .raw(R"({"ph":"i","name":"late","pid":1,"tid":1,"ts":900,"s":"t"})"));
  CHECK(b.tree.profiled == Interval{2'000, 350'000});
}

TEST_CASE("the main thread is the one that runs the training loop", "[tree]") {
  TraceText text;
  for (int i = 0; i < 3; ++i) add_training_step(text, 1000 + 100 * i, "");
  for (int i = 0; i < 50; ++i) {  // the engine launches more
    text.complete("cpu_op", kEngine + "MulBackward0", 1400 + i, 1, 1, "2");
    text.complete("cuda_runtime", "cudaLaunchKernel", 1400 + i, 0.5, 1, "2",
                  R"("correlation":)" + std::to_string(5000 + i));
    text.gpu("kernel", "mul", 1410 + i, 1, 7, 5000 + i);
  }
  const Built b = build(text);
  CHECK(b.table.tracks[b.tree.main_track].tid == "1");
}

TEST_CASE("phases of a training step", "[tree]") {
  TraceText text;
  for (int i = 0; i < 2; ++i) {
    add_training_step(text, 1000 + 100 * i, "ProfilerStep#" + std::to_string(i));
  }
  const Built b = build(text);
  CHECK(b.phase("ProfilerStep#0") == Phase::kOther);
  CHECK(b.phase("aten::stack") == Phase::kInput);
  CHECK(b.phase("aten::to", 1) == Phase::kForward);
  CHECK(b.phase("aten::zero_") == Phase::kOptimizer);
  CHECK(b.phase("aten::linear") == Phase::kForward);
  CHECK(b.phase("aten::addmm", 1) == Phase::kForward);
  CHECK(b.phase("cudaLaunchKernel") == Phase::kForward);
  CHECK(b.phase("gemm") == Phase::kForward);
  CHECK(b.phase("AddmmBackward0") == Phase::kBackward);
  CHECK(b.phase("engine bookkeeping") == Phase::kBackward);
  CHECK(b.phase("gemm_backward", 1) == Phase::kBackward);
  CHECK(b.phase("aten::_foreach_add_") == Phase::kOptimizer);
  CHECK(b.phase("multi_tensor_apply") == Phase::kOptimizer);
  CHECK(b.phase("aten::item") == Phase::kOther);
}

TEST_CASE("inference has no backward: all of a step's ops are forward", "[tree]") {
  const Built b = build(TraceText()
                            .host("user_annotation", "ProfilerStep#3", 0, 100)
                            .host("cpu_op", "aten::mm", 10, 10)
                            .host("python_function", "train.py(3): run", 30, 50)
                            .host("cpu_op", "aten::relu", 40, 10)
                            .host("cpu_op", "outside", 200, 10));
  CHECK(b.phase("aten::mm") == Phase::kForward);
  CHECK(b.phase("aten::relu") == Phase::kForward);
  CHECK(b.phase("train.py(3): run") == Phase::kOther);
  CHECK(b.phase("outside") == Phase::kOther);
}

TEST_CASE("gradient accumulation: the second forward comes before the second backward", "[tree]") {
  TraceText text;
  text.host("user_annotation", "ProfilerStep#3", 0, 100);
  for (int i = 0; i < 2; ++i) {
    text.host("cpu_op", "aten::mm", 10 + 40 * i, 10);
    text.complete("cpu_op", kEngine + "MmBackward0", 25 + 40 * i, 10, 1, "2");
  }
  text.host("cpu_op", "aten::add_", 80, 5);
  const Built b = build(text);
  CHECK(b.phase("aten::mm", 0) == Phase::kForward);
  CHECK(b.phase("aten::mm", 1) == Phase::kForward);
  CHECK(b.phase("aten::add_") == Phase::kOther);
}

TEST_CASE("names: words count in annotations and functions, not in paths", "[tree]") {
  const Built b =
      build(TraceText()
                .host("python_function", "/home/forward/optimizer/backward.py(10): main", 0, 1000)
                .host("cpu_op", "plain", 1, 1)
                .host("python_function", "nn.Module: Linear_0", 10, 10)
                .host("cpu_op", "in module", 11, 1)
                .host("user_annotation", "## backward ##", 30, 30)
                .host("cpu_op", "in backward", 31, 1)
                .host("user_annotation", "recompute forward", 35, 10)
                .host("cpu_op", "recomputed", 36, 1)
                .host("user_annotation", "forward_backward_func", 70, 10)
                .host("cpu_op", "both", 71, 1)
                .host("user_annotation", "Optimizer.step#AdamW.step", 90, 100)
                .host("python_function", "nn.Module: Closure_0", 91, 50)
                .host("cpu_op", "in closure", 92, 1)
                .host("cpu_op", "update", 150, 1)
                .host("python_function", "torch/optim/sgd.py(60): step", 200, 10)
                .host("cpu_op", "sgd", 201, 1)
                .host("python_function", "torch/utils/data/dataloader.py(521): __next__", 220, 10)
                .host("cpu_op", "fetch", 221, 1));
  CHECK(b.phase("plain") == Phase::kOther);
  CHECK(b.phase("in module") == Phase::kForward);
  CHECK(b.phase("in backward") == Phase::kBackward);
  CHECK(b.phase("recomputed") == Phase::kBackward);
  CHECK(b.phase("both") == Phase::kOther);
  CHECK(b.phase("in closure") == Phase::kForward);
  CHECK(b.phase("update") == Phase::kOptimizer);
  CHECK(b.phase("sgd") == Phase::kOptimizer);
  CHECK(b.phase("fetch") == Phase::kInput);
}

TEST_CASE("without steps an op is forward if backward goes back to it", "[tree]") {
  const Built b =
      build(TraceText()
                .host("cpu_op", "aten::mm", 0, 10, sequence(4))
                .host("cuda_runtime", "cudaLaunchKernel", 2, 2)
                .host("cpu_op", "metrics", 20, 10, sequence(5))
                .complete("cpu_op", kEngine + "MmBackward0", 40, 10, 1, "2", sequence(4, 1)));
  CHECK(b.phase("aten::mm") == Phase::kForward);
  CHECK(b.phase("cudaLaunchKernel") == Phase::kForward);
  CHECK(b.phase("metrics") == Phase::kOther);
}

TEST_CASE("backward ops go back to the op that made their node", "[tree]") {
  const Built b =
      build(TraceText()
                .host("cpu_op", "aten::zero_", 0, 2, sequence(7))
                .host("cpu_op", "aten::linear", 10, 10, sequence(7))
                .host("cpu_op", "aten::addmm", 11, 8, sequence(7))
                .host("cpu_op", "aten::relu", 30, 5, sequence(8))
                .host("cpu_op", "unnumbered", 36, 2)
                .complete("cpu_op", kEngine + "ReluBackward0", 40, 10, 1, "2", sequence(8, 1))
                .complete("cpu_op", "ReluBackward0", 41, 8, 1, "2", sequence(8, 1))
                .complete("cpu_op", "aten::threshold_backward", 42, 5, 1, "2")
                .complete("cpu_op", kEngine + "AddmmBackward0", 60, 20, 1, "2", sequence(7, 1))
                .complete("cpu_op", "recomputed", 61, 5, 1, "2", sequence(8, 0))
                .complete("cpu_op", kEngine + "Unknown", 90, 5, 1, "2", sequence(99, 1))
                .host("cpu_op", "next step", 100, 5, sequence(7))
                .complete("cpu_op", "negative", 110, 5, 1, "2", sequence(-1, 1)));
  const auto forward = [&](const std::string& name) { return b.name(b.tree.forward[b.row(name)]); };
  CHECK(forward(kEngine + "ReluBackward0") == "aten::relu");
  CHECK(forward("ReluBackward0") == "aten::relu");
  CHECK(forward(kEngine + "AddmmBackward0") == "aten::addmm");
  CHECK(forward("aten::threshold_backward") == "none");
  CHECK(forward("recomputed") == "none");
  CHECK(forward(kEngine + "Unknown") == "none");
  CHECK(forward("aten::linear") == "none");
  CHECK(forward("negative") == "none");
}

TEST_CASE("a loss inside a backward annotation is forward all the same", "[tree]") {
  const Built b =
      build(TraceText()
                .host("user_annotation", "## backward ##", 0, 100)
                .host("cpu_op", "aten::nll_loss", 10, 10, sequence(3))
                .host("cpu_op", "inside", 11, 2)
                .host("cpu_op", "aten::ones_like", 25, 5)
                .complete("cpu_op", kEngine + "NllLossBackward0", 40, 20, 1, "2", sequence(3, 1))
                .complete("cpu_op", "recomputed", 41, 5, 1, "2", sequence(3, 0)));
  CHECK(b.name(b.tree.forward[b.row(kEngine + "NllLossBackward0")]) == "aten::nll_loss");
  CHECK(b.phase("aten::nll_loss") == Phase::kForward);
  CHECK(b.phase("inside") == Phase::kForward);
  CHECK(b.phase("aten::ones_like") == Phase::kBackward);
  CHECK(b.phase("recomputed") == Phase::kBackward);
}

TEST_CASE("legacy backward nodes stand without an engine frame", "[tree]") {
  const Built b = build(
      TraceText()
          .host("Operator", "aten::cudnn_convolution", 0, 10, sequence(3))
          .complete("Operator", "CudnnConvolutionBackward", 20, 10, 1, "\"2\"", sequence(3, 1)));
  CHECK(b.name(b.tree.forward[b.row("CudnnConvolutionBackward")]) == "aten::cudnn_convolution");
  CHECK(b.phase("CudnnConvolutionBackward") == Phase::kBackward);
}

TEST_CASE("on the CPU backward runs on the thread that ran forward", "[tree]") {
  const Built b = build(TraceText()
                            .host("cpu_op", "aten::mul", 0, 10, sequence(3))
                            .host("cpu_op", kEngine + "MulBackward0", 20, 20, sequence(3, 1))
                            .host("cpu_op", "aten::mul", 22, 5));
  CHECK(b.tree.forward[b.row(kEngine + "MulBackward0")] == b.row("aten::mul", 0));
  CHECK(b.phase("aten::mul", 1) == Phase::kBackward);
  CHECK(b.tree.gpu_rows.empty());
}

TEST_CASE("forward threads with the same numbers are told apart", "[tree]") {
  TraceText text;
  text.host("cpu_op", "a5", 0, 5, sequence(5)).host("cpu_op", "a6", 10, 5, sequence(6));
  text.complete("cpu_op", "b6", 12, 5, 1, "3", sequence(6))
      .complete("cpu_op", "b7", 20, 5, 1, "3", sequence(7))
      .complete("cpu_op", "from a5", 30, 2, 1, "2", sequence(5, 1))
      .complete("cpu_op", "from a6", 33, 2, 1, "2", sequence(6, 1))
      .complete("cpu_op", "from b6", 36, 2, 1, "4", sequence(6, 2))
      .complete("cpu_op", "from b7", 39, 2, 1, "4", sequence(7, 2));
  for (const char* thread : {"2", "4"}) {
    text.complete("cpu_op", kEngine + "all of them", 25, 30, 1, thread);
  }
  const Built b = build(text);
  for (const std::string op : {"a5", "a6", "b6", "b7"}) {
    CHECK(b.name(b.tree.forward[b.row("from " + op)]) == op);
  }
}

TEST_CASE("steps are inferred from a training loop that repeats", "[tree]") {
  TraceText text;
  text.host("cpu_op", "set up", 900, 50);
  for (int i = 0; i < 5; ++i) add_training_step(text, 1000 + 100 * i, "");
  const Built b = build(text);
  CHECK(b.tree.steps_inferred);
  CHECK(step_names(b.tree) ==
        std::vector<std::string>{"step 0", "step 1", "step 2", "step 3", "step 4"});
  CHECK(b.tree.steps[0].start_ns == 1'001'000);  // at the loader
  CHECK(b.tree.steps[0].end_ns == b.tree.steps[1].start_ns);
  CHECK(b.tree.steps[4].end_ns == 1'490'000);
  CHECK(b.tree.steps[0].row == kNoRow);
  CHECK(b.count("inferred_steps") == 5);
  CHECK(b.tree.profiled == Interval{900'000, 1'490'000});  // inferred steps don't bound it
  CHECK(b.phase("aten::to", 2) == Phase::kForward);
}

TEST_CASE("the loop may be wrapped in frames", "[tree]") {
  TraceText text;
  text.host("python_function", "train.py(1): <module>", 0, 1000);
  text.host("python_function", "train.py(9): main", 1, 998);
  text.host("python_function", "train.py(5): parse", 2, 20);
  text.host("python_function", "train.py(7): loop", 30, 960);
  for (int i = 0; i < 4; ++i) {
    text.host("user_annotation", "iteration " + std::to_string(i), 100 + 200 * i, 150);
    text.host("cpu_op", "aten::mm", 110 + 200 * i, 100);
  }
  const Built b = build(text);
  CHECK(step_names(b.tree) ==
        std::vector<std::string>{"iteration 0", "iteration 1", "iteration 2", "iteration 3"});
  CHECK(b.tree.steps[1].row == b.row("iteration 1"));
  CHECK(b.tree.steps[1].end_ns == 450'000);
}

TEST_CASE("a plain sequence of ops counts only if it is all there is", "[tree]") {
  const auto add_pass = [](TraceText& text, double t, int ops, double gap) {
    for (int i = 0; i < ops; ++i) {
      text.host("cpu_op", "op" + std::string(1, char('a' + i)), t + gap * i, gap * 0.8);
    }
  };
  SECTION("cut off at both ends") {
    TraceText text;
    text.host("cpu_op", "opj", 90, 8);
    for (int i = 0; i < 4; ++i) add_pass(text, 100 + 100 * i, 10, 10);
    text.host("cpu_op", "opa", 500, 8);
    const Built b = build(text);
    CHECK(b.tree.steps.size() == 4);
    CHECK(b.tree.steps_inferred);
  }
  SECTION("layers between an embedding and a head are no steps") {
    TraceText text;
    text.host("cpu_op", "aten::embedding", 90, 8);
    for (int i = 0; i < 12; ++i) add_pass(text, 100 + 100 * i, 10, 10);
    text.host("cpu_op", "aten::log_softmax", 1310, 8);
    CHECK(build(text).tree.steps.empty());
  }
  SECTION("two repetitions are not enough") {
    TraceText text;
    for (int i = 0; i < 2; ++i) add_pass(text, 100 + 100 * i, 10, 10);
    CHECK(build(text).tree.steps.empty());
  }
  SECTION("a short pattern is a layer") {
    TraceText text;
    for (int i = 0; i < 20; ++i) add_pass(text, 100 + 30 * i, 3, 10);
    CHECK(build(text).tree.steps.empty());
  }
  SECTION("durations that differ are no steps") {
    TraceText text;
    double t = 100;
    for (const double gap : {10.0, 10.0, 60.0, 10.0, 10.0}) {
      add_pass(text, t, 10, gap);
      t += 10 * gap;
    }
    CHECK(build(text).tree.steps.empty());
  }
}

TEST_CASE("a training loop of frames and odd ops is told by its loader calls", "[tree]") {
  TraceText text;
  for (int i = 0; i < 6; ++i) {
    const double t = 100 * i;
    text.host("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", t,
              8);
    for (int k = 0; k <= i; ++k)
      text.host("cpu_op", "aten::op" + std::string(1, char('a' + k * i % 5)), t + 10 + 5 * k, 4);
  }
  const Built b = build(text);
  CHECK(b.tree.steps.size() == 5);  // nothing says where the last one ends
  CHECK(b.tree.steps[4].end_ns == 500'000);
}

TEST_CASE("annotated steps that cross each other end where the next begins", "[tree]") {
  TraceText text;
  for (int i = 0; i < 5; ++i) text.host("user_annotation", "step 12", 1000 * i, 1500);
  const Built b = build(text);
  REQUIRE(b.tree.steps.size() == 5);
  for (std::size_t i = 1; i < 5; ++i) {
    CHECK(b.tree.steps[i - 1].end_ns == b.tree.steps[i].start_ns);
  }
  CHECK(b.tree.steps[4].end_ns == 5'500'000);
}

TEST_CASE("one slow step among many is still a step", "[tree]") {
  TraceText text;
  double t = 0;
  for (int i = 0; i < 30; ++i) {
    text.host("cpu_op", "aten::mm", t, 20)
        .host("user_annotation", "Optimizer.step#SGD.step", t + 30, 10);
    t += i == 12 ? 500 : 50;
  }
  const Built b = build(text);
  CHECK(b.tree.steps.size() == 30);
  CHECK(b.tree.steps[0].start_ns == 0);  // behind the optimizer of the step before
}

TEST_CASE("numbered layers are no steps", "[tree]") {
  TraceText text;
  for (int i = 0; i < 12; ++i) {
    text.host("user_annotation", "TransformerLayer_" + std::to_string(i), 100 * i, 90);
  }
  CHECK(build(text).tree.steps.empty());
}

TEST_CASE("two optimizers that alternate give one step, not two", "[tree]") {
  TraceText text;
  for (int i = 0; i < 4; ++i) {
    const double t = 100 * i;
    text.host("cpu_op", "aten::generator", t, 20)
        .host("user_annotation", "Optimizer.step#Adam.step", t + 25, 10)
        .host("cpu_op", "aten::discriminator", t + 40, 20)
        .host("user_annotation", "Optimizer.step#Adam.step", t + 65, 10);
  }
  const Built b = build(text);
  CHECK(b.tree.steps.size() == 4);
  CHECK(b.tree.steps[1].start_ns == 100'000);
}

namespace {

/// What plain Adam does to each of `parameters` tensors, from `t` on.
void add_parameter_loop(TraceText& text, double t, int parameters) {
  for (int i = 0; i < parameters; ++i) {
    for (const char* op : {"aten::lerp_", "aten::mul_", "aten::addcmul_", "aten::sqrt", "aten::div",
                           "aten::add_", "aten::addcdiv_", "aten::to", "aten::item"}) {
      text.host("cpu_op", op, t, 8);
      t += 10;
    }
  }
}

}  // namespace

TEST_CASE("the loop of an optimizer over its parameters is no step", "[tree]") {
  TraceText text;
  SECTION("inside of its range, which fills the trace") {
    text.host("python_function", "train.py(9): main", 0, 2000);
    text.host("user_annotation", "Optimizer.step#Adam.step", 50, 1940);
    add_parameter_loop(text, 60, 20);
  }
  SECTION("in a frame of its own library") {
    text.host("python_function", "torch/optim/adam.py(230): step", 50, 1940);
    add_parameter_loop(text, 60, 20);
  }
  SECTION("without any range") { add_parameter_loop(text, 60, 20); }
  SECTION("one optimizer for each parameter") {
    text.host("cpu_op", "aten::mm", 0, 40);
    for (int i = 0; i < 30; ++i) {
      text.host("user_annotation", "Optimizer.step#SGD.step", 60 + 10 * i, 8);
    }
  }
  SECTION("optimizers that step inside of the backward pass") {
    for (int i = 0; i < 30; ++i) {
      const double t = 60 + 30 * i;
      text.host("cpu_op", "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", t,
                8);
      text.host("user_annotation", "Optimizer.step#SGD.step", t + 10, 8);
      text.host("user_annotation", "Optimizer.zero_grad#SGD.zero_grad", t + 20, 8);
    }
  }
  CHECK(build(text).tree.steps.empty());
}

TEST_CASE("steps that end in a loop over parameters are steps", "[tree]") {
  TraceText text;
  for (int i = 0; i < 5; ++i) {
    const double t = 1000 * i;
    text.host("cpu_op", "aten::mm", t, 40).host("cpu_op", "aten::relu", t + 45, 10);
    text.host("user_annotation", "Optimizer.step#Adam.step", t + 60, 930);
    add_parameter_loop(text, t + 65, 10);
  }
  CHECK(build(text).tree.steps.size() == 5);
}

TEST_CASE("a copy between calls of an optimizer may stand for a replayed graph", "[tree]") {
  TraceText text;
  for (int i = 0; i < 6; ++i) {
    text.host("cpu_op", "aten::copy_", 100 * i, 20);
    text.host("user_annotation", "Optimizer.step#SGD.step", 100 * i + 60, 20);
  }
  CHECK(build(text).tree.steps.size() == 6);
}

TEST_CASE("a profiler that marked steps is believed, pattern or not", "[tree]") {
  TraceText text;
  text.host("user_annotation", "ProfilerStep#1", 990, 700);
  for (int i = 0; i < 5; ++i) add_training_step(text, 1000 + 100 * i, "");
  const Built b = build(text);
  CHECK(b.tree.steps.size() == 1);
  CHECK_FALSE(b.tree.steps_inferred);
}

namespace {

/// The events of a text, last first.
TraceText reversed(const TraceText& text) {
  const std::string json = text.json();
  const std::size_t begin = json.find('[') + 1;
  TraceText out;
  for (std::size_t end = json.rfind(']'); end > begin;) {
    const std::size_t cut = json.rfind(",\n", end - 1);
    const bool first = cut == std::string::npos || cut < begin;
    const std::size_t from = first ? begin : cut + 2;
    out.raw(json.substr(from, end - from));
    end = first ? begin : cut;
  }
  return out;
}

}  // namespace

TEST_CASE("the order of events in the file changes nothing", "[tree]") {
  TraceText text;
  for (int i = 0; i < 5; ++i) {
    add_training_step(text, 1000 + 100 * i, "");
    for (const char* thread : {"9", "8"}) {  // two threads that look the same
      text.complete("cpu_op", "aten::twin", 1000 + 100 * i, 10, 1, thread);
    }
  }
  const Built a = build(text), b = build(reversed(text));
  REQUIRE(a.table.size() == b.table.size());
  CHECK(a.tree.parent == b.tree.parent);
  CHECK(a.tree.launch == b.tree.launch);
  CHECK(a.tree.op == b.tree.op);
  CHECK(a.tree.forward == b.tree.forward);
  CHECK(a.tree.phase == b.tree.phase);
  CHECK(step_names(a.tree) == step_names(b.tree));
  CHECK(a.tree.parent == b.tree.parent);
}
