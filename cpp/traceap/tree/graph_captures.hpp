#pragma once
// Recordings of CUDA and HIP graphs on the host: while one goes on, launch calls launch nothing.

#include <vector>

#include "traceap/base/intervals.hpp"
#include "traceap/tree/event_tree.hpp"

namespace traceap {

struct GraphCapture {
  Interval host;  ///< begin of the capture to the last call that makes a graph of it; host clock
  Row begin;      ///< the call that begins it, such as cudaStreamBeginCapture
};
/// By start, over all threads. Instantiation and upload count as far as nothing was launched
/// between. A capture whose end is not recorded is left out. O(n).
std::vector<GraphCapture> find_graph_captures(const EventTable& table, const EventTree& tree);

}  // namespace traceap
