#include "traceap/tree/iteration_name.hpp"

#include <array>
#include <charconv>
#include <string>

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

  /// The number behind a word that has to come next.
  Count number_behind(std::string_view expected) {
    return word(expected) ? number() : std::nullopt;
  }

  /// The number of the field `key=`, wherever it stands.
  Count field(std::string_view key) const {
    const std::string sign = ' ' + std::string(key) + '=';
    const std::size_t place = text_.find(sign);
    if (place == std::string_view::npos) return std::nullopt;
    return Scanner(text_.substr(place + sign.size())).number();
  }

  /// The number behind the slash of `key=N/M`.
  Count second_of_field(std::string_view key) const {
    const std::string sign = ' ' + std::string(key) + '=';
    const std::size_t place = text_.find(sign);
    if (place == std::string_view::npos) return std::nullopt;
    Scanner behind(text_.substr(place + sign.size()));
    return behind.number() ? behind.number_behind("/") : std::nullopt;
  }

  std::string_view until(char end) {
    const std::size_t size = std::min(text_.find(end), text_.size());
    const std::string_view taken = text_.substr(0, size);
    text_.remove_prefix(std::min(size + 1, text_.size()));
    return taken;
  }

  void skip_spaces() {
    while (word(" ")) {
    }
  }

  std::string_view rest() const { return text_; }

 private:
  std::string_view text_;
};

Count sum(Count a, Count b) {
  std::int64_t total = 0;
  if (!a || !b || __builtin_add_overflow(*a, *b, &total)) return std::nullopt;
  return total;
}

bool some(Count count) { return count.value_or(0) > 0; }

IterationPhase phase_of(const RequestGroup& prefill, const RequestGroup& decode) {
  if (some(prefill.requests)) {
    return some(decode.requests) ? IterationPhase::kMixed : IterationPhase::kPrefill;
  }
  if (!some(decode.requests)) {
    return prefill.requests && decode.requests ? IterationPhase::kIdle : IterationPhase::kUnmarked;
  }
  return decode.tokens && *decode.tokens > *decode.requests ? IterationPhase::kSpeculative
                                                            : IterationPhase::kDecode;
}

IterationMark mark_of(ServingEngine engine, const RequestGroup& prefill,
                      const RequestGroup& decode) {
  return {.engine = engine,
          .phase = phase_of(prefill, decode),
          .requests = sum(prefill.requests, decode.requests),
          .graph_batch = std::nullopt,
          .prefill = prefill,
          .decode = decode};
}

/// vLLM's `R(T)` or `R(sq1sk2sqsq3sqsk4)`.
std::optional<RequestGroup> read_vllm_group(Scanner& name) {
  RequestGroup group{.requests = name.number()};
  if (!group.requests) return std::nullopt;
  if (!name.word("(")) return group;
  Scanner inside(name.until(')'));
  if (inside.rest().starts_with("sq")) {
    group.tokens = inside.number_behind("sq");
    group.cached_tokens = inside.number_behind("sk");
    group.query_squares = inside.number_behind("sqsq");
    group.query_keys = inside.number_behind("sqsk");
  } else {
    group.tokens = inside.number();
    if (!inside.rest().empty()) group.tokens.reset();
  }
  return group;
}

std::optional<IterationMark> read_vllm(Scanner name) {
  if (!name.word("execute_")) return std::nullopt;
  if (name.number() && !name.word("_")) return std::nullopt;
  if (!name.word("context_")) return std::nullopt;
  const auto prefill = read_vllm_group(name);
  if (!prefill || !name.word("_generation_")) return std::nullopt;
  const auto decode = read_vllm_group(name);
  if (!decode) return std::nullopt;
  return mark_of(ServingEngine::kVllm, *prefill, *decode);
}

std::optional<IterationMark> read_tensorrt_llm(Scanner name) {
  if (!name.word("[Executor] _forward_step")) return std::nullopt;
  if (name.word(" ") && !name.number()) return std::nullopt;
  if (!name.word(": ")) return std::nullopt;
  RequestGroup prefill{.requests = name.number()}, decode;
  if (!prefill.requests || !name.word(" ctx reqs, ")) return std::nullopt;
  decode.requests = name.number();
  if (name.word(" ctx tokens, ")) {
    prefill.tokens = decode.requests;
    decode.requests = name.number();
  }
  if (!decode.requests || !name.word(" gen reqs")) return std::nullopt;
  return mark_of(ServingEngine::kTensorRtLlm, prefill, decode);
}

/// The sums of `c_sq=`, `c_sk=`, `c_sqsq=` and `c_sqsk=`, for the prefix `c_`.
void read_sums(const Scanner& fields, const std::string& prefix, RequestGroup& group) {
  if (const Count tokens = fields.field(prefix + "sq")) group.tokens = tokens;
  group.cached_tokens = fields.field(prefix + "sk");
  group.query_squares = fields.field(prefix + "sqsq");
  group.query_keys = fields.field(prefix + "sqsk");
}

