#pragma once
// Compilation as a trace shows it, for recompilation and cold_start.

#include <string_view>
#include <vector>

#include "traceap/detect/finding.hpp"

namespace traceap {

struct CompileRanges {
  std::vector<Row> first;  ///< outermost ranges of first compilation: in warm-up
  std::vector<Row> again;  ///< outermost ranges in steady state
};
/// Ranges of dynamo, inductor and Triton at compile time. Steady state begins behind the warm-up;
/// where steps do not tell, when a compiled region has already run to its end.
CompileRanges find_compile_ranges(const Signals& signals);
/// Does the trace hold compiled code at all?
bool has_compiled_code(const Signals& signals);
/// Is this the range of a call of compiled code?
bool is_compiled_region(std::string_view name);

}  // namespace traceap
