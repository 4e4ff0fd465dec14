#include "traceap/analysis/idle/idle.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <span>

#include "traceap/analysis/idle/host_cursor.hpp"
#include "traceap/base/interrupt.hpp"
#include "traceap/tree/graph_captures.hpp"

namespace traceap {
namespace {

constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kBeforeAll = std::numeric_limits<std::int64_t>::min();
/// The driver stages the first part of an upload, or pins its memory, before the copy begins: 0.15
/// to 0.6 ms on public traces, whatever the size.
constexpr std::int64_t kStagingBoundNs = 1'000'000;

/// A span of the trace whose idle time has a cause whatever the launching thread does.
struct Overlay {
  Interval interval;
  IdleCause cause;
  Row row;
};

/// As disjoint spans by start: where two overlap the earlier one holds.
std::vector<Overlay> make_disjoint(std::vector<Overlay> spans) {
  std::stable_sort(spans.begin(), spans.end(), [](const Overlay& a, const Overlay& b) {
    return a.interval.start_ns < b.interval.start_ns;
  });
  std::vector<Overlay> overlays;
  std::int64_t covered_to = kBeforeAll;
  for (Overlay& span : spans) {
    span.interval.start_ns = std::max(span.interval.start_ns, covered_to);
    if (span.interval.end_ns <= span.interval.start_ns) continue;
    covered_to = span.interval.end_ns;
    overlays.push_back(span);
  }
  return overlays;
}

/// Rows of `wanted` activities.
template <class Wanted>
std::vector<Overlay> build_overlays(const EventTable& table, Wanted&& wanted) {
  std::vector<Overlay> overlays;
  for (Row r = 0; r < table.size(); ++r) {
    poll_interrupt();
    IdleCause cause;
    if (!table.is_complete(r) || !wanted(r, cause)) continue;
    overlays.push_back({{table.ts_ns[r], table.end_ns(r)}, cause, r});
  }
  return overlays;
}

/// First overlay that ends after `time_ns`, or nullptr.
const Overlay* overlay_from(const std::vector<Overlay>& overlays, std::int64_t time_ns) {
  const auto it = std::partition_point(overlays.begin(), overlays.end(), [&](const Overlay& o) {
    return o.interval.end_ns <= time_ns;
  });
  return it == overlays.end() ? nullptr : &*it;
}

/// For every event of a stream, when the first of it and its successors was launched. A stream runs
/// in launch order, so this bounds the launch of events that have lost theirs.
class LaunchOrder {
 public:
  LaunchOrder(const EventTable& table, const EventTree& tree)
      : table_(table), tree_(tree), first_launch_(tree.streams.size()) {}

  /// Was this event surely launched at or before `time_ns` (host clock)?
  bool launched_before(Row gpu_row, std::int64_t time_ns) {
    const std::uint32_t stream = tree_.stream_of[gpu_row];
    if (stream >= tree_.streams.size()) return false;
    const std::vector<Row>& rows = tree_.streams[stream].rows;
    if (first_launch_[stream].empty()) fill(stream);
    const auto it = std::lower_bound(rows.begin(), rows.end(), gpu_row);
    if (it == rows.end()) return false;
    return first_launch_[stream][static_cast<std::size_t>(it - rows.begin())] <= time_ns;
  }

 private:
  void fill(std::uint32_t stream) {
    const std::vector<Row>& rows = tree_.streams[stream].rows;
    std::vector<std::int64_t>& first = first_launch_[stream];
    first.resize(rows.size());
    std::int64_t earliest = kForever;
    for (std::size_t i = rows.size(); i-- > 0;) {
      const Row launch = tree_.launch[rows[i]];
      if (launch != kNoRow) earliest = std::min(earliest, table_.ts_ns[launch]);
      first[i] = earliest;
    }
  }

