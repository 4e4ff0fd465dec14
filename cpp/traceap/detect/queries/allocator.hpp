#pragma once
// Calls by which memory is taken from the driver and given back.

#include <vector>

#include "traceap/detect/finding.hpp"

namespace traceap {

/// Calls of cudaMalloc and cudaFree (and their kin) where no cache stands before them: about as
/// many as there are launches, and memory goes back one piece at a time between them. Empty where a
/// cache does, however badly it is used: that takes whole segments, and gives many back at once.
/// Pools of the driver (cudaMallocAsync) are caches too.
std::vector<Row> uncached_allocator_calls(const Signals& signals);

}  // namespace traceap
