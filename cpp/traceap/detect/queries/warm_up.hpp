#pragma once
// Where warm-up ends.

#include <cstdint>

#include "traceap/detect/finding.hpp"

namespace traceap {

/// Where warm-up ends. Before it first-call costs are to be expected, after it they are defects.
struct WarmUp {
  bool known = false;       ///< false: neither steps nor repetition tell
  bool by_steps = false;    ///< told by steps, else by the repetition of kernels
  std::int64_t end_ns = 0;  ///< host clock; start of the profile if it begins warm
};
/// By the number in the first step's name, else the end of the first of several steps, else the
/// time at which a program that repeats its kernels has shown nearly all of them.
WarmUp find_warm_up(const Signals& signals);

}  // namespace traceap