  const EventTable& table_;
  const EventTree& tree_;
  std::vector<std::vector<std::int64_t>> first_launch_;
};

/// Collects pieces of one idle interval after the other, merging neighbours of one cause.
class PieceWriter {
 public:
  PieceWriter(Interval bounds, std::int64_t to_gpu_clock_ns)
      : bounds_(bounds), to_gpu_clock_ns_(to_gpu_clock_ns) {}

  void begin(Row next_gpu_row) { next_gpu_row_ = next_gpu_row; }

  /// A piece in the host's clock. Pieces come in order and without holes.
  void add(Interval host_interval, IdleCause cause, Row row) {
    const Interval piece{std::max(host_interval.start_ns + to_gpu_clock_ns_, bounds_.start_ns),
                         std::min(host_interval.end_ns + to_gpu_clock_ns_, bounds_.end_ns)};
    if (piece.end_ns <= piece.start_ns) return;
    if (!open_ || current_.cause != cause) {
      flush();
      current_ = {{piece.start_ns, piece.start_ns}, cause, row, next_gpu_row_};
      open_ = true;
      best_ns_ = run_ns_ = 0;
      run_row_ = row;
    }
    current_.interval.end_ns = piece.end_ns;
    count_for(row, piece.length_ns());
  }

  /// Ends the idle interval.
  void flush() {
    if (!open_) return;
    result_.intervals.push_back(current_);
    result_.total_ns[static_cast<std::size_t>(current_.cause)] += current_.interval.length_ns();
    open_ = false;
  }

  IdleBreakdown take() { return std::move(result_); }

 private:
  /// The row that holds a merged piece for the longest stretch explains it.
  void count_for(Row row, std::int64_t length_ns) {
    run_ns_ = row == run_row_ ? run_ns_ + length_ns : length_ns;
    run_row_ = row;
    if (row != kNoRow && run_ns_ > best_ns_) {
      current_.explained_by = row;
      best_ns_ = run_ns_;
    }
  }

  Interval bounds_;
  std::int64_t to_gpu_clock_ns_;
  Row next_gpu_row_ = kNoRow;
  IdleBreakdown result_;
  IdleInterval current_{};
  bool open_ = false;
  Row run_row_ = kNoRow;
  std::int64_t run_ns_ = 0, best_ns_ = 0;
};

class IdleExplainer {
 public:
  IdleExplainer(const EventTable& table, const EventTree& tree, const GpuIntervals& gpu,
                Interval bounds)
      : table_(table),
        tree_(tree),
        gpu_(gpu),
        bounds_(bounds),
        model_(table, tree),
        launch_order_(table, tree),
        to_host_clock_ns_(tree.launch_delay_correction_ns),
        writer_(bounds, -to_host_clock_ns_),
        cursors_(table.tracks.size()) {
    std::vector<Overlay> overhead = build_overlays(table, [&](Row r, IdleCause& cause) {
      if (table.kind[r] != EventKind::kOverhead) return false;
      cause = model_.activity(r) == HostActivity::kCompilation ? IdleCause::kCompilation
                                                               : IdleCause::kProfiler;
      return true;
    });
    // Nothing runs of what is launched while a graph is recorded.
    for (const GraphCapture& capture : find_graph_captures(table, tree)) {
      overhead.push_back({capture.host, IdleCause::kCompilation, capture.begin});
    }
    overhead_ = make_disjoint(std::move(overhead));
    collectives_ = make_disjoint(build_overlays(table, [&](Row r, IdleCause& cause) {
      const EventKind kind = table.kind[r];
      if (kind != EventKind::kUserAnnotation && kind != EventKind::kCpuOp) return false;
      cause = IdleCause::kCommunicationWait;
      return model_.activity(r) == HostActivity::kHostCollective;
    }));
  }

