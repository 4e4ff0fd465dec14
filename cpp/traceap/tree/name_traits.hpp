#pragma once
// What a name alone says. Judged once per distinct string, then looked up by StringId.

#include <cstdint>
#include <string_view>
#include <vector>

#include "traceap/base/string_pool.hpp"

namespace traceap {

enum NameTrait : std::uint16_t {
  kTraitCommunication = 1 << 0,  ///< INTERFACE's expression for communication kernels
  kTraitCopyKernel = 1 << 1,     ///< a ROCm copy that is drawn as a kernel
  kTraitProfilerStep = 1 << 2,   ///< ProfilerStep#N
  kTraitInput = 1 << 3,          ///< making or fetching a batch
  kTraitOptimizer = 1 << 4,      ///< optimizer step or zero_grad
  kTraitBackwardNode = 1 << 5,   ///< a node that the autograd engine runs
  kTraitBackward = 1 << 6,       ///< says "backward" (nodes too)
  kTraitForward = 1 << 7,        ///< says "forward", or is an nn.Module call
  kTraitStepWord = 1 << 8,       ///< says step, iteration or batch: may mark one of many
};
using NameTraits = std::uint16_t;

/// O(length). Traits that make sense for one kind of event only are set whatever the kind is.
NameTraits classify_name(std::string_view name);
std::vector<NameTraits> classify_names(const StringPool& strings);

/// `nccl|rccl|cross_device_reduce|msccl|oneccl|hccl|all_?reduce|all_?gather|reduce_?scatter|
/// all_?to_?all|deep_?ep|nvshmem|pplx|userbuffers|symm_?mem|multimem` anywhere in the name, in any
/// case, or `mori::`, `mori_`, `ub::` at the start of a word (INTERFACE, Words), or Ascend's
/// `hcom_`; also `internode_ll::`, `hybrid_ep::`, `a2a_?dispatch`, `a2a_?combine` anywhere and
/// `epdispatch`, `epcombine` at the start of a word.
bool is_communication_name(std::string_view name);

/// Of a python frame "path.py(12): function" the function, so that words in a user's paths don't
/// count; of everything else the whole.
std::string_view spoken_part(std::string_view name);

}  // namespace traceap
