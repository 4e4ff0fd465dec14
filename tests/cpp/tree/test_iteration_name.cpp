#include "catch.hpp"
#include "traceap/tree/iteration_name.hpp"

using namespace traceap;

namespace {

struct Group {
  std::optional<std::int64_t> requests, tokens, cached, squares, keys;
};

void check(const RequestGroup& found, const Group& expected) {
  CHECK(found.requests == expected.requests);
  CHECK(found.tokens == expected.tokens);
  CHECK(found.cached_tokens == expected.cached);
  CHECK(found.query_squares == expected.squares);
  CHECK(found.query_keys == expected.keys);
}

struct Case {
  const char* name;
  ServingEngine engine;
  IterationPhase phase;
  std::optional<std::int64_t> requests;
  Group prefill, decode;
  std::optional<std::int64_t> graph_batch = std::nullopt;
};

constexpr auto kNone = std::nullopt;

}  // namespace

TEST_CASE("iterations of serving engines say what their requests are in",
          "[tree][iteration_name]") {
  using E = ServingEngine;
  using P = IterationPhase;
  const Case kCases[] = {
      {"execute_context_2(512)_generation_30(30)", E::kVllm, P::kMixed, 32, {2, 512}, {30, 30}},
      {"execute_context_0(0)_generation_32(128)", E::kVllm, P::kSpeculative, 32, {0, 0}, {32, 128}},
      {"execute_context_2(14721)_generation_0(0)", E::kVllm, P::kPrefill, 2, {2, 14721}, {0, 0}},
      {"execute_context_0(0)_generation_0(0)", E::kVllm, P::kIdle, 0, {0, 0}, {0, 0}},
      {"execute_7_context_1(sq5sk9sqsq25sqsk45)_generation_2(sq2sk7sqsq2sqsk7)",
       E::kVllm,
       P::kMixed,
       3,
       {1, 5, 9, 25, 45},
       {2, 2, 7, 2, 7}},
      {"step[DECODE bs=64]", E::kSglang, P::kDecode, 64, {0}, {64, 64}},
      {"step[decode bs=2]", E::kSglang, P::kDecode, 2, {0}, {2, 2}},
      {"step[DECODE bs=64 g_sq=128 g_sqsq=256 g_sqsk=262144 g_sk=131072]",
       E::kSglang,
       P::kSpeculative,
       64,
       {0},
       {64, 128, 131072, 256, 262144}},
      {"step[ EXTEND bs=4 toks=512 ]", E::kSglang, P::kPrefill, 4, {4, 512}, {0}},
      {"step[MIXED bs=8 toks=100]", E::kSglang, P::kMixed, 8, {}, {}},
      {"step[MIXED bs=5 c=2 g=3 c_sq=6 c_sk=7 c_sqsq=20 c_sqsk=21 g_sq=3 g_sk=61 g_sqsq=3 "
       "g_sqsk=61]",
       E::kSglang,
       P::kMixed,
       5,
       {2, 6, 7, 20, 21},
       {3, 3, 61, 3, 61}},
      {"step[TARGET_VERIFY bs=2 c_sq=6 c_sqsq=18 c_sqsk=90 c_sk=30]",
       E::kSglang,
       P::kSpeculative,
       2,
       {0, kNone, 30, 18, 90},
       {2, 6}},
      {"step[IDLE bs=0]", E::kSglang, P::kIdle, 0, {0}, {0}},
      {"prefill[bs=2 tok=14721 ctx=[7803, 6918] sqsq=108745533 sqsk=119025333 sk=16221]",
       E::kAtom,
       P::kPrefill,
       2,
       {2, 14721, 16221, 108745533, 119025333},
       {0}},
      {"decode[bs=117/128 tok=117 d=117]", E::kAtom, P::kDecode, 117, {0}, {117, 117}, 128},
      {"decode[bs=32 tok=128 d=32 spec=3]", E::kAtom, P::kSpeculative, 32, {0}, {32, 128}},
      {"decode[bs=128 tok=384 p=2 d=126 sqsq=132612 sqsk=1114112 sk=258048 tbo=1]",
       E::kAtom,
       P::kMixed,
       128,
       {2},
       {126, kNone, 258048, 132612, 1114112}},
      {"execute_diffusion_1_1024x1024", E::kXdit, P::kDiffusion, 1, {}, {}},
      {"[Executor] _forward_step 7: 2 ctx reqs, 0 gen reqs",
       E::kTensorRtLlm,
       P::kPrefill,
       2,
       {2},
       {0}},
      {"[Executor] _forward_step 60000: 0 ctx reqs, 0 ctx tokens, 32 gen reqs",
       E::kTensorRtLlm,
       P::kDecode,
       32,
       {0, 0},
       {32}},
      {"[Executor] _forward_step: 1 ctx reqs, 3 gen reqs", E::kTensorRtLlm, P::kMixed, 4, {1}, {3}},
  };
  for (const Case& expected : kCases) {
    INFO(expected.name);
    const auto mark = read_iteration_name(expected.name);
    REQUIRE(mark);
    CHECK(mark->engine == expected.engine);
    CHECK(mark->phase == expected.phase);
    CHECK(mark->requests == expected.requests);
    CHECK(mark->graph_batch == expected.graph_batch);
    check(mark->prefill, expected.prefill);
    check(mark->decode, expected.decode);
  }
}

TEST_CASE("other names, and cut or hostile ones, mark no iteration", "[tree][iteration_name]") {
  for (const char* name :
       {"", "step", "step 3", "step[3]", "step[DECODE bs=64", "execute_", "execute_context_",
        "execute_context_2", "execute_context_2(512)_generation_",
        "execute_context_-1(2)_generation_3(3)", "execute_diffusion_", "prefill", "decode",
        "[Executor] _forward_step 7", "execute_context_99999999999999999999(1)_generation_1(1)",
        "aten::mm"}) {
    INFO(name);
    CHECK_FALSE(read_iteration_name(name));
  }
}

TEST_CASE("sums of requests that overflow are unknown", "[tree][iteration_name]") {
  const auto mark = read_iteration_name(
      "execute_context_9223372036854775807(1)_generation_9223372036854775807(1)");
  REQUIRE(mark);
  CHECK_FALSE(mark->requests);
}

TEST_CASE("prompts without a cached beginning have as many queries as keys",
          "[tree][iteration_name]") {
  for (const char* name : {"prefill[bs=2 tok=20 ctx=[8, 12]]", "prefill[bs=1 tok=20 ctx=20]"}) {
    const auto mark = read_iteration_name(name);
    REQUIRE(mark);
    CHECK(mark->prefill.cached_tokens == 20);
    const std::int64_t squares = mark->requests == 2 ? 8 * 8 + 12 * 12 : 400;
    CHECK(mark->prefill.query_squares == squares);
    CHECK(mark->prefill.query_keys == squares);
  }
  for (const char* name :
       {"prefill[bs=2 tok=19 ctx=[8, 12]]", "prefill[bs=6 tok=24 ctx=[8, 8, 8]...+3]",
        "prefill[bs=2 tok=20 ctx=[8, 12", "prefill[bs=2 tok=20 ctx=[8, x]]",
        "prefill[bs=1 tok=9223372036854775807 ctx=9223372036854775807]", "prefill[bs=1 tok=8]"}) {
    INFO(name);
    const auto mark = read_iteration_name(name);
    CHECK_FALSE((mark && mark->prefill.query_keys));
  }
}