  IdleBreakdown explain() {
    const IntervalSet& busy = gpu_.busy;
    auto after = std::partition_point(busy.begin(), busy.end(), [&](const Interval& i) {
      return i.start_ns <= bounds_.start_ns;
    });
    for (;; ++after) {
      const Interval gap{after == busy.begin() ? bounds_.start_ns : (after - 1)->end_ns,
                         after == busy.end() ? bounds_.end_ns : after->start_ns};
      if (gap.start_ns >= bounds_.end_ns) break;
      if (gap.end_ns > std::max(gap.start_ns, bounds_.start_ns)) {
        explain_gap(gap, after != busy.begin(), after != busy.end());
      }
      if (after == busy.end()) break;
    }
    return writer_.take();
  }

 private:
  /// What is known of the call that ended a gap. Times are the host's clock.
  struct Launch {
    Row row = kNoRow;          ///< the call, or the operator where the call is not recorded
    TrackId track = kNoTrack;  ///< thread to look at
    std::int64_t returned_ns = kForever;
    bool queued = false;  ///< the work was waiting when the gap began
  };
  /// The GPU events around a gap; kNoRow where there is none, in which case the gap ends at the
  /// caller's bounds, and what they are must not matter.
  struct Neighbours {
    Row previous = kNoRow;
    Row next = kNoRow;
    bool work_precedes = false;  ///< the gap began when the GPU ran dry
    /// When something changed for the host: `time_ns`, or never where no work follows.
    std::int64_t end_of(std::int64_t time_ns) const { return next == kNoRow ? kForever : time_ns; }
  };

  /// A stretch in which the host does one thing.
  struct Moment {
    Interval time;
    HostState state;
  };

  /// `work_precedes`: the gap began when the GPU ran dry, not where the caller's bounds begin.
  void explain_gap(Interval gap, bool work_precedes, bool work_follows) {
    const Row next = work_follows ? gpu_row_from(gap.end_ns) : kNoRow;
    const Row previous = work_precedes ? gpu_row_to(gap.start_ns, next) : kNoRow;
    const Neighbours around{previous, next, work_precedes};
    if (is_within_graph(previous, next)) {
      writer_.begin(gap.end_ns <= bounds_.end_ns ? next : kNoRow);
      writer_.add({gap.start_ns + to_host_clock_ns_, gap.end_ns + to_host_clock_ns_},
                  IdleCause::kWithinGraph, tree_.launch[next]);
      writer_.flush();
      return;
    }
    Interval host{gap.start_ns + to_host_clock_ns_, gap.end_ns + to_host_clock_ns_};
    const Launch launch = find_launch(next, work_precedes ? host.start_ns : kBeforeAll);
    // What the call belongs to must not depend on where the bounds begin; pieces get clipped.
    if (!work_precedes) host.start_ns = std::min(host.start_ns, launch.returned_ns - 1);
    // Rows named for the output lie inside the caller's bounds or end the gap.
    writer_.begin(gap.end_ns <= bounds_.end_ns ? next : kNoRow);
    budget_ns_ = 0;
    const std::int64_t returned = std::clamp(launch.returned_ns, host.start_ns, host.end_ns);
    IdleCause at_return = IdleCause::kHostWait;
    if (returned > host.start_ns) {
      at_return = explain_by_host({host.start_ns, returned}, launch, around);
    }
    if (host.end_ns > returned) {
      explain_by_device({returned, host.end_ns}, at_return, launch, next, previous);
    }
    writer_.flush();
  }

  /// Are both nodes of one replay of a graph? Whatever the host does between them, it launches
  /// nothing: the device goes from node to node by itself.
  bool is_within_graph(Row previous, Row next) const {
    if (previous == kNoRow || next == kNoRow) return false;
    const Row launch = tree_.launch[next];
    return launch != kNoRow && launch == tree_.launch[previous] &&
           tree_.api[launch] == ApiClass::kGraphLaunch;
  }

