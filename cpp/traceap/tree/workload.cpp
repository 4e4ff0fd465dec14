// What the recorded program is, from the names of its events.

#include "traceap/tree/workload.hpp"

#include <string>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/text.hpp"
#include "traceap/tree/build_parts.hpp"
#include "traceap/tree/iteration_name.hpp"

namespace traceap {

namespace {

/// What one name shows, as bits.
enum Sign : std::uint32_t {
  kSignOperator = 1 << 0,    ///< a PyTorch operator
  kSignGradient = 1 << 1,    ///< a backward pass or an optimizer
  kSignPrefill = 1 << 2,     ///< prompts are processed
  kSignDecode = 1 << 3,      ///< tokens are generated
  kSignMixed = 1 << 4,       ///< both in one iteration
  kSignDiffusion = 1 << 5,   ///< a denoising step
  kSignServing = 1 << 6,     ///< a serving engine or a cache of keys and values
  kSignEvaluation = 1 << 7,  ///< a validation loop
  kSignDdp = 1 << 8,         ///< in the order of Parallelism from here
  kSignFsdp = 1 << 9,
  kSignTensor = 1 << 10,
  kSignPipeline = 1 << 11,
  kSignExpert = 1 << 12,
};
constexpr int kSignCount = 13;
constexpr int kFirstParallelSign = 8;

std::uint32_t sign_of(IterationPhase phase) {
  switch (phase) {
    case IterationPhase::kPrefill:
      return kSignPrefill;
    case IterationPhase::kDecode:
    case IterationPhase::kSpeculative:
      return kSignDecode;
    case IterationPhase::kMixed:
      return kSignMixed;
    case IterationPhase::kDiffusion:
      return kSignDiffusion;
    case IterationPhase::kUnmarked:
    case IterationPhase::kIdle:
      return kSignServing;
  }
  return 0;
}

/// What a GPU kernel's name shows, in lower case.
std::uint32_t signs_of_kernel(std::string_view name) {
  std::uint32_t signs = 0;
  if (contains_any(name, {"_bwd", "bwd_", "backward", "dgrad", "wgrad", "adamw", "adamfunctor",
                          "fusedadam", "multi_tensor_apply_kernel"})) {
    signs |= kSignGradient;
  }
  if (contains_any(name, {"paged_attention", "pagedattention", "reshape_and_cache", "splitkv",
                          "store_kv_cache", "pagedkvcache", "paged_kv", "topktoppsampling"})) {
    signs |= kSignServing;
  }
  if (contains_any(name, {"batchdecode", "decode_attention", "mla_decode", "decode_kernel"})) {
    signs |= kSignDecode;
  }
  if (contains_any(name, {"batchprefill", "prefill_attention", "context_attention"})) {
    signs |= kSignPrefill;
  }
  if (contains_any(name, {"deep_ep", "deepep", "pplx", "moe_all_to_all", "moealltoall"})) {
    signs |= kSignExpert;
  }
  return signs;
}

/// What a host event's name shows; `name` as recorded, `lower` in lower case.
std::uint32_t signs_of_host(const TreeContext& context, Row row, std::string_view name,
                            std::string_view lower) {
  std::uint32_t signs = 0;
  const EventKind kind = context.table.kind[row];
  const bool frame = kind == EventKind::kPythonFunction;
  if (name.starts_with("aten::")) signs |= kSignOperator;
  if (context.has_trait(row, kTraitBackwardNode) || name.starts_with("Optimizer.step#")) {
    signs |= kSignGradient;
  }
  if (const auto mark = read_iteration_name(name)) signs |= sign_of(mark->phase);
  if (contains_any(lower, {"vllm/", "sglang/", "tensorrt_llm/", "lightllm/"})) {
    signs |= kSignServing;
  }
  if (contains_any(lower, {"diffusionpipeline", "diffusers/pipelines", "denoise"})) {
    signs |= kSignDiffusion;
  }
  const bool loop = frame || kind == EventKind::kUserAnnotation;
  const std::size_t spoken = frame ? lower.rfind("): ") : 0;
  if (loop && spoken != std::string_view::npos &&
      contains_any(lower.substr(spoken), {"evaluat", "validat", "eval_step", "test_step"})) {
    signs |= kSignEvaluation;
  }
  if (contains_any(name, {"DistributedDataParallel", "torch::distributed::reducer",
                          "torch.distributed.ddp.reducer"})) {
    signs |= kSignDdp;
  }
  if (contains_any(name, {"FullyShardedDataParallel", "FSDP::", "fsdp::"})) signs |= kSignFsdp;
  if (contains_any(lower, {"deep_ep::", "pplx", "moe_all_to_all"})) signs |= kSignExpert;
  if (contains(lower, "low_latency_dispatch")) signs |= kSignDecode;
  return signs;
}

/// What the description of a process group shows: Megatron's, torchtitan's and the engines' names.
std::uint32_t signs_of_group(std::string_view lower) {
  const auto is_or_begins = [&](std::string_view word) {
    return lower == word || lower.starts_with(std::string(word) + '_') ||
           lower.starts_with("mesh_" + std::string(word));
  };
  std::uint32_t signs = 0;
  if (is_or_begins("tp") || contains(lower, "tensor")) signs |= kSignTensor;
  if (is_or_begins("pp") || contains(lower, "pipeline")) signs |= kSignPipeline;
  if (is_or_begins("ep") || contains(lower, "expert")) signs |= kSignExpert;
  return signs;
}

/// The first event that shows each sign.
class Signs {
 public:
  Signs(const TreeContext& context, const EventTree& tree)
      : context_(context),
        table_(context.table),
        tree_(tree),
        seen_(table_.strings.size(), false),
        group_(table_, "Process Group Description"),
        collective_(table_, "Collective name") {
    first_.fill(kNoRow);
  }

