#pragma once
// Where the program reads a value from the device, and the host waits for it.

#include <vector>

#include "traceap/base/ids.hpp"
#include "traceap/base/intervals.hpp"

namespace traceap {

struct Signals;

struct ValueRead {
  Row call;       ///< the API call that blocks, or the copy call
  Interval host;  ///< how long the host was blocked
};

struct ValueReads {
  std::vector<ValueRead> reads;    ///< small copies to the host, and waits in reading operators
  std::vector<ValueRead> unsized;  ///< copies that could be results: nothing tells their size
};

/// .item(), nonzero, boolean masks, small .cpu(). O(n).
ValueReads find_value_reads(const Signals& signals);
/// What these reads cost.
struct ReadCost {
  IntervalSet stalls;             ///< GPU idle behind each: see stall_window
  IntervalSet late;               ///< what idles later, see Note [Lost lead]
  std::int64_t usual_gap_ns = 0;  ///< see Note [Usual gap]
  bool gap_lost = false;          ///< records are lost without which the usual gap is not known
};
ReadCost cost_of_reads(const Signals& signals, const std::vector<ValueRead>& reads);

}  // namespace traceap