  /// First GPU event that starts at or after `time_ns`; of several at once the one launched first.
  Row gpu_row_from(std::int64_t time_ns) const {
    const std::vector<Row>& rows = tree_.gpu_rows;
    auto it = std::partition_point(rows.begin(), rows.end(),
                                   [&](Row r) { return table_.ts_ns[r] < time_ns; });
    if (it == rows.end()) return kNoRow;
    Row best = kNoRow;
    const std::int64_t start = table_.ts_ns[*it];
    constexpr int kMostTies = 64;  // events that start in the same ns; bounds hostile input
    for (int i = 0; i < kMostTies && it != rows.end() && table_.ts_ns[*it] == start; ++i, ++it) {
      if (best == kNoRow || launched_earlier(*it, best)) best = *it;
    }
    return best;
  }

  bool launched_earlier(Row a, Row b) const {
    const Row launch_a = tree_.launch[a], launch_b = tree_.launch[b];
    if ((table_.dur_ns[a] > 0) != (table_.dur_ns[b] > 0)) return table_.dur_ns[a] > 0;
    return launch_a < launch_b;  // rows are in order of start; kNoRow comes last
  }

  /// The GPU event whose end began the gap.
  Row gpu_row_to(std::int64_t time_ns, Row next) const {
    const std::vector<Row>& rows = tree_.gpu_rows;
    auto it = std::partition_point(rows.begin(), rows.end(),
                                   [&](Row r) { return table_.ts_ns[r] < time_ns; });
    constexpr int kMostBack = 16;  // it is one of the last that began, unless many run at once
    Row fallback = kNoRow;
    for (int i = 0; i < kMostBack && it != rows.begin(); ++i) {
      --it;
      if (*it == next) continue;
      if (table_.end_ns(*it) == time_ns) return *it;
      if (fallback == kNoRow) fallback = *it;
    }
    return fallback;
  }

  Launch find_launch(Row next, std::int64_t gap_start_ns) {
    if (next == kNoRow) return {kNoRow, tree_.main_track, kForever, false};
    Row row = tree_.launch[next];
    if (row == kNoRow && launch_order_.launched_before(next, gap_start_ns)) {
      return {kNoRow, tree_.main_track, gap_start_ns, true};
    }
    if (row == kNoRow) row = tree_.op[next];
    if (row == kNoRow) return {kNoRow, tree_.main_track, kForever, false};
    const std::int64_t returned = table_.end_ns(row);
    return {row, table_.track[row], returned, returned <= gap_start_ns};
  }

  /// The queue is empty: what the launching thread does until its call returns is the cause.
  /// Returns the cause of the last moment.
  IdleCause explain_by_host(Interval part, const Launch& launch, const Neighbours& around) {
    HostCursor& own = cursor(launch.track, part.start_ns);
    others_.clear();
    const Row previous_launch = around.previous == kNoRow ? kNoRow : tree_.launch[around.previous];
    if (previous_launch != kNoRow) add_other(table_.track[previous_launch], launch.track, part);
    add_other(tree_.main_track, launch.track, part);
    const Interval idle{part.start_ns, around.end_of(part.end_ns)};
    moments_.clear();
    std::int64_t host_wait_ns = 0;
    HostState first;
    for (std::int64_t t = part.start_ns; t < part.end_ns;) {
      own.advance(t);
      std::int64_t until = std::min(part.end_ns, own.next_change_ns());
      for (HostCursor* other : others_) {
        other->advance(t);
        until = std::min(until, other->next_change_ns());
      }
      until = limit_by(collectives_, t, until);
      HostState state = judge_moment(own, t, launch);
      if (until - t >= kLongCallNs && is_copy_operator(state.row))
        state.cause = IdleCause::kHostWait;
      if (moments_.empty()) first = state;
      const bool same_thread = state.row != kNoRow && table_.track[state.row] == launch.track;
      if (same_thread && waits_for_unrecorded_work(state, t, idle, around)) {
        state.cause = IdleCause::kUnknown;
      }
      if (state.cause == IdleCause::kHostWait) host_wait_ns += until - t;
      moments_.push_back({{t, until}, state});
      t = until;
    }
    if (around.work_precedes && around.next != kNoRow) {
      open_budget(first, part.start_ns, host_wait_ns);
    }
    for (const Moment& moment : moments_) add(moment.time, moment.state.cause, moment.state.row);
    return moments_.empty() ? IdleCause::kHostWait : moments_.back().state.cause;
  }

