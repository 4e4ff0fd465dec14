#pragma once
// Files of other tools that people take for a trace of torch.profiler.

#include <string_view>

namespace traceap {

/// What a file that begins like this is, and what to do with it, as a sentence; empty for one that
/// is not known. Nothing of it is decoded. O(1).
std::string_view describe_foreign_file(std::string_view head);

}  // namespace traceap
