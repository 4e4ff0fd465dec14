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

// Each replay side by side has costs and times of its own. In larger graphs these are blocks that
// the system clears anew for each batch, which takes longer than going side by side saves.
constexpr std::size_t kPointsSideBySide = 250'000;

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

/// Times of a copy of a chain, and of the one before it.
struct Copies {
  std::vector<std::int64_t> now, before;
};

/// The edits of a batch, shared out among threads, a few at a time.
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
    const std::size_t shares = (deltas_.size() + side_by_side() - 1) / side_by_side();
    return std::clamp<std::size_t>(worth, 1, std::min(cores, shares));
  }

  std::size_t side_by_side() const {
    return graph_.size() > kPointsSideBySide ? 1 : std::min(kMostPasses, deltas_.size());
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
    const std::size_t passes = side_by_side();
    std::vector<Replayer> replayers;
    replayers.reserve(passes);
    replayers.emplace_back(graph_, options_);
    while (replayers.size() < passes) replayers.push_back(replayers.front());
    std::vector<Copies> copies(passes);
    for (;;) {
      const std::size_t first = next_.fetch_add(passes);
      if (first >= deltas_.size() || stopped_) return;
      const std::size_t count = std::min(passes, deltas_.size() - first);
      for (std::size_t k = 0; k < count; ++k) {
        replayers[k].edit(deltas_[first + k]);
        ends_.left_out[first + k] = static_cast<std::uint32_t>(replayers[k].left_out().size());
      }
      replay_together(std::span(replayers).first(count), copies, first);
    }
  }

  /// Edits from `first` on.
  void replay_together(std::span<const Replayer> replayers, std::span<Copies> copies,
                       std::size_t first) {
    for (std::uint32_t copy = 0; copy < copies_; ++copy) {
      std::vector<Pass> passes;
      for (std::size_t k = 0; k < replayers.size(); ++k) {
        std::swap(copies[k].now, copies[k].before);
        copies[k].now.resize(graph_.size());
        passes.push_back({&replayers[k], copies[k].now, {}});
        if (copy > 0) passes.back().before = copies[k].before;
      }
      run_passes(passes, carries_);
      for (std::size_t k = 0; k < replayers.size(); ++k) {
        step_ends(copies[k].now, ends_of(first + k, copy));
      }
    }
  }

  std::int64_t* ends_of(std::size_t edit, std::uint32_t copy) {
    return ends_.end_ns.data() + (edit * copies_ + copy) * work_.steps();
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