  /// Its own path around a copy takes microseconds; where it makes no call for long, something
  /// else happens in it (the context starts, memory is paged in).
  bool is_copy_operator(Row row) const {
    if (row == kNoRow) return false;
    const HostActivity activity = model_.activity(row);
    return activity == HostActivity::kCopyOp || activity == HostActivity::kScalarReadOp;
  }

  HostCursor& cursor(TrackId track, std::int64_t time_ns) {
    const std::size_t slot =
        track == kNoTrack || track >= cursors_.size() ? cursors_.size() : track;
    if (slot == cursors_.size()) {
      if (!no_thread_) no_thread_ = std::make_unique<HostCursor>(model_, kNoTrack, time_ns);
      return *no_thread_;
    }
    if (!cursors_[slot]) cursors_[slot] = std::make_unique<HostCursor>(model_, track, time_ns);
    return *cursors_[slot];
  }

  void add_other(TrackId track, TrackId own, Interval part) {
    if (track == kNoTrack || track == own) return;
    HostCursor* other = &cursor(track, part.start_ns);
    if (std::find(others_.begin(), others_.end(), other) == others_.end()) {
      others_.push_back(other);
    }
  }

  static std::int64_t limit_by(const std::vector<Overlay>& overlays, std::int64_t time_ns,
                               std::int64_t until_ns) {
    const Overlay* overlay = overlay_from(overlays, time_ns);
    if (overlay == nullptr) return until_ns;
    const Interval& i = overlay->interval;
    return std::min(until_ns, i.start_ns > time_ns ? i.start_ns : i.end_ns);
  }

  /// The launching thread speaks first; where it is silent or only inside a range, the thread that
  /// launched the work before and the main thread may know better.
  HostState judge_moment(const HostCursor& own, std::int64_t time_ns, const Launch& launch) const {
    HostState best = own.state();
    if (best.cause != IdleCause::kHostWait || !best.weak) return best;
    for (const HostCursor* other : others_) {
      if (other->state().cause != IdleCause::kHostWait) return other->state();
    }
    const Overlay* collective = overlay_from(collectives_, time_ns);
    if (collective != nullptr && collective->interval.start_ns <= time_ns) {
      return {collective->row, collective->cause, false};
    }
    for (const HostCursor* other : others_) {
      const HostState state = other->state();
      if (state.row != kNoRow && (best.row == kNoRow || (best.weak && !state.weak))) best = state;
    }
    return best.row != kNoRow ? best : judge_silence(own, time_ns, launch);
  }

  /// Nothing is recorded. Between recorded calls of a thread, or inside a step, Python runs.
  HostState judge_silence(const HostCursor& own, std::int64_t time_ns, const Launch& launch) const {
    const Step* step = step_at(time_ns);
    bool between = own.has_past() && own.has_future();
    for (const HostCursor* other : others_) {
      between = between || (other->has_past() && (other->has_future() || own.has_future()));
    }
    if (step == nullptr && !between) return {kNoRow, IdleCause::kUnknown, true};
    const Row row = step != nullptr && step->row != kNoRow ? step->row : launch.row;
    return {row, IdleCause::kHostWait, true};
  }

  const Step* step_at(std::int64_t time_ns) const {
    const auto it = std::partition_point(tree_.steps.begin(), tree_.steps.end(),
                                         [&](const Step& s) { return s.end_ns <= time_ns; });
    return it != tree_.steps.end() && it->start_ns <= time_ns ? &*it : nullptr;
  }

