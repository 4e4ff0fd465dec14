#pragma once
// Compilation as a trace shows it, for recompilation, graph_recapture and cold_start.

#include <optional>
#include <string_view>
#include <vector>

#include "traceap/detect/finding.hpp"
#include "traceap/tree/graph_captures.hpp"

namespace traceap {

/// "0/1" of "Torch-Compiled Region: 0/1": which frame it is, and which of its compilations, from 0.
/// Both refer to dynamo's counters, which go on when a profile begins.
struct RegionNumber {
  std::string_view frame;
  std::int64_t compilation;
};
/// Nothing where the name carries no number (torch before 2.3).
std::optional<RegionNumber> region_number(std::string_view name);

struct CompileRanges {
  std::vector<Row> first;  ///< outermost ranges of what is compiled for the first time
  std::vector<Row> again;  ///< outermost ranges of what was compiled before
};
/// Ranges and frames of compilers: dynamo, inductor, Triton, flashinfer and others. See Note [First
/// compilation].
CompileRanges find_compile_ranges(const Signals& signals);
/// Is the row of a compiler at work, by its name? Not a call of what was compiled.
bool is_compile_range(const Signals& signals, Row row);
/// "autotuning", "building of extensions" or "compilation", by the name of such a range.
std::string_view compile_kind(std::string_view name);
/// Does the trace hold compiled code at all?
bool has_compiled_code(const Signals& signals);
/// Is this the range of a call of compiled code?
bool is_compiled_region(std::string_view name);

struct GraphCaptures {
  std::vector<GraphCapture> first;  ///< CUDA graphs that are recorded once
  std::vector<GraphCapture> again;  ///< recorded anew in call after call
  bool sure = true;                 ///< told by steps
};
/// Which recordings of CUDA graphs belong to warm-up. Those of steady state are recorded anew if
/// they occur in every other step or more, or twice while a marked engine serves; without steps if
/// there are three or more, no graph is replayed more than once for each of them, and they go on to
/// the last quarter of the time.
GraphCaptures find_graph_captures(const Signals& signals);

}  // namespace traceap
