#include "traceap/tree/iteration_name.hpp"

#include <array>
#include <charconv>

#include "traceap/base/text.hpp"

namespace traceap {
namespace {

using Count = std::optional<std::int64_t>;

/// Takes words and numbers off the front of a name.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool word(std::string_view expected) {
    if (!text_.starts_with(expected)) return false;
    text_.remove_prefix(expected.size());
    return true;
  }

  Count number() {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (error != std::errc() || value < 0) return std::nullopt;
    text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
    return value;
  }

  /// Skips `(...)`; a plain number in it is returned.
  Count parenthesis() {
    if (!word("(")) return std::nullopt;
    Count inside = number();
    if (!text_.starts_with(")")) inside.reset();
    const std::size_t close = text_.find(')');
    text_.remove_prefix(close == std::string_view::npos ? text_.size() : close + 1);
    return inside;
  }

  /// The number behind `key`, wherever it stands.
  Count behind(std::string_view key) const {
    const std::size_t place = text_.find(key);
    if (place == std::string_view::npos) return std::nullopt;
    return Scanner(text_.substr(place + key.size())).number();
  }

  std::string_view rest() const { return text_; }

 private:
  std::string_view text_;
};

IterationPhase phase_of(Count prefill, Count decode) {
  const bool prefills = prefill.value_or(0) > 0, decodes = decode.value_or(0) > 0;
  if (prefills) return decodes ? IterationPhase::kMixed : IterationPhase::kPrefill;
  return decodes ? IterationPhase::kDecode : IterationPhase::kUnmarked;
}

/// vLLM: execute_[N_]context_R(T)_generation_R(T); the detailed form has lengths for T.
std::optional<IterationMark> read_vllm(Scanner name) {
  if (!name.word("execute_")) return std::nullopt;
  if (name.number() && !name.word("_")) return std::nullopt;
  IterationMark mark;
  if (!name.word("context_") || !(mark.prefill_requests = name.number())) return std::nullopt;
  mark.prefill_tokens = name.parenthesis();
  if (!name.word("_generation_") || !(mark.decode_requests = name.number())) return std::nullopt;
  mark.decode_tokens = name.parenthesis();
  mark.phase = phase_of(mark.prefill_requests, mark.decode_requests);
  return mark;
}

/// TensorRT-LLM: [Executor] _forward_step N: R ctx reqs, R gen reqs
std::optional<IterationMark> read_tensorrt_llm(Scanner name) {
  if (!name.word("[Executor] _forward_step ") || !name.number() || !name.word(": ")) {
    return std::nullopt;
  }
  IterationMark mark;
  mark.prefill_requests = name.number();
  if (!mark.prefill_requests || !name.word(" ctx reqs, ")) return std::nullopt;
  mark.decode_requests = name.number();
  if (!mark.decode_requests || !name.word(" gen reqs")) return std::nullopt;
  mark.phase = phase_of(mark.prefill_requests, mark.decode_requests);
  return mark;
}

/// SGLang: step[DECODE bs=64], step[EXTEND bs=2 toks=512]; ATOM: prefill[...], decode[...].
std::optional<IterationMark> read_bracketed(Scanner name) {
  struct Form {
    std::string_view begin;
    IterationPhase phase;
  };
  static constexpr std::array<Form, 7> kForms{{{"step[DECODE", IterationPhase::kDecode},
                                               {"step[EXTEND", IterationPhase::kPrefill},
                                               {"step[PREFILL", IterationPhase::kPrefill},
                                               {"step[MIXED", IterationPhase::kMixed},
                                               {"step[", IterationPhase::kUnmarked},
                                               {"prefill[", IterationPhase::kPrefill},
                                               {"decode[", IterationPhase::kDecode}}};
  for (const Form& form : kForms) {
    if (!name.word(form.begin)) continue;
    if (!name.rest().ends_with("]")) return std::nullopt;
    IterationMark mark{.phase = form.phase};
    const bool decodes = form.phase == IterationPhase::kDecode;
    (decodes ? mark.decode_requests : mark.prefill_requests) = name.behind("bs=");
    (decodes ? mark.decode_tokens : mark.prefill_tokens) = name.behind("toks=");
    return mark;
  }
  return std::nullopt;
}

/// xDiT: execute_diffusion_B_WxH
std::optional<IterationMark> read_diffusion(Scanner name) {
  if (!name.word("execute_diffusion_")) return std::nullopt;
  IterationMark mark{.phase = IterationPhase::kDiffusion};
  mark.prefill_requests = name.number();
  if (!mark.prefill_requests) return std::nullopt;
  return mark;
}

}  // namespace

std::string_view iteration_phase_name(IterationPhase phase) {
  static constexpr std::array<std::string_view, kIterationPhaseCount> kNames{
      "unmarked", "prefill", "decode", "mixed", "diffusion"};
  return kNames[static_cast<std::size_t>(phase)];
}

std::optional<IterationMark> read_iteration_name(std::string_view name) {
  if (name.empty()) return std::nullopt;
  const Scanner scanner(name);
  switch (name.front()) {
    case 'e': {
      const auto mark = read_vllm(scanner);
      return mark ? mark : read_diffusion(scanner);
    }
    case '[':
      return read_tensorrt_llm(scanner);
    case 's':
    case 'p':
    case 'd':
      return read_bracketed(scanner);
    default:
      return std::nullopt;
  }
}

}  // namespace traceap