  /// Is the host in a call that waits for the GPU, while the GPU has had nothing to do for longer
  /// than such a call takes by itself? What it waits for is not in the file then. Nor is it where
  /// no GPU event precedes. `idle`: from the start of the gap to the return of the next launch.
  bool waits_for_unrecorded_work(const HostState& state, std::int64_t time_ns, Interval idle,
                                 const Neighbours& around) const {
    if (state.cause != IdleCause::kSynchronization && state.cause != IdleCause::kMemoryCopy) {
      return false;
    }
    if (state.row == kNoRow || !is_api_call(table_.kind[state.row])) return false;
    Interval wait{std::max(idle.start_ns, table_.ts_ns[state.row]),
                  std::min(idle.end_ns, table_.end_ns(state.row))};
    std::int64_t expected_ns = kLaunchLatencyBoundNs;
    if (model_.activity(state.row) != HostActivity::kSynchronize) {
      const Row copy = copy_ahead(state.row, time_ns);
      if (copy == kNoRow) return false;
      wait.end_ns = std::min(wait.end_ns, table_.ts_ns[copy] + to_host_clock_ns_);
      expected_ns = preparation_bound_ns(copy);
    }
    return !around.work_precedes || wait.length_ns() > expected_ns;
  }

  /// The copy of this call that has not begun at the time, or kNoRow.
  Row copy_ahead(Row call, std::int64_t time_ns) const {
    const std::span<const Row> launched = tree_.launched_by(call);
    const auto ahead = std::partition_point(launched.begin(), launched.end(), [&](Row gpu) {
      return table_.ts_ns[gpu] + to_host_clock_ns_ <= time_ns;
    });
    const bool copies = ahead != launched.end() && tree_.gpu_class[*ahead] == GpuClass::kMemcpy;
    return copies ? *ahead : kNoRow;
  }

  /// How long a call may take before its copy begins: memory is staged or pinned, in proportion.
  std::int64_t preparation_bound_ns(Row copy) const {
    const bool to_host = tree_.copy_direction[copy] == CopyDirection::kDeviceToHost;
    return std::max(to_host ? kLaunchLatencyBoundNs : kStagingBoundNs, table_.dur_ns[copy]);
  }

  /// The host sits in a call that waits while the GPU runs dry: what it does behind it until the
  /// next launch is the call's doing, within bounds (see kRefillBoundNs). What takes it longer than
  /// kRefillReachNs is no refill.
  void open_budget(const HostState& state, std::int64_t gap_start_ns, std::int64_t host_wait_ns) {
    if (state.row == kNoRow || !is_waiting_call(model_.activity(state.row))) return;
    const std::int64_t waited_ns = gap_start_ns - table_.ts_ns[state.row];
    if (waited_ns <= 0) return;  // the GPU was idle before
    if (host_wait_ns > kRefillReachNs) return;
    budget_ns_ = std::clamp(waited_ns, kRefillBoundNs, kRefillReachNs);
    budget_cause_ = state.cause;
    budget_row_ = state.row;
  }

  static bool is_waiting_call(HostActivity activity) {
    return activity == HostActivity::kSynchronize || activity == HostActivity::kSyncCopy ||
           activity == HostActivity::kAsyncCopy || activity == HostActivity::kAllocator ||
           activity == HostActivity::kCommunicationWait;
  }

  /// The launch call has returned: the device takes its time. Had the host been ahead, nobody would
  /// see it, so it belongs to what the call belongs to.
  void explain_by_device(Interval part, IdleCause at_return, const Launch& launch, Row next,
                         Row previous) {
    const bool expected = part.length_ns() <= kLaunchLatencyBoundNs;
    IdleCause cause = launch.queued ? IdleCause::kLaunchLatency : at_return;
    if (!expected) cause = IdleCause::kUnknown;
    const bool waited = launch.queued || !expected;
    if (waited && waits_for_collective(next, previous, expected)) {
      cause = IdleCause::kCommunicationWait;
    }
    add(part, cause, launch.row);
  }

