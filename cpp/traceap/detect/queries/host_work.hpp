#pragma once
// Questions about runs that compute on the host (`runs_on_host`): there operators are the work,
// and their own time is what they cost.

#include <string>
#include <string_view>
#include <vector>

#include "traceap/detect/finding.hpp"

namespace traceap {

/// An operator over one tensor that computes each element by itself, in place or not:
/// aten::add_, aten::sqrt, aten::addcdiv_, aten::lerp_.
bool is_pointwise_operator(std::string_view name);

/// A node that the autograd engine runs.
bool is_backward_node(std::string_view name);
/// Per track: does the run wait for its work? The thread that carries the steps, and those of
/// autograd; all of them where no step tells. What a loader's thread does beside them delays
/// nobody.
std::vector<std::uint8_t> awaited_tracks(const Signals& signals);

/// Operators that a range's own code called: inside it, and inside no other operator. By start.
std::vector<Row> operators_called_inside(const Signals& signals, Row range);

/// What a copy within the host's memory is for.
enum class CopyPurpose : std::uint8_t {
  kCast,     ///< from one floating type to another
  kLayout,   ///< between NCHW and NHWC
  kMove,     ///< to have the values elsewhere: contiguous, clone, cat, stack, repeat
  kUnknown,  ///< types are not recorded
};
struct HostCopy {
  Row called;  ///< what the program called: aten::to rather than the aten::copy_ in it
  CopyPurpose purpose;
  std::string from, to;  ///< types of a cast
};
/// Copies that an awaited thread makes, each once, by row. Those of a loader's fetch are the
/// loader's; from and to integers values are converted, not cast, and a single
/// number is Python's; `copy_` of a program's own is
/// kept only where it casts. O(n).
std::vector<HostCopy> copies_on_host(const Signals& signals);

/// Intervals of host rows, on the GPU's clock.
std::vector<Interval> intervals_of(const Signals& signals, const std::vector<Row>& rows);
/// What they take of the profiled time together.
std::int64_t host_cost_ns(const Signals& signals, const std::vector<Row>& rows);

}  // namespace traceap
