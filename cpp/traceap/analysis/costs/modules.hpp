#pragma once
// The nn.Module that each row belongs to, and what each module costs.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "traceap/analysis/costs/gpu_costs.hpp"
#include "traceap/table/event_table.hpp"
#include "traceap/tree/event_tree.hpp"

namespace traceap {

/// What the modules of a trace are taken from; the first that it holds.
enum class ModuleSource : std::uint8_t {
  kNone = 0,
  kFrames,       ///< Python frames `nn.Module: Linear_3` (with_stack)
  kHierarchy,    ///< `Module Hierarchy` of operators (with_modules, TorchScript)
  kHlo,          ///< `hlo_module` of GPU events (XLA), with the name scopes of `tf_op`
  kAnnotations,  ///< record_function ranges
};
inline constexpr int kModuleSourceCount = static_cast<int>(ModuleSource::kAnnotations) + 1;
/// snake_case, such as "python_frames".
std::string_view module_source_name(ModuleSource source);

/// Why work of a module is done.
enum class ModulePass : std::uint8_t {
  kForward = 0,
  kBackward,   ///< by the autograd engine, for a node that a forward op of the module made
  kRecompute,  ///< the module's forward once more, called from the autograd engine
  kNone,       ///< of no module
};
inline constexpr int kModulePassCount = static_cast<int>(ModulePass::kNone) + 1;

/// A module under the modules that called it: one that several parents call is several nodes.
struct ModuleNode {
  std::string name;
  std::string type;      ///< its class, or empty
  std::uint32_t parent;  ///< kNoRow for a root
  std::uint32_t depth;   ///< 0 for a root
  Row first_call;        ///< the first row that belongs to it
  std::uint32_t calls = 0, recompute_calls = 0;
};

/// By ModulePass, in ns.
struct ModuleCosts {
  std::array<std::int64_t, kModulePassCount> gpu_ns{};   ///< exclusive_ns of its GPU events
  std::array<std::int64_t, kModulePassCount> host_ns{};  ///< self time of its host rows
  std::int64_t gpu_events = 0;
};

/// Below this, modules count to their ancestor: so deep is no model, and paths stay short.
inline constexpr std::uint32_t kMaxModuleDepth = 256;

/// Parents come before their children. Node 0 is what belongs to no module, with a child for each
/// phase that occurs; so `own` sums to the busy time, and to the union of each host thread.
struct ModuleTree {
  ModuleSource source = ModuleSource::kNone;
  std::vector<ModuleNode> nodes;
  std::vector<std::uint32_t> preorder;  ///< nodes, parents before children, node 0 last
  std::vector<ModuleCosts> own, total;  ///< per node: without and with the nodes below it
  std::vector<std::uint32_t> node_of;   ///< per row: innermost node; 0 outside of modules
  std::vector<ModulePass> pass_of;      ///< per row
};

/// Backward work counts to the module whose forward op made the autograd node; what checkpointing
/// computes again counts to the module as recompute. O(n).
ModuleTree build_modules(const EventTable& table, const EventTree& tree, const GpuCosts& costs);

}  // namespace traceap
