#pragma once
// Sums of lengths that may overlap, of waits and of bytes: a trace may claim any of them.

#include "traceap/base/intervals.hpp"

namespace traceap {

/// `sum += more` that stops at the ends of 64 bits.
constexpr void add_to(std::int64_t& sum, std::int64_t more) { sum = add_saturated(sum, more); }

}  // namespace traceap
