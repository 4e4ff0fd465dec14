#pragma once
// Annotations by which serving engines mark an iteration: vLLM, SGLang, ATOM, xDiT, TensorRT-LLM.

#include <cstdint>
#include <optional>
#include <string_view>

namespace traceap {

/// What the requests of an iteration are in.
enum class IterationPhase : std::uint8_t {
  kUnmarked = 0,  ///< the name does not tell
  kPrefill,
  kDecode,
  kMixed,        ///< some requests prefill, others decode
  kSpeculative,  ///< tokens are drafted or verified: several of each request
  kDiffusion,    ///< one denoising step
  kIdle,         ///< no request: the rank keeps others company
};
inline constexpr int kIterationPhaseCount = static_cast<int>(IterationPhase::kIdle) + 1;
/// snake_case, such as "decode".
std::string_view iteration_phase_name(IterationPhase phase);

enum class ServingEngine : std::uint8_t { kVllm = 0, kSglang, kAtom, kXdit, kTensorRtLlm };
inline constexpr int kServingEngineCount = static_cast<int>(ServingEngine::kTensorRtLlm) + 1;
/// Lower case, such as "tensorrt-llm".
std::string_view serving_engine_name(ServingEngine engine);

/// The requests of one phase; what the name leaves out is empty.
struct RequestGroup {
  std::optional<std::int64_t> requests;
  std::optional<std::int64_t> tokens;         ///< queries, over the requests
  std::optional<std::int64_t> cached_tokens;  ///< keys, over the requests
  std::optional<std::int64_t> query_squares;  ///< sum of queries squared
  std::optional<std::int64_t> query_keys;     ///< sum of queries times keys
};

struct IterationMark {
  ServingEngine engine = ServingEngine::kVllm;
  IterationPhase phase = IterationPhase::kUnmarked;
  std::optional<std::int64_t> requests;     ///< of all phases
  std::optional<std::int64_t> graph_batch;  ///< batch of the graph that ran, padding included
  RequestGroup prefill, decode;
};

/// O(length). Reads these names, and nothing else:
/// - vLLM: `execute_context_R(T)_generation_R(T)` and `execute_N_context_R(sq..sk..sqsq..sqsk..)_
///   generation_R(...)` (vllm#37524);
/// - SGLang: `step[DECODE bs=B]`, `step[EXTEND bs=B toks=T]`, `step[MIXED bs=B c=R g=R]`,
///   `step[TARGET_VERIFY ..]`, `step[IDLE ..]`, each with sums such as `c_sqsk=` (sglang#24911);
/// - ATOM: `prefill[bs=B tok=T ctx=[..]]`, `decode[bs=B/PADDED tok=T p=R d=R spec=K]`, with sums
///   such as `sqsk=` (ATOM#477);
/// - xDiT: `execute_diffusion_B_WxH`;
/// - TensorRT-LLM: `[Executor] _forward_step N: R ctx reqs, [T ctx tokens, ]R gen reqs`.
std::optional<IterationMark> read_iteration_name(std::string_view name);

}  // namespace traceap
