#pragma once
// What a program called, operator by operator.

#include <vector>

#include "traceap/detect/finding.hpp"

namespace traceap {

/// Operators that no operator encloses, by thread and in order of time: what Python called,
/// whatever frames lie around. One list for each thread that has any. O(n).
std::vector<std::vector<Row>> outermost_operators(const Signals& signals);
/// GPU rows launched from inside a host row, by order of their launches.
std::vector<Row> gpu_rows_inside(const Signals& signals, Row row);

}  // namespace traceap
