#pragma once
// Iterations of a serving engine with what each runs, and the bubbles between them.

#include <cstdint>
#include <optional>
#include <vector>

#include "traceap/analysis/idle/idle.hpp"
#include "traceap/analysis/idle/serving_work.hpp"
#include "traceap/base/intervals.hpp"
#include "traceap/tree/event_tree.hpp"
#include "traceap/tree/iterations.hpp"

namespace traceap {

struct Signals;

/// One iteration. It runs what is launched within its range on the host; under overlapped
/// scheduling the GPU does that later.
struct ServedIteration {
  Row row = kNoRow;  ///< the engine's annotation; kNoRow where another source tells
  std::optional<IterationMark> mark;
  IterationPhase phase = IterationPhase::kUnmarked;
  Interval host{0, 0};        ///< host clock
  Interval gpu{0, 0};         ///< first start to last end of its GPU work; GPU clock
  std::vector<Row> gpu_rows;  ///< by start
  std::size_t graphs = 0;     ///< replays of graphs
  std::size_t kernels = 0;    ///< kernels that calls launched one by one
  /// Tokens come out, one for each request in generation, so that the next iteration hangs on it.
  bool generates() const {
    return phase != IterationPhase::kPrefill && phase != IterationPhase::kDiffusion &&
           phase != IterationPhase::kIdle;
  }
  bool is_decode() const {
    return phase == IterationPhase::kDecode || phase == IterationPhase::kSpeculative;
  }
};

struct Served {
  std::vector<ServedIteration> iterations;  ///< by start, those that ran something on a GPU
  TrackId track = kNoTrack;                 ///< the thread that the annotations stand on
  bool marked = false;                      ///< by annotations of the engine
};
/// Empty where nothing shows that an engine serves tokens or nothing repeats.
/// O(n).
Served find_served(const EventTable& table, const EventTree& tree);

/// Idle time of the GPU in front of an iteration, behind the work of those before.
struct Bubble {
  std::size_t iteration;
  Interval bounds;   ///< last end of work before to first start of its own
  IntervalSet idle;  ///< what of it no GPU work covers
  /// What of the idle time the host can be held to: it has no cause of another kind, such as
  /// compilation, the profiler, work that was queued already or that is outside of the file.
  IntervalSet of_host;
};
/// In front of every iteration but the first that ran.
std::vector<Bubble> find_bubbles(const Signals& signals);

/// Note [Reading or scheduling]: a bubble in which the host waits for a copy of the tokens holds
/// the wait, sampling and the launch behind it, and whatever the engine does else before it
/// launches. Where the former take more time, over all bubbles of the trace, the copy is what to
/// change; else it is the scheduler. Work without a name counts to the wait as the refill of the
/// queue, up to kRefillBoundNs. So each bubble has one cause, and all of them have the same.
struct BubbleCost {
  Bubble bubble;
  std::vector<ServingPiece> host_work;  ///< by time, where the scheduler is the cause
  IntervalSet reading;     ///< the bubble and the exposed copies, where reading is the cause
  std::vector<Row> reads;  ///< the calls that made the host wait, where they are the cause
};
/// Bubbles in front of iterations that generate tokens, without what drafting leaves idle. Waiting
/// for requests or another process counts only where requests of the iteration before go on, since
/// they wait for the scheduler and not for clients. See Note [Reading or scheduling].
std::vector<BubbleCost> cost_of_bubbles(const Signals& signals);

/// Drafting of a speculative decoder: the ranges on the host, and the idle time of the GPU while
/// they run and between what they launch.
struct Drafts {
  std::vector<Row> ranges;
  std::vector<Interval> windows;  ///< GPU clock, may overlap
  IntervalSet idle;
};
Drafts find_drafts(const Signals& signals);

/// The row that shows an iteration: its annotation, else the first call that launches its work.
Row evidence_of(const Signals& signals, const ServedIteration& iteration);

}  // namespace traceap
