#include "traceap/tree/name_traits.hpp"

#include <algorithm>
#include <string>

#include "traceap/base/text.hpp"
#include "traceap/table/copy_kind.hpp"

namespace traceap {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Takes `part` off the front of `text`, if it stands there.
bool consume(std::string_view& text, std::string_view part) {
  if (!text.starts_with(part)) return false;
  text.remove_prefix(part.size());
  return true;
}

void consume_underscore(std::string_view& text) { consume(text, "_"); }

/// all_?reduce, all_?gather or all_?to_?all at the front of lower-case `text`.
bool starts_with_all_collective(std::string_view text) {
  if (!consume(text, "all")) return false;
  consume_underscore(text);
  if (text.starts_with("reduce") || text.starts_with("gather")) return true;
  if (!consume(text, "to")) return false;
  consume_underscore(text);
  return text.starts_with("all");
}

/// `first` and `second` with or without an underscore between them, at the front of `text`.
bool starts_with_two(std::string_view text, std::string_view first, std::string_view second) {
  if (!consume(text, first)) return false;
  consume_underscore(text);
  return text.starts_with(second);
}

/// moeA2ADispatchKernel of TensorRT-LLM and FlashInfer, a2a_combine_send_kernel of PPLX; what
/// prepares them on the rank itself (moeA2APrepareDispatchKernel) is none.
bool starts_with_expert_exchange(std::string_view text) {
  if (!consume(text, "a2a")) return false;
  consume_underscore(text);
  return text.starts_with("dispatch") || text.starts_with("combine");
}

/// One of INTERFACE's alternatives, Ascend's prefix of collectives (hcom_broadcast_), or what
/// libraries call exchanges of tokens between experts, at the front of lower-case `text`, chosen by
/// its first letter.
bool starts_with_communication_word(std::string_view text) {
  switch (text.front()) {
    case 'n':
      return text.starts_with("nccl") || text.starts_with("nvshmem");
    case 'r':
      return text.starts_with("rccl") || starts_with_two(text, "reduce", "scatter");
    case 'c':
      return text.starts_with("cross_device_reduce");
    case 'm':
      return text.starts_with("msccl") || text.starts_with("multimem");
    case 'o':
      return text.starts_with("oneccl");
    case 'h':
      return text.starts_with("hccl") || text.starts_with("hcom_") ||
             text.starts_with("hybrid_ep::");
    case 'i':
      return text.starts_with("internode_ll::");
    case 'a':
      return starts_with_all_collective(text) || starts_with_expert_exchange(text);
    case 'd':
      return starts_with_two(text, "deep", "ep");
    case 'p':
      return text.starts_with("pplx");
    case 's':
      return starts_with_two(text, "symm", "mem");
    case 'u':
      return text.starts_with("userbuffers");
    default:
      return false;
  }
}

/// A namespace or prefix of a communication library (MORI and its kernels, TransformerEngine's
/// userbuffers) at the front of lower-case `text`. These letters end other names too, as in
/// `cub::`.
bool starts_with_communication_scope(std::string_view text) {
  return text.starts_with("mori::") || text.starts_with("mori_") || text.starts_with("ub::") ||
         text.starts_with("epdispatch") || text.starts_with("epcombine");
}

bool is_word_char(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || c == '_'; }

bool contains_communication_word(std::string_view lower_text) {
  for (std::size_t i = 0; i < lower_text.size(); ++i) {
    const std::string_view rest = lower_text.substr(i);
    if (starts_with_communication_word(rest)) return true;
    const bool begins_word = i == 0 || !is_word_char(lower_text[i - 1]);
    if (begins_word && starts_with_communication_scope(rest)) return true;
  }
  return false;
}

/// CudnnBatchNormBackward, AddmmBackward0 and the like: autograd names its nodes so.
bool is_node_name(std::string_view name) {
  while (!name.empty() && is_digit(name.back())) name.remove_suffix(1);
  return name.ends_with("Backward") && !contains(name, " ");
}

bool is_backward_node(std::string_view name) {
  return name.starts_with("autograd::engine::evaluate_function") ||
         name.starts_with("torch::autograd::AccumulateGrad") ||
         name.starts_with("torch::autograd::CopySlices") ||
         name.starts_with("torch::autograd::GraphRoot") || is_node_name(name);
}

bool is_profiler_step(std::string_view name) {
  if (!consume(name, "ProfilerStep#")) return false;
  return !name.empty() && std::all_of(name.begin(), name.end(), is_digit);
}

bool says_input(std::string_view lower_name, std::string_view spoken) {
  return lower_name.starts_with("enumerate(dataloader)") ||
         contains(lower_name, "torch/utils/data/") ||
         contains_any(spoken, {"dataloader", "data_loader", "load_batch", "data_load", "next_batch",
                               "get_batch", "fetch_batch", "wait_for_batch", "copy_batch"});
}

bool says_optimizer(std::string_view lower_name, std::string_view spoken) {
  return contains(lower_name, "torch/optim/") || contains_any(spoken, {"optimizer", "zero_grad"});
}

NameTraits direction_traits(std::string_view spoken) {
  // A hook is set up in one direction for the other; a name with both words wraps both.
  const bool forward = contains_any(spoken, {"forward", "_fwd"});
  const bool backward = contains_any(spoken, {"backward", "_bwd"}) && !contains(spoken, "hook");
  if (forward == backward) return 0;
  return backward ? kTraitBackward : kTraitForward;
}

NameTraits phase_traits(std::string_view name, std::string_view lower_name) {
  const std::string_view spoken = spoken_part(lower_name);
  if (is_backward_node(name)) return kTraitBackwardNode | kTraitBackward;
  if (says_input(lower_name, spoken)) return kTraitInput;
  if (says_optimizer(lower_name, spoken)) return kTraitOptimizer;
  if (lower_name.starts_with("nn.module: ")) return kTraitForward;
  return direction_traits(spoken);
}

}  // namespace

std::string_view spoken_part(std::string_view name) {
  const std::size_t frame = name.rfind(".py(");
  if (frame == std::string_view::npos) return name;
  const std::size_t colon = name.find("): ", frame);
  return colon == std::string_view::npos ? name : name.substr(colon + 3);
}

bool is_communication_name(std::string_view name) {
  return contains_communication_word(to_lower(name));
}

NameTraits classify_name(std::string_view name) {
  if (is_profiler_step(name)) return kTraitProfilerStep;
  const std::string lower_name = to_lower(name);
  NameTraits traits = phase_traits(name, lower_name);
  if (contains_communication_word(lower_name)) traits |= kTraitCommunication;
  if (is_copy_kernel(name)) traits |= kTraitCopyKernel;
  if (contains_any(lower_name, {"step", "iter", "batch"})) traits |= kTraitStepWord;
  return traits;
}

std::vector<NameTraits> classify_names(const StringPool& strings) {
  std::vector<NameTraits> traits(strings.size());
  for (StringId id = 0; id < strings.size(); ++id) traits[id] = classify_name(strings[id]);
  return traits;
}

}  // namespace traceap
