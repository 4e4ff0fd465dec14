#include "catch.hpp"
#include "traceap/tree/iteration_name.hpp"

using namespace traceap;

TEST_CASE("iterations of serving engines say how many requests are in which phase",
          "[tree][iteration_name]") {
  const auto mixed = read_iteration_name("execute_context_2(512)_generation_30(31)");
  REQUIRE(mixed);
  CHECK(mixed->phase == IterationPhase::kMixed);
  CHECK(mixed->prefill_requests == 2);
  CHECK(mixed->prefill_tokens == 512);
  CHECK(mixed->decode_requests == 30);
  CHECK(mixed->decode_tokens == 31);
  const auto detailed =
      read_iteration_name("execute_3_context_1(sq5sk9sqsq25sqsk45)_generation_2(sq2sk7sqsq2sqsk7)");
  REQUIRE(detailed);
  CHECK(detailed->prefill_requests == 1);
  CHECK_FALSE(detailed->prefill_tokens);
  CHECK(detailed->decode_requests == 2);
  const auto decode = read_iteration_name("step[DECODE bs=64 toks=64]");
  REQUIRE(decode);
  CHECK(decode->phase == IterationPhase::kDecode);
  CHECK(decode->decode_requests == 64);
  CHECK(decode->decode_tokens == 64);
  const auto forward = read_iteration_name("[Executor] _forward_step 7: 2 ctx reqs, 0 gen reqs");
  REQUIRE(forward);
  CHECK(forward->phase == IterationPhase::kPrefill);
  CHECK(forward->prefill_requests == 2);
}

TEST_CASE("other names, and cut or hostile ones, mark no iteration", "[tree][iteration_name]") {
  for (const char* name :
       {"", "step", "step 3", "step[DECODE bs=64", "execute_", "execute_context_",
        "execute_context_2", "execute_context_2(512)_generation_",
        "execute_context_-1(2)_generation_3(3)", "execute_diffusion_", "prefill", "decode",
        "[Executor] _forward_step 7", "execute_context_99999999999999999999(1)_generation_1(1)",
        "aten::mm"}) {
    INFO(name);
    CHECK_FALSE(read_iteration_name(name));
  }
}
