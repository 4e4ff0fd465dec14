#pragma once
// Backward passes and the gradients that are exchanged in each.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "traceap/detect/finding.hpp"

namespace traceap {

/// A stretch of backward work on the GPU, up to the first forward kernel behind it.
struct BackwardPass {
  std::vector<Row> all_reduces;  ///< by start
  std::int64_t bytes = 0;        ///< of all of them
  bool sized = true;             ///< all say how many bytes they carry
  std::size_t kernels = 0;
  bool updates = false;  ///< an optimizer's kernel runs before the next pass begins
};

/// By start of GPU work. O(n).
std::vector<BackwardPass> list_backward_passes(const Signals& signals);
/// Where these collectives run and no kernel computes, without waiting for a late rank.
IntervalSet exposed_alone(const Signals& signals, const std::vector<Row>& collectives);

}  // namespace traceap
