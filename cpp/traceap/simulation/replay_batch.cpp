#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>

#include "traceap/base/error.hpp"
#include "traceap/base/interrupt.hpp"
#include "traceap/simulation/replayer.hpp"

namespace traceap {
namespace {

// A thread copies the costs of the whole graph first, about as long as one replay takes; it is
// worth starting for several, and for a few milliseconds at least.
constexpr std::size_t kReplaysPerThread = 6;
constexpr std::size_t kPointsPerThread = 1'000'000;

void check_work(const ExecutionGraph& graph, const StepWork& work) {
  const auto& offsets = work.offsets;
  const bool fits = !offsets.empty() && offsets.front() == 0 &&
                    offsets.back() == work.points.size() &&
                    std::is_sorted(offsets.begin(), offsets.end());
  if (!fits) throw SchemaError("work_offsets: where the points of each step begin, and their end");
  for (const Point point : work.points) {
    if (point >= graph.size()) throw SchemaError("work_points: a point lies outside the graph");
  }
}

/// The edits of a batch, shared out one by one among threads.
class Batch {
 public:
  Batch(const ExecutionGraph& graph, std::span<const GraphDelta* const> deltas,
        const StepWork& work, std::span<const PlainEdge> carries, std::uint32_t copies,
        const ReplayOptions& options)
      : graph_(graph),
        deltas_(deltas),
        work_(work),
        copies_(copies),
        options_(options),
        carries_(graph) {
    carries_.assign_points(carries);
    for (const Point point : work.points) positions_.push_back(graph.position[point]);
    ends_.end_ns.resize(deltas.size() * std::size_t{copies} * work.steps());
    ends_.left_out.resize(deltas.size());
  }

  BatchEnds run() {
    std::vector<std::thread> helpers;
    try {
      for (std::size_t i = 1; i < threads(); ++i) helpers.emplace_back([this] { help(); });
    } catch (const std::system_error&) {  // no more threads: those that there are do it
    }
    try {
      replay_edits();
    } catch (...) {
      fail();
    }
    for (std::thread& helper : helpers) helper.join();
    if (error_) std::rethrow_exception(error_);
    return std::move(ends_);
  }

 private:
  std::size_t threads() const {
    const std::size_t replays = deltas_.size() * std::size_t{copies_};
    const std::size_t worth =
        std::min(replays / kReplaysPerThread, replays * graph_.size() / kPointsPerThread);
    const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
    return std::clamp<std::size_t>(worth, 1, std::min(cores, deltas_.size()));
  }

  /// Only the caller's thread knows when it is to stop; it tells the others.
  void help() {
    try {
      const InterruptScope stops([this] {
        if (stopped_) throw Stopped();
      });
      replay_edits();
    } catch (const Stopped&) {
      return;
    } catch (...) {
      fail();
    }
  }
  void fail() {
    stopped_ = true;
    if (!failed_.exchange(true)) error_ = std::current_exception();
  }

  void replay_edits() {
    Replayer replayer(graph_, options_);
    std::vector<std::int64_t> time_ns(graph_.size()), before(copies_ > 1 ? graph_.size() : 0);
    for (;;) {
      const std::size_t i = next_++;
      if (i >= deltas_.size() || stopped_) return;
      replayer.edit(deltas_[i]);
      ends_.left_out[i] = static_cast<std::uint32_t>(replayer.left_out().size());
      std::int64_t* ends = ends_.end_ns.data() + i * copies_ * work_.steps();
      for (std::uint32_t copy = 0; copy < copies_; ++copy, ends += work_.steps()) {
        if (copy == 0) {
          replayer.run(time_ns);
        } else {
          std::swap(before, time_ns);
          replayer.run_behind(before, carries_, time_ns);
        }
        step_ends(time_ns, ends);
      }
    }
  }

  void step_ends(std::span<const std::int64_t> time_ns, std::int64_t* ends) const {
    for (std::size_t step = 0; step < work_.steps(); ++step) {
      std::int64_t end_ns = kNever;
      for (std::uint32_t i = work_.offsets[step]; i < work_.offsets[step + 1]; ++i) {
        end_ns = std::max(end_ns, time_ns[positions_[i]]);
      }
      ends[step] = end_ns;
    }
  }

  struct Stopped {};

  const ExecutionGraph& graph_;
  std::span<const GraphDelta* const> deltas_;
  const StepWork& work_;
  const std::uint32_t copies_;
  const ReplayOptions options_;
  EdgesByDestination carries_;
  std::vector<std::uint32_t> positions_;  // of the work's points
  BatchEnds ends_;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<bool> stopped_ = false, failed_ = false;
  std::exception_ptr error_;
};

}  // namespace

BatchEnds replay_batch(const ExecutionGraph& graph, std::span<const GraphDelta* const> deltas,
                       const StepWork& work, std::span<const PlainEdge> carries,
                       std::uint32_t copies, const ReplayOptions& options) {
  check_work(graph, work);
  check_edges(graph, carries);
  if (deltas.empty()) return {};
  return Batch(graph, deltas, work, carries, copies, options).run();
}

}  // namespace traceap