  /// Queued work that starts late behind a collective of another stream needs its result; a
  /// collective that starts late waits for its peers' set-up.
  bool waits_for_collective(Row next, Row previous, bool expected) const {
    if (next == kNoRow) return false;
    const bool other_stream =
        previous != kNoRow && tree_.stream_of[previous] != tree_.stream_of[next];
    if (other_stream && tree_.gpu_class[previous] == GpuClass::kCommunication) return true;
    return !expected && tree_.gpu_class[next] == GpuClass::kCommunication;
  }

  /// Adds a piece; the profiler's own work, code loading and the recording of a graph decide
  /// whatever call they happen in, but not for a loader that works beside them.
  void add(Interval part, IdleCause cause, Row row) {
    const bool see_through = cause != IdleCause::kDataLoading;
    while (see_through && part.start_ns < part.end_ns) {
      const Overlay* overlay = overlay_from(overhead_, part.start_ns);
      if (overlay == nullptr || overlay->interval.start_ns >= part.end_ns) break;
      const std::int64_t from = std::max(part.start_ns, overlay->interval.start_ns);
      const std::int64_t to = std::min(part.end_ns, overlay->interval.end_ns);
      add_within_budget({part.start_ns, from}, cause, row);
      writer_.add({from, to}, overlay->cause, overlay->row);
      part.start_ns = to;
    }
    add_within_budget(part, cause, row);
  }

  void add_within_budget(Interval part, IdleCause cause, Row row) {
    if (cause == IdleCause::kHostWait && budget_ns_ > 0 && part.end_ns > part.start_ns) {
      const std::int64_t taken = std::min(budget_ns_, part.length_ns());
      writer_.add({part.start_ns, part.start_ns + taken}, budget_cause_, budget_row_);
      budget_ns_ -= taken;
      part.start_ns += taken;
    }
    writer_.add(part, cause, row);
  }

  const EventTable& table_;
  const EventTree& tree_;
  const GpuIntervals& gpu_;
  const Interval bounds_;
  HostModel model_;
  LaunchOrder launch_order_;
  const std::int64_t to_host_clock_ns_;
  PieceWriter writer_;
  std::vector<std::unique_ptr<HostCursor>> cursors_;  ///< by track, made when first needed
  std::unique_ptr<HostCursor> no_thread_;
  std::vector<HostCursor*> others_;
  std::vector<Moment> moments_;  ///< of the gap at hand
  std::vector<Overlay> overhead_, collectives_;
  std::int64_t budget_ns_ = 0;
  IdleCause budget_cause_ = IdleCause::kSynchronization;
  Row budget_row_ = kNoRow;
};

}  // namespace

std::string_view idle_cause_name(IdleCause cause) {
  static constexpr std::array<std::string_view, kIdleCauseCount> kNames{
      "data_loading",       "host_wait",   "synchronization", "memory_copy",
      "communication_wait", "compilation", "allocator",       "launch_latency",
      "profiler",           "unknown",     "within_graph"};
  return kNames[static_cast<std::size_t>(cause)];
}

namespace {

void leave_out(IdleBreakdown& idle, const IntervalSet& left_out) {
  std::vector<IdleInterval> left;
  idle.total_ns.fill(0);
  for (const IdleInterval& whole : idle.intervals) {
    for (const Interval& part : set_difference(std::span(&whole.interval, 1), left_out)) {
      left.push_back({part, whole.cause, whole.explained_by, whole.next_gpu_row});
      idle.total_ns[static_cast<std::size_t>(whole.cause)] += part.length_ns();
    }
  }
  idle.intervals = std::move(left);
}

}  // namespace

IdleBreakdown explain_idle(const EventTable& table, const EventTree& tree, const GpuIntervals& gpu,
                           Interval bounds) {
  if (bounds.end_ns <= bounds.start_ns) return {};
  IdleBreakdown idle = IdleExplainer(table, tree, gpu, bounds).explain();
  const IntervalSet left_out = set_union(gpu.not_judged, tree.recording.missing);
  if (!left_out.empty()) leave_out(idle, left_out);
  return idle;
}

}  // namespace traceap
