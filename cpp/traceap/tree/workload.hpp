#pragma once
// What the recorded program is: its framework, what it does, and how it is spread over devices.

#include <array>
#include <cstdint>
#include <string_view>

#include "traceap/base/ids.hpp"

namespace traceap {

enum class Framework : std::uint8_t { kUnknown = 0, kPyTorch, kXla };
inline constexpr int kFrameworkCount = static_cast<int>(Framework::kXla) + 1;
std::string_view framework_name(Framework framework);

enum class Role : std::uint8_t {
  kUnknown = 0,
  kTraining,    ///< gradients are computed or an optimizer runs
  kInference,   ///< operators are recorded, and none of a backward pass
  kPrefill,     ///< of a serving engine: prompts only
  kDecode,      ///< of a serving engine: one token for each request
  kMixed,       ///< prefill and decode
  kDiffusion,   ///< denoising steps
  kEvaluation,  ///< a validation loop
};
inline constexpr int kRoleCount = static_cast<int>(Role::kEvaluation) + 1;
std::string_view role_name(Role role);
/// Does a serving engine run a language model?
constexpr bool serves_model(Role role) {
  return role == Role::kPrefill || role == Role::kDecode || role == Role::kMixed;
}

enum class Parallelism : std::uint8_t { kDdp = 0, kFsdp, kTensor, kPipeline, kExpert };
inline constexpr int kParallelismCount = static_cast<int>(Parallelism::kExpert) + 1;
std::string_view parallelism_name(Parallelism parallelism);

/// Each fact with the event that shows it. What no event shows is unknown.
struct Workload {
  Framework framework = Framework::kUnknown;
  Row framework_row = kNoRow;
  Role role = Role::kUnknown;
  Row role_row = kNoRow;
  std::array<Row, kParallelismCount> parallelism;  ///< an event that shows it; kNoRow: not seen

  Workload() { parallelism.fill(kNoRow); }
  bool uses(Parallelism kind) const {
    return parallelism[static_cast<std::size_t>(kind)] != kNoRow;
  }
};

}  // namespace traceap
