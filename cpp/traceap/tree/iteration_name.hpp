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
  kMixed,      ///< some requests prefill, others decode
  kDiffusion,  ///< one denoising step
};
inline constexpr int kIterationPhaseCount = static_cast<int>(IterationPhase::kDiffusion) + 1;
/// snake_case, such as "decode".
std::string_view iteration_phase_name(IterationPhase phase);

struct IterationMark {
  IterationPhase phase = IterationPhase::kUnmarked;
  std::optional<std::int64_t> prefill_requests, prefill_tokens, decode_requests, decode_tokens;
};

/// O(length). Reads `execute_context_R(T)_generation_R(T)`,
/// `execute_N_context_R(...)_generation_R(...)`, `step[DECODE bs=B]`, `step[EXTEND bs=B toks=T]`,
/// `step[MIXED ...]`, `prefill[...]`, `decode[...]`, `execute_diffusion_B_WxH` and
/// `[Executor] _forward_step N: R ctx reqs, R gen reqs`; nothing where the name is none of these.
std::optional<IterationMark> read_iteration_name(std::string_view name);

}  // namespace traceap
