#pragma once
// Kernels that a compiler could join: one pass over their tensors each.

#include <string_view>

namespace traceap {

/// A pointwise kernel of PyTorch over one tensor, copies and casts included.
bool is_pointwise_kernel(std::string_view name);
/// A pointwise kernel whose only work is to copy, cast included.
bool is_pointwise_copy(std::string_view name);
/// A reduction of PyTorch (sum, mean, max, norm), as a normalisation written by hand has it.
bool is_reduction_kernel(std::string_view name);
/// A kernel of a normalisation layer.
bool is_normalisation_kernel(std::string_view name);

}  // namespace traceap
