#pragma once
// Iterations of a serving engine: the engine's own annotations, or what repeats.

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "traceap/tree/event_tree.hpp"

namespace traceap {

/// Annotations of the thread that has most of them, by start. Where annotations nest, as in traces
/// that were split by a tool, the innermost ones count. O(n).
std::vector<Row> find_iterations(const EventTable& table, const EventTree& tree);

/// What tells iterations apart, the best first.
enum class IterationSource : std::uint8_t {
  kAnnotations = 0,  ///< of the engine
  kProfilerSteps,
  kPattern,  ///< steps that repeat on the main thread
  kGraphs,   ///< replays of CUDA graphs, of which the shortest sequence that repeats is one
  kTrace,    ///< nothing: the whole trace is one
};
inline constexpr int kIterationSourceCount = static_cast<int>(IterationSource::kTrace) + 1;
/// In words, such as "profiler steps".
std::string_view iteration_source_name(IterationSource source);

struct IterationSpans {
  IterationSource source;
  std::vector<Interval> spans;  ///< host clock, by start
  std::vector<Row> rows;        ///< the engine's annotations; empty from other sources
};
/// From the best source that the trace has. O(n + graph launches squared).
IterationSpans find_iteration_spans(const EventTable& table, const EventTree& tree);

}  // namespace traceap