  void read() {
    for (const Row row : tree_.host_rows) {
      poll_interrupt();
      if (first_time(row)) {
        const std::string_view name = table_.name_of(row);
        add(signs_of_host(context_, row, name, to_lower(name)), row);
      }
    }
    for (const Row row : tree_.gpu_rows) {
      poll_interrupt();
      if (first_time(row)) add(signs_of_kernel(to_lower(table_.name_of(row))), row);
      if (tree_.gpu_class[row] != GpuClass::kCommunication) continue;
      if (const auto group = group_.text(row)) add(signs_of_group(to_lower(*group)), row);
      const auto collective = collective_.text(row);
      if (collective && is_any(*collective, {"send", "recv"})) add(kSignPipeline, row);
    }
  }

  Row operator[](Sign sign) const { return first_[static_cast<std::size_t>(place_of(sign))]; }
  Row parallelism(int kind) const {
    return first_[static_cast<std::size_t>(kFirstParallelSign + kind)];
  }

 private:
  static int place_of(std::uint32_t sign) { return __builtin_ctz(sign); }

  bool first_time(Row row) {
    const StringId name = table_.name[row];
    if (seen_[name]) return false;
    seen_[name] = true;
    return true;
  }

  void add(std::uint32_t signs, Row row) {
    for (; signs != 0; signs &= signs - 1) {
      Row& first = first_[static_cast<std::size_t>(place_of(signs))];
      if (first == kNoRow) first = row;
    }
  }

  const TreeContext& context_;
  const EventTable& table_;
  const EventTree& tree_;
  std::vector<bool> seen_;
  RareKey group_, collective_;
  std::array<Row, kSignCount> first_;
};

void tell_framework(const EventTable& table, const EventTree& tree, Workload& workload) {
  if (tree.gpu_rows.empty() && tree.host_rows.empty()) return;
  const Row row = tree.gpu_rows.empty() ? tree.host_rows.front() : tree.gpu_rows.front();
  workload.framework_row = row;
  // Events of XLA's profiler have no categories (see Note [XLA traces]), those of Kineto do.
  const bool has_category = table.category[row] != kNoString;
  workload.framework = has_category ? Framework::kPyTorch : Framework::kXla;
}

void tell_role(const Signs& signs, Workload& workload) {
  const auto tell = [&](Role role, Sign sign) {
    workload.role = role;
    workload.role_row = signs[sign];
  };
  const bool prefill = signs[kSignPrefill] != kNoRow, decode = signs[kSignDecode] != kNoRow;
  if (signs[kSignGradient] != kNoRow) {
    tell(Role::kTraining, kSignGradient);
  } else if (signs[kSignDiffusion] != kNoRow) {
    tell(Role::kDiffusion, kSignDiffusion);
  } else if (signs[kSignMixed] != kNoRow) {
    tell(Role::kMixed, kSignMixed);
  } else if (prefill && decode) {
    tell(Role::kMixed, kSignPrefill);
  } else if (decode) {
    tell(Role::kDecode, kSignDecode);
  } else if (prefill) {
    tell(Role::kPrefill, kSignPrefill);
  } else if (signs[kSignEvaluation] != kNoRow) {
    tell(Role::kEvaluation, kSignEvaluation);
  } else if (signs[kSignServing] != kNoRow) {
    tell(Role::kInference, kSignServing);
  } else if (signs[kSignOperator] != kNoRow) {
    tell(Role::kInference, kSignOperator);
  }
}

}  // namespace

void describe_workload(const TreeContext& context, EventTree& tree) {
  Signs signs(context, tree);
  signs.read();
  tell_framework(context.table, tree, tree.workload);
  tell_role(signs, tree.workload);
  for (int kind = 0; kind < kParallelismCount; ++kind) {
    tree.workload.parallelism[static_cast<std::size_t>(kind)] = signs.parallelism(kind);
  }
}

std::string_view framework_name(Framework framework) {
  static constexpr std::array<std::string_view, kFrameworkCount> kNames{"unknown", "pytorch",
                                                                        "xla"};
  return kNames[static_cast<std::size_t>(framework)];
}

std::string_view role_name(Role role) {
  static constexpr std::array<std::string_view, kRoleCount> kNames{
      "unknown", "training", "inference", "prefill", "decode", "mixed", "diffusion", "evaluation"};
  return kNames[static_cast<std::size_t>(role)];
}

std::string_view parallelism_name(Parallelism parallelism) {
  static constexpr std::array<std::string_view, kParallelismCount> kNames{"ddp", "fsdp", "tensor",
                                                                          "pipeline", "expert"};
  return kNames[static_cast<std::size_t>(parallelism)];
}

}  // namespace traceap
