#pragma once
// Which work waits for which, where a trace has the calls that record events and make streams wait
// for them, but not the streams and events that they name. Private to analysis/.

#include <cstdint>
#include <span>
#include <vector>

#include "traceap/base/ids.hpp"

namespace traceap {

/// A call of one host thread: it puts GPU work on a stream, records an event, or makes a stream
/// wait for one.
struct StreamCall {
  enum Kind : std::uint8_t { kLaunch, kRecord, kWait };
  std::int64_t time_ns;  ///< begin of the call
  TrackId thread;
  Kind kind;
  // Of a launch: its GPU event, whose times say what it can have waited for.
  Row row = kNoRow;
  std::uint32_t stream = 0;
  std::int64_t ready_ns = 0;  ///< launched, and the work before it on its stream done
  std::int64_t begin_ns = 0, end_ns = 0;
};

struct StreamDependency {
  Row source, destination;
};

/// See Note [Partners of a wait]. `calls` in order of time, `streams` of them numbered from 0.
/// O(calls log calls): what is looked at for each wait is bounded.
std::vector<StreamDependency> find_stream_dependencies(std::span<const StreamCall> calls,
                                                       std::size_t streams);

}  // namespace traceap
