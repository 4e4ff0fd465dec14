#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "traceap/base/error.hpp"
#include "traceap/base/interrupt.hpp"
#include "traceap/simulation/replayer.hpp"

namespace traceap {
namespace {

// A thread copies the costs of the whole graph when it replays for the first time, about as long as
// one replay takes; it is worth starting for several, and for a few milliseconds at least.
constexpr std::size_t kReplaysPerThread = 6;
constexpr std::size_t kPointsPerThread = 1'000'000;

// Each replay side by side has costs and times of its own, which are kept. In larger graphs memory
// is what they wait for: side by side they take as long as one behind the other.
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

/// What one thread replays with, kept from batch to batch: to make it anew, and to have the system
/// clear its memory, takes as long as some replays.
struct Workspace {
  std::array<std::vector<Replayer>, 2> replayers;  // without and with residuals, side by side
  std::vector<Copies> copies;

  std::span<Replayer> prepared(const ExecutionGraph& graph, const ReplayOptions& options,
                               KnownOrders& orders, std::size_t passes) {
    std::vector<Replayer>& made = replayers[options.with_residuals ? 1 : 0];
    made.reserve(passes);
    if (made.empty()) made.emplace_back(graph, options, &orders);
    while (made.size() < passes) made.push_back(made.front());
    if (copies.size() < passes) copies.resize(passes);
    return std::span(made).first(passes);
  }
};

/// Takes edits back, which may not outlive the batch.
struct Unedited {
  std::span<Replayer> replayers;
  ~Unedited() {
    for (Replayer& replayer : replayers) replayer.edit(nullptr);
  }
};

}  // namespace

struct BatchReplayer::State {
  State(const ExecutionGraph& of, const StepWork& work, std::span<const PlainEdge> carried)
      : graph(of), offsets(work.offsets.begin(), work.offsets.end()), carries(of) {
    carries.assign_points(carried);
    for (const Point point : work.points) positions.push_back(graph.position[point]);
  }
  std::size_t steps() const { return offsets.size() - 1; }

  const ExecutionGraph& graph;
  const std::vector<std::uint32_t> offsets;  // of steps in positions
  std::vector<std::uint32_t> positions;      // of the work's points
  EdgesByDestination carries;
  KnownOrders orders;
  std::vector<Workspace> workspaces;  // by thread
  std::mutex in_use;
};

namespace {

/// The edits of a batch, shared out among threads, a few at a time.
class Batch {
 public:
  Batch(BatchReplayer::State& state, std::span<const GraphDelta* const> deltas,
        std::uint32_t copies, const ReplayOptions& options)
      : state_(state), deltas_(deltas), copies_(copies), options_(options) {
    ends_.end_ns.resize(deltas.size() * std::size_t{copies} * state.steps());
    ends_.left_out.resize(deltas.size());
    if (state.workspaces.size() < threads()) state.workspaces.resize(threads());
  }

  BatchEnds run() {
    std::vector<std::thread> helpers;
    try {
      for (std::size_t i = 1; i < threads(); ++i) {
        helpers.emplace_back([this, i] { help(state_.workspaces[i]); });
      }
    } catch (const std::system_error&) {  // no more threads: those that there are do it
    }
    try {
      replay_edits(state_.workspaces.front());
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
        std::min(replays / kReplaysPerThread, replays * state_.graph.size() / kPointsPerThread);
    const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
    const std::size_t shares = (deltas_.size() + side_by_side() - 1) / side_by_side();
    return std::clamp<std::size_t>(worth, 1, std::min(cores, shares));
  }

  std::size_t side_by_side() const {
    return state_.graph.size() > kPointsSideBySide ? 1 : std::min(kMostPasses, deltas_.size());
  }

  /// Only the caller's thread knows when it is to stop; it tells the others.
  void help(Workspace& workspace) {
    try {
      const InterruptScope stops([this] {
        if (stopped_) throw Stopped();
      });
      replay_edits(workspace);
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

  void replay_edits(Workspace& workspace) {
    const std::span<Replayer> replayers =
        workspace.prepared(state_.graph, options_, state_.orders, side_by_side());
    const Unedited unedited{replayers};
    for (;;) {
      const std::size_t first = next_.fetch_add(replayers.size());
      if (first >= deltas_.size() || stopped_) return;
      const std::size_t count = std::min(replayers.size(), deltas_.size() - first);
      for (std::size_t k = 0; k < count; ++k) {
        replayers[k].edit(deltas_[first + k]);
        ends_.left_out[first + k] = static_cast<std::uint32_t>(replayers[k].left_out().size());
      }
      replay_together(replayers.first(count), workspace.copies, first);
    }
  }

  /// Edits from `first` on.
  void replay_together(std::span<const Replayer> replayers, std::span<Copies> copies,
                       std::size_t first) {
    for (std::uint32_t copy = 0; copy < copies_; ++copy) {
      std::vector<Pass> passes;
      for (std::size_t k = 0; k < replayers.size(); ++k) {
        std::swap(copies[k].now, copies[k].before);
        copies[k].now.resize(state_.graph.size());
        passes.push_back({&replayers[k], copies[k].now, {}, copy});
        if (copy > 0) passes.back().before = copies[k].before;
      }
      run_passes(passes, state_.carries);
      for (std::size_t k = 0; k < replayers.size(); ++k) {
        step_ends(copies[k].now, ends_of(first + k, copy));
      }
    }
  }

  std::int64_t* ends_of(std::size_t edit, std::uint32_t copy) {
    return ends_.end_ns.data() + (edit * copies_ + copy) * state_.steps();
  }

  void step_ends(std::span<const std::int64_t> time_ns, std::int64_t* ends) const {
    for (std::size_t step = 0; step < state_.steps(); ++step) {
      std::int64_t end_ns = kNever;
      for (std::uint32_t i = state_.offsets[step]; i < state_.offsets[step + 1]; ++i) {
        end_ns = std::max(end_ns, time_ns[state_.positions[i]]);
      }
      ends[step] = end_ns;
    }
  }

  struct Stopped {};

  BatchReplayer::State& state_;
  std::span<const GraphDelta* const> deltas_;
  const std::uint32_t copies_;
  const ReplayOptions options_;
  BatchEnds ends_;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<bool> stopped_ = false, failed_ = false;
  std::exception_ptr error_;
};

}  // namespace

BatchReplayer::BatchReplayer(const ExecutionGraph& graph, const StepWork& work,
                             std::span<const PlainEdge> carries) {
  check_work(graph, work);
  check_edges(graph, carries);
  state_ = std::make_unique<State>(graph, work, carries);
}

BatchReplayer::~BatchReplayer() = default;

std::size_t BatchReplayer::steps() const { return state_->steps(); }

BatchEnds BatchReplayer::run(std::span<const GraphDelta* const> deltas, std::uint32_t copies,
                             const ReplayOptions& options) {
  if (deltas.empty()) return {};
  const std::lock_guard lock(state_->in_use);
  return Batch(*state_, deltas, copies, options).run();
}

}  // namespace traceap