/// `step[MODE bs=B ...]`
std::optional<IterationMark> read_sglang(Scanner name) {
  if (!name.word("step[") || !name.rest().ends_with("]")) return std::nullopt;
  name.skip_spaces();
  const std::string mode = to_lower(Scanner(name).until(' '));
  IterationMark mark{.engine = ServingEngine::kSglang};
  mark.requests = name.field("bs");
  read_sums(name, "c_", mark.prefill);
  read_sums(name, "g_", mark.decode);
  const Count tokens = name.field("toks");
  if (mode.starts_with("decode")) {
    mark.phase = IterationPhase::kDecode;
    mark.prefill.requests = 0;
    mark.decode.requests = mark.requests;
    if (!mark.decode.tokens) mark.decode.tokens = tokens ? tokens : mark.requests;
    if (mark.requests && mark.decode.tokens && *mark.decode.tokens > *mark.requests) {
      mark.phase = IterationPhase::kSpeculative;
    }
  } else if (mode.starts_with("extend") || mode.starts_with("prefill")) {
    mark.phase = IterationPhase::kPrefill;
    mark.prefill.requests = mark.requests;
    mark.decode.requests = 0;
    if (!mark.prefill.tokens) mark.prefill.tokens = tokens;
  } else if (mode.starts_with("mixed")) {
    mark.phase = IterationPhase::kMixed;
    mark.prefill.requests = name.field("c");
    mark.decode.requests = name.field("g");
  } else if (mode.starts_with("target_verify") || mode.starts_with("draft")) {
    mark.phase = IterationPhase::kSpeculative;
    mark.decode.requests = mark.requests;
    mark.prefill.requests = 0;
    std::swap(mark.decode.tokens, mark.prefill.tokens);
  } else if (mode.starts_with("idle")) {
    mark.phase = IterationPhase::kIdle;
    mark.requests = mark.prefill.requests = mark.decode.requests = 0;
  } else if (!mark.requests) {
    return std::nullopt;
  }
  return mark;
}

/// ATOM's ` ctx=[a, b]` or ` ctx=a`: the keys of each prompt, unless the list is cut. They are its
/// queries too if they sum to the tokens of the iteration, since none has more queries than keys.
void read_prompts(Scanner fields, RequestGroup& prompts) {
  constexpr std::string_view kSign = " ctx=";
  const std::size_t place = fields.rest().find(kSign);
  if (place == std::string_view::npos || !prompts.tokens) return;
  Scanner text(fields.rest().substr(place + kSign.size()));
  constexpr std::int64_t kMost = 1 << 30;  // a square, and a list's sum of them, is no overflow
  const bool listed = text.word("[");
  std::int64_t keys = 0, squares = 0;
  do {
    const Count length = text.number();
    if (!length || *length > kMost || keys > kMost) return;
    keys += *length;
    squares += *length * *length;
  } while (listed && text.word(", "));
  if (listed && (!text.word("]") || text.word("..."))) return;
  if (keys != *prompts.tokens) return;
  prompts.cached_tokens = keys;
  prompts.query_squares = prompts.query_keys = squares;
}

/// `prefill[bs=B tok=T ctx=[..] sqsq= sqsk= sk=]`, `decode[bs=B/PADDED tok=T p=R d=R spec=K ..]`
std::optional<IterationMark> read_atom(Scanner name) {
  const bool prefills = name.word("prefill[");
  if ((!prefills && !name.word("decode[")) || !name.rest().ends_with("]")) return std::nullopt;
  // A space in front lets the first field be found like the others.
  const std::string fields_text = ' ' + std::string(name.rest());
  const Scanner fields(fields_text);
  RequestGroup prefill{.requests = 0}, decode{.requests = 0};
  RequestGroup& own = prefills ? prefill : decode;
  const Count requests = fields.field("bs");
  own.requests = requests;
  read_sums(fields, "", own);
  if (const Count tokens = fields.field("tok")) own.tokens = tokens;
  if (prefills && !own.cached_tokens) read_prompts(fields, own);
  const Count also_prefill = prefills ? Count() : fields.field("p");
  if (some(also_prefill) && requests) {
    prefill.requests = also_prefill;
    decode.requests = fields.field("d");
    decode.tokens.reset();  // the sum is of both
  }
  IterationMark mark = mark_of(ServingEngine::kAtom, prefill, decode);
  mark.requests = requests;
  mark.graph_batch = fields.second_of_field("bs");
  if (mark.phase == IterationPhase::kDecode && some(fields.field("spec"))) {
    mark.phase = IterationPhase::kSpeculative;
  }
  return mark;
}

/// `execute_diffusion_B_WxH`
std::optional<IterationMark> read_diffusion(Scanner name) {
  const Count requests = name.number_behind("execute_diffusion_");
  if (!requests) return std::nullopt;
  return IterationMark{.engine = ServingEngine::kXdit,
                       .phase = IterationPhase::kDiffusion,
                       .requests = requests,
                       .graph_batch = std::nullopt,
                       .prefill = {},
                       .decode = {}};
}

}  // namespace

std::string_view iteration_phase_name(IterationPhase phase) {
  static constexpr std::array<std::string_view, kIterationPhaseCount> kNames{
      "unmarked", "prefill", "decode", "mixed", "speculative", "diffusion", "idle"};
  return kNames[static_cast<std::size_t>(phase)];
}

std::string_view serving_engine_name(ServingEngine engine) {
  static constexpr std::array<std::string_view, kServingEngineCount> kNames{
      "vllm", "sglang", "atom", "xdit", "tensorrt-llm"};
  return kNames[static_cast<std::size_t>(engine)];
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
      return read_sglang(scanner);
    case 'p':
    case 'd':
      return read_atom(scanner);
    default:
      return std::nullopt;
  }
}

}  // namespace traceap
