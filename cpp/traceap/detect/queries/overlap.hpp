#pragma once
// What runs beside what on the GPU.

#include "traceap/detect/finding.hpp"

namespace traceap {

/// Time in which two or more compute kernels run at once: what one of them leaves free another may
/// use, and what one of them takes longer costs nothing by itself.
IntervalSet shared_compute_time(const Signals& signals);

}  // namespace traceap
