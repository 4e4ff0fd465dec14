#pragma once
// Where the program reads a value from the device, and the host waits for it.

#include <vector>

#include "traceap/detect/finding.hpp"

namespace traceap {

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
/// GPU idle that these reads cost: see stall_window.
IntervalSet stalls_of_reads(const Signals& signals, const std::vector<ValueRead>& reads);

}  // namespace traceap
