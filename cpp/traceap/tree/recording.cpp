// What the recording can be trusted for.
//
// Note [Lost records]: a launch call has GPU work of its own. Where profilers lose records (a
// buffer overflows, a limit is reached, a stream is not followed) they lose those of many launches
// in a row, so the launches of a rank are a sequence in which stretches of losses are looked for:
// one for a loss, minus one for a launch with its record, and a stretch is where the sum grows
// most. That finds a whole stream that is missing between the records of another one as well as a
// cut. A replayed graph counts as much as it usually has kernels. Copies, with streams of their
// own, are a second sequence; those among launches that are lost belong to these. Fills are left
// aside: one of no length has no record. A loss of some single launches is no stretch, and no
// verdict hangs on it (of 169 public traces one misses 2 %), unless one in twenty is lost, with
// or without what graphs launch.
//
// No launch is lost while a graph is recorded: between the calls that begin and end the capture;
// in traces that don't have these, before a graph is built, or before replays of as many kernels.
// Where as many GPU records without a launch begin as launches lack records, links are missing and
// not records. Work that was queued when the recording began has smaller ids than all launches.
//
// What was launched in a stretch ran somewhere between the end of the work launched before and the
// start of the work launched behind it. This time is missing: neither busy nor idle. The same holds
// of a record whose times can't be true (Note [Impossible times] in trace/impossible_times.cpp).
//
// Note [Edges]: a recording begins and ends in the middle of a program. The first collective of a
// rank may wait for ranks whose recording begins later; a call of the host may wait at the start
// for work from before; the last launches may have no records any more. None of it is a cost of
// the program.

#include "traceap/tree/recording.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/statistics.hpp"
#include "traceap/tree/build_parts.hpp"
#include "traceap/tree/graph_captures.hpp"
#include "traceap/tree/id_index.hpp"

namespace traceap {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
/// Fewer launches without a record, one after the other, are no stretch.
constexpr std::int64_t kLeastStretch = 10;
/// A stretch goes on over so many launches with records, or over half as many as it misses.
constexpr std::int64_t kLeastBridge = 8;
/// Streams that are followed through the calls around a stretch.
constexpr std::size_t kMostHops = 64;
/// Single losses, in no stretch: of all launches one in so many. None of 169 public traces lacks
/// more than one in fifty.
constexpr std::int64_t kScatteredPart = 20;
/// A step that misses more than one launch in so many has no times of its own.
constexpr std::int64_t kStepPart = 10;
/// Losses in the last part of the recording, one of so many, are its end and no hole, if they are
/// no more of the work than this.
constexpr std::int64_t kEndPart = 20;
constexpr std::int64_t kEndWorkPart = 10;
/// More records without a launch than one in so many are said, if others have theirs.
constexpr std::uint64_t kOrphanPart = 5;
constexpr std::uint64_t kLeastOrphans = 10;
/// A wait at the start is told from ordinary ones by so many times the median, more where the
/// starts of the other recordings don't tell, by so many times the longest, and by this length.
constexpr std::int64_t kLongWait = 20;
constexpr std::int64_t kLongWaitAlone = 100;
constexpr std::int64_t kTimesLongest = 10;
constexpr std::int64_t kLeastWaitNs = 1'000'000;
constexpr std::size_t kLeastCollectives = 4;
/// Of the profiled time: what is less is not worth a note.
constexpr std::int64_t kMaterialPart = 50;
/// The GPU worked hardly at all if for less than this part of a stretch.
constexpr std::int64_t kHardlyPart = 100;
/// Hardly anything ran: one in so many of at least this long, on the GPU and on the host.
constexpr std::int64_t kLoadPart = 1000;
constexpr std::int64_t kLeastUnloadedNs = 1'000'000'000;

constexpr std::array<std::string_view, kRecordingFaultCount> kNames{"impossible_duration",
                                                                    "launches_without_gpu_work",
                                                                    "gpu_work_without_launch",
                                                                    "recording_start_skew",
                                                                    "starts_inside_work",
                                                                    "ends_inside_work",
                                                                    "no_load"};

enum class Fate : std::uint8_t { kRecorded, kLost, kImpossible, kNothing };
/// See Note [Lost records].
enum class Sequence : std::uint8_t { kNone, kKernels, kCopies };

/// A call that puts work on the GPU; a driver call inside of a runtime call is part of that.
struct Launching {
  Row row;
  Fate fate = Fate::kLost;
  Sequence sequence = Sequence::kNone;
  std::int64_t weight = 1;         ///< in kernels
  std::int64_t first_ns = kNever;  ///< start of its first record
  std::int64_t last_ns = -kNever;  ///< end of its last one that computes
  std::uint32_t stream = kNoRow;   ///< of its first record, an index in EventTree::streams
};

std::string plural(std::uint64_t count, const std::string& one) {
  return std::to_string(count) + " " + one + (count == 1 ? "" : "s");
}

class RecordingJudge {
 public:
  RecordingJudge(const TreeContext& context, EventTree& tree)
      : table_(context.table), options_(context.options), tree_(tree) {}

  void judge() {
    collect_calls();
    order_calls();
    weigh_graphs();
    index_calls();
    note_impossible();
    note_losses();
    note_orphans();
    note_first_collective();
    if (!note_first_queue()) note_first_wait();
    note_no_load();
    finish();
  }

 private:
  std::int64_t to_gpu_clock(std::int64_t host_ns) const {
    return add_saturated(host_ns, -tree_.launch_delay_correction_ns);
  }
  std::int64_t profiled_ns() const { return tree_.profiled.length_ns(); }
  bool is_kernel_call(const Launching& call) const { return is_launch(tree_.api[call.row]); }

  // ---- launches and their records

  void collect_calls() {
    owner_.assign(table_.size(), kNoRow);  // index in calls_
    for (Row row = 0; row < table_.size(); ++row) {
      poll_interrupt();
      if (!starts_gpu_work(tree_.api[row]) || tree_.host_position[row] == kNoRow) continue;
      const Row parent = tree_.parent[row];
      if (parent != kNoRow && owner_[parent] != kNoRow) {
        owner_[row] = owner_[parent];
        continue;
      }
      owner_[row] = static_cast<Row>(calls_.size());
      calls_.push_back({.row = row});
    }
    for (const Row row : tree_.gpu_rows) {
      poll_interrupt();
      if (tree_.launch[row] == kNoRow || owner_[tree_.launch[row]] == kNoRow) continue;
      Launching& call = calls_[owner_[tree_.launch[row]]];
      call.weight = call.fate == Fate::kRecorded ? call.weight + 1 : 1;
      call.fate = Fate::kRecorded;
      if (call.stream == kNoRow) call.stream = tree_.stream_of[row];
      call.first_ns = std::min(call.first_ns, table_.ts_ns[row]);
      // Copies and collectives run beside what may be lost.
      const bool computes = tree_.gpu_class[row] == GpuClass::kCompute;
      if (computes) call.last_ns = std::max(call.last_ns, table_.end_ns(row));
    }
    spare_shared_ids();
    mark_impossible();
    leave_captures_out();
  }

  /// A call whose id some GPU record carries has that record, whichever call it is linked to.
  void spare_shared_ids() {
    std::vector<IdRow> ids;
    for (const Row row : tree_.gpu_rows) {
      if (table_.correlation[row] != kNoId) ids.push_back({table_.correlation[row], row});
    }
    const IdIndex records(std::move(ids));
    for (Launching& call : calls_) {
      poll_interrupt();
      const std::int64_t id = table_.correlation[call.row];
      if (call.fate != Fate::kLost) continue;
      // A call without an id can't be found by any record.
      if (id == kNoId || !records.find(id).empty()) call.fate = Fate::kNothing;
    }
  }

  void mark_impossible() {
    for (Row row = 0; row < table_.size(); ++row) {
      const bool impossible = (table_.flags[row] & kImpossible) != 0;
      if (impossible && is_gpu(table_.kind[row])) impossible_.push_back(row);
    }
    if (impossible_.empty()) return;
    std::vector<IdRow> ids;
    for (const Launching& call : calls_) {
      if (table_.correlation[call.row] == kNoId) continue;
      ids.push_back({table_.correlation[call.row], owner_[call.row]});
    }
    const IdIndex calls(std::move(ids));
    for (const Row row : impossible_) {
      for (const Row call : calls.find(table_.correlation[row])) {
        if (calls_[call].fate == Fate::kLost) calls_[call].fate = Fate::kImpossible;
      }
    }
  }

  void leave_captures_out() {
    const auto captures = find_graph_captures(table_, tree_);
    if (captures.empty()) return;
    std::vector<std::int64_t> until_ns(table_.tracks.size(), -kNever);
    auto capture = captures.begin();
    for (Launching& call : calls_) {
      for (; capture != captures.end() && capture->begin < call.row; ++capture) {
        std::int64_t& end_ns = until_ns[table_.track[capture->begin]];
        end_ns = std::max(end_ns, capture->host.end_ns);
      }
      const bool inside = table_.ts_ns[call.row] < until_ns[table_.track[call.row]];
      if (inside && call.fate == Fate::kLost) call.fate = Fate::kNothing;
    }
  }

  /// A lost copy counts where the launches around it have their records.
  void order_calls() {
    bool kernel_lost = false;
    for (Launching& call : calls_) {
      if (is_kernel_call(call)) {
        call.sequence = Sequence::kKernels;
        kernel_lost = call.fate == Fate::kLost;
      } else if (is_copy_call(tree_.api[call.row]) && !(kernel_lost && call.fate == Fate::kLost)) {
        call.sequence = Sequence::kCopies;
      }
    }
    kernel_lost = false;
    for (auto call = calls_.rbegin(); call != calls_.rend(); ++call) {
      if (call->sequence == Sequence::kKernels) kernel_lost = call->fate == Fate::kLost;
      if (call->sequence != Sequence::kCopies || call->fate != Fate::kLost) continue;
      if (kernel_lost) call->sequence = Sequence::kNone;
    }
  }

  /// A lost replay weighs what a recorded one does.
  void weigh_graphs() {
    std::vector<std::int64_t> sizes;
    for (const Launching& call : calls_) {
      const bool graph = tree_.api[call.row] == ApiClass::kGraphLaunch;
      if (graph && call.fate == Fate::kRecorded) sizes.push_back(call.weight);
    }
    largest_graph_ = sizes.empty() ? 0 : *std::max_element(sizes.begin(), sizes.end());
    // Without any graph that has records, none may be expected of one.
    const std::int64_t usual = sizes.empty() ? 1 : median_of(sizes);
    for (Launching& call : calls_) {
      if (tree_.api[call.row] == ApiClass::kGraphLaunch) call.weight = usual;
    }
  }

  // ---- impossible records

  void note_impossible() {
    if (impossible_.empty()) return;
    std::vector<Interval> times;
    for (const Row row : impossible_) {
      const std::int64_t start_ns = table_.ts_ns[row];
      if (!is_near(start_ns) || repeats_another(row)) continue;
      times.push_back({start_ns, next_start_ns(start_ns)});
    }
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      if (calls_[i].fate != Fate::kImpossible) continue;
      times.push_back(time_of(i, i));
    }
    std::optional<Interval> around;
    const IntervalSet gaps = make_union(std::move(times));
    if (!gaps.empty()) around = Interval{gaps.front().start_ns, gaps.back().end_ns};
    gaps_.insert(gaps_.end(), gaps.begin(), gaps.end());
    note(RecordingFault::kImpossibleDuration, impossible_.size(), around,
         plural(impossible_.size(), "GPU record") + " " +
             (impossible_.size() == 1 ? "claims a time" : "claim times") +
             " that can't be true and " + (impossible_.size() == 1 ? "is" : "are") +
             " left out of every sum.");
  }

  /// Then the other one tells what ran. Those of one time stand side by side.
  bool repeats_another(Row row) const {
    constexpr int kMostAside = 64;
    for (int i = 1; i <= kMostAside && row >= static_cast<Row>(i); ++i) {
      const Row before = row - static_cast<Row>(i);
      if (table_.ts_ns[before] != table_.ts_ns[row]) return false;
      const bool same = table_.track[before] == table_.track[row] &&
                        table_.correlation[before] == table_.correlation[row] &&
                        table_.dur_ns[before] == table_.dur_ns[row];
      if (same && table_.is_complete(before)) return true;
    }
    return false;
  }
  /// Does a time lie among those of the other records?
  bool is_near(std::int64_t time_ns) const {
    if (tree_.gpu_rows.empty()) return false;
    return time_ns >= table_.ts_ns[tree_.gpu_rows.front()] &&
           time_ns <= table_.ts_ns[tree_.gpu_rows.back()];
  }
  std::int64_t next_start_ns(std::int64_t time_ns) const {
    const auto next = std::partition_point(tree_.gpu_rows.begin(), tree_.gpu_rows.end(),
                                           [&](Row r) { return table_.ts_ns[r] <= time_ns; });
    return next == tree_.gpu_rows.end() ? time_ns : table_.ts_ns[*next];
  }

  // ---- launches without GPU work

  struct Stretch {
    std::size_t first, last;  ///< calls
    std::int64_t lost = 0;    ///< calls without a record
    std::int64_t weight = 0;  ///< what they weigh
    std::int64_t single = 0;  ///< of the lost calls, those that launch no graph
    std::int64_t score = 0;   ///< weight without that of the calls with records between
  };

  /// See Note [Lost records].
  std::vector<Stretch> find_stretches(Sequence sequence) const {
    std::vector<Stretch> found;
    std::optional<Stretch> best, open;  // up to where the sum was largest; up to here
    const auto close = [&] {
      if (best && best->weight >= kLeastStretch) found.push_back(*best);
      best.reset();
      open.reset();
    };
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      poll_interrupt();
      const Launching& call = calls_[i];
      if (call.sequence != sequence) continue;
      if (call.fate == Fate::kRecorded && open) {
        open->score -= call.weight;
        if (best->score - open->score > std::max(kLeastBridge, best->score / 2)) close();
      } else if (call.fate == Fate::kLost) {
        if (!open) open = Stretch{.first = i, .last = i};
        open->last = i;
        ++open->lost;
        open->single += tree_.api[call.row] != ApiClass::kGraphLaunch;
        open->weight += call.weight;
        open->score += call.weight;
        if (!best || open->score >= best->score) best = open;
      }
    }
    close();
    return found;
  }

  /// Is it a loss, and not what a capture or missing links look like?
  bool is_loss(const Stretch& stretch) const {
    if (stretch.single == stretch.lost && is_capture(stretch)) return false;
    return 2 * orphans_in(time_of(stretch.first, stretch.last)) < stretch.weight;
  }

  std::int64_t orphans_in(Interval time) const {
    const auto before = [&](std::int64_t end_ns) {
      return std::partition_point(orphans_.begin(), orphans_.end(),
                                  [&](Row row) { return table_.ts_ns[row] < end_ns; });
    };
    return before(time.end_ns) - before(time.start_ns);
  }

  /// Kernels alone, then a graph is made, or one of as many kernels is replayed.
  bool is_capture(const Stretch& stretch) const {
    const Row last = calls_[stretch.last].row;
    const Row next = next_recorded_[stretch.last];  // on the thread
    const auto made = std::partition_point(graph_building_.begin(), graph_building_.end(),
                                           [&](Row row) { return row < last; });
    for (auto row = made; row != graph_building_.end() && *row < next; ++row) {
      if (table_.track[*row] == table_.track[last]) return true;
    }
    const bool replayed = next != kNoRow && largest_graph_ > 0;
    return replayed && 2 * stretch.lost <= 3 * largest_graph_ &&
           3 * stretch.lost >= 2 * largest_graph_;
  }

  /// Where the work of calls [first, last] may have run: from the end of the kernels launched
  /// before to the start of the next one launched behind; copies may run beside it. If kernels of
  /// some streams have records among the lost calls, the next one of another stream tells.
  Interval time_of(std::size_t first, std::size_t last) const {
    std::int64_t start_ns = to_gpu_clock(table_.ts_ns[calls_[first].row]);
    if (first > 0) start_ns = std::max(start_ns, ended_ns_[first - 1]);
    std::int64_t end_ns = last + 1 < calls_.size() ? begins_ns_[last + 1] : kNever;
    const std::vector<std::uint32_t> inside = streams_in(first, last);
    const bool copy_follows = last + 1 < calls_.size() && !is_kernel_call(calls_[last + 1]);
    if (!inside.empty() || copy_follows || copies_before_[last] > copies_before_[first]) {
      std::size_t next = next_kernel_[last];
      for (std::size_t hops = 0; next < calls_.size() && has(inside, calls_[next].stream); ++hops) {
        next = hops < kMostHops ? next_other_stream_[next] : calls_.size();
      }
      end_ns = next < calls_.size() ? calls_[next].first_ns : kNever;
    }
    if (end_ns == kNever) end_ns = end_of_recording_ns_;
    return {start_ns, std::max(start_ns, end_ns)};
  }

  /// A single copy ran between its call and the next copy, beside whatever ran on other streams.
  Interval time_of_copy(std::size_t call) const {
    Interval time = time_of(call, call);
    time.start_ns = to_gpu_clock(table_.ts_ns[calls_[call].row]);
    for (std::size_t next = call + 1; next < calls_.size() && next <= call + kMostHops; ++next) {
      if (calls_[next].sequence != Sequence::kCopies) continue;
      if (calls_[next].fate != Fate::kRecorded) continue;
      time.end_ns = std::min(time.end_ns, calls_[next].first_ns);
      break;
    }
    time.end_ns = std::max(time.end_ns, time.start_ns);
    return time;
  }

  static bool has(const std::vector<std::uint32_t>& streams, std::uint32_t stream) {
    return std::find(streams.begin(), streams.end(), stream) != streams.end();
  }

  /// Of the kernels with records among calls [first, last]; a few at most.
  std::vector<std::uint32_t> streams_in(std::size_t first, std::size_t last) const {
    std::vector<std::uint32_t> streams;
    for (std::size_t i = next_kernel_[first]; i < last; i = next_other_stream_[i]) {
      if (!has(streams, calls_[i].stream)) streams.push_back(calls_[i].stream);
      if (streams.size() > kMostHops) break;
    }
    return streams;
  }

  /// What time_of, is_loss and is_end ask of all calls and records.
  void index_calls() {
    end_of_recording_ns_ = to_gpu_clock(tree_.profiled.end_ns);
    std::int64_t first_id = kNever;
    for (const Launching& call : calls_) {
      if (table_.correlation[call.row] > 0) {
        first_id = std::min(first_id, table_.correlation[call.row]);
      }
    }
    for (const Row row : tree_.gpu_rows) {
      poll_interrupt();
      end_of_recording_ns_ = std::max(end_of_recording_ns_, table_.end_ns(row));
      // Ids rise: what has a smaller one than every launch was launched before the recording began.
      const std::int64_t id = table_.correlation[row];
      const bool earlier = id > 0 && id < first_id;
      if (tree_.launch[row] == kNoRow && !earlier) orphans_.push_back(row);
    }
    for (Row row = 0; row < table_.size(); ++row) {
      if (tree_.api[row] == ApiClass::kGraphBuilding) graph_building_.push_back(row);
    }
    ended_ns_.assign(calls_.size(), -kNever);
    begins_ns_.assign(calls_.size(), kNever);
    next_recorded_.assign(calls_.size(), kNoRow);
    next_kernel_.assign(calls_.size(), calls_.size());
    next_other_stream_.assign(calls_.size(), calls_.size());
    copies_before_.assign(calls_.size(), 0);
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      ended_ns_[i] = std::max(i > 0 ? ended_ns_[i - 1] : -kNever, calls_[i].last_ns);
      const bool copies = calls_[i].fate == Fate::kRecorded && !is_kernel_call(calls_[i]);
      copies_before_[i] = (i > 0 ? copies_before_[i - 1] : 0) + (copies ? 1 : 0);
      if (calls_[i].fate == Fate::kRecorded) last_recorded_ = i;
    }
    std::vector<Row> next(table_.tracks.size(), kNoRow);
    std::size_t kernel = calls_.size();
    for (std::size_t i = calls_.size(); i-- > 0;) {
      const Launching& call = calls_[i];
      const std::int64_t later_ns = i + 1 < calls_.size() ? begins_ns_[i + 1] : kNever;
      begins_ns_[i] = std::min(later_ns, call.first_ns);
      Row& after = next[table_.track[call.row]];
      next_recorded_[i] = after;
      next_kernel_[i] = kernel;
      if (call.fate != Fate::kRecorded) continue;
      after = call.row;
      if (!is_kernel_call(call)) continue;
      const bool same = kernel < calls_.size() && calls_[kernel].stream == call.stream;
      next_other_stream_[i] = same ? next_other_stream_[kernel] : kernel;
      kernel = i;
    }
  }

  void note_losses() {
    lost_in_step_.assign(tree_.steps.size(), 0);
    launched_in_step_.assign(tree_.steps.size(), 0);
    for (const Launching& call : calls_) {
      if (call.sequence == Sequence::kNone || call.fate == Fate::kNothing) continue;
      launched_ += call.weight;
      const std::uint32_t step = tree_.step[call.row];
      if (step != kNoStep) launched_in_step_[step] += call.weight;
    }
    for (const Sequence sequence : {Sequence::kKernels, Sequence::kCopies}) {
      const std::vector<Stretch> stretches = find_stretches(sequence);
      note_scattered_losses(sequence, stretches);
      for (const Stretch& stretch : stretches) {
        if (is_loss(stretch)) note_stretch(sequence, stretch);
      }
    }
  }

  void note_stretch(Sequence sequence, const Stretch& stretch) {
    const bool at_end = is_end(stretch);
    for (std::size_t i = stretch.first; i <= stretch.last; ++i) {
      if (calls_[i].sequence == sequence && calls_[i].fate == Fate::kLost) count_in_step(i);
    }
    const Interval time = time_of(stretch.first, stretch.last);
    (sequence == Sequence::kCopies ? missing_copies_ : missing_).push_back(time);
    const auto lost = static_cast<std::uint64_t>(stretch.lost);
    note(at_end ? RecordingFault::kEndsInsideWork : RecordingFault::kLaunchesWithoutGpuWork, lost,
         time,
         plural(lost, calls_of(sequence)) + (lost == 1 ? " has" : " have") + " no GPU record" +
             (at_end ? ": the recording ended before their work did."
                     : ". This stretch is not recorded: the GPU is neither busy nor idle there."));
  }

  void count_in_step(std::size_t lost) {
    const std::uint32_t step = tree_.step[calls_[lost].row];
    if (step != kNoStep) lost_in_step_[step] += calls_[lost].weight;
  }

  static std::string calls_of(Sequence sequence) {
    return sequence == Sequence::kCopies ? "copy call" : "launch call";
  }

  /// Records that are lost one here and one there, where they are too many for an accident.
  void note_scattered_losses(Sequence sequence, const std::vector<Stretch>& stretches) {
    std::vector<std::size_t> lost;
    std::int64_t lost_weight = 0, all = 0, all_single = 0;
    auto stretch = stretches.begin();
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      while (stretch != stretches.end() && stretch->last < i) ++stretch;
      if (calls_[i].sequence != sequence || calls_[i].fate == Fate::kNothing) continue;
      all += calls_[i].weight;
      all_single += tree_.api[calls_[i].row] != ApiClass::kGraphLaunch;
      const bool inside = stretch != stretches.end() && stretch->first <= i;
      if (calls_[i].fate != Fate::kLost || inside) continue;
      lost.push_back(i);
      lost_weight += calls_[i].weight;
    }
    if (lost_weight < kLeastStretch) return;
    const auto calls = static_cast<std::int64_t>(lost.size());
    if (lost_weight * kScatteredPart < all && calls * kScatteredPart < all_single) return;
    if (!is_loss({.first = lost.front(), .last = lost.back(), .weight = lost_weight})) return;
    for (const std::size_t i : lost) {
      if (sequence == Sequence::kCopies) {
        missing_copies_.push_back(time_of_copy(i));
      } else {
        missing_.push_back(time_of(i, i));
      }
      count_in_step(i);
    }
    note(RecordingFault::kLaunchesWithoutGpuWork, lost.size(),
         Interval{time_of(lost.front(), lost.front()).start_ns,
                  time_of(lost.back(), lost.back()).end_ns},
         plural(lost.size(), calls_of(sequence)) + ", here and there, " +
             (lost.size() == 1 ? "has" : "have") +
             " no GPU record. The GPU is neither busy nor idle where their work may have run.");
  }

  /// Is it what the GPU still had to do when the recording ended?
  bool is_end(const Stretch& stretch) const {
    if (last_recorded_ > stretch.last || stretch.weight * kEndWorkPart > launched_) return false;
    const std::int64_t before_ns = table_.ts_ns[calls_[stretch.first].row] - calls_first_ns();
    const std::int64_t inside_ns =
        table_.end_ns(calls_[stretch.last].row) - table_.ts_ns[calls_[stretch.first].row];
    return before_ns > 0 && inside_ns <= before_ns / kEndPart;
  }
  std::int64_t calls_first_ns() const { return table_.ts_ns[calls_.front().row]; }

  void note_orphans() {
    // Work queued before the recording began has no launch in any; it comes first on its stream.
    std::vector<bool> linked(tree_.streams.size());
    std::uint64_t orphans = 0;
    std::optional<Interval> time;
    for (const Row row : tree_.gpu_rows) {
      poll_interrupt();
      const std::uint32_t stream = tree_.stream_of[row];
      if (tree_.launch[row] != kNoRow) {
        linked[stream] = true;
      } else if (linked[stream]) {
        ++orphans;
        const Interval own{table_.ts_ns[row], table_.end_ns(row)};
        time = time ? Interval{time->start_ns, std::max(time->end_ns, own.end_ns)} : own;
      }
    }
    if (orphans < kLeastOrphans || orphans * kOrphanPart <= tree_.gpu_rows.size()) return;
    note(RecordingFault::kGpuWorkWithoutLaunch, orphans, time,
         plural(orphans, "GPU record") + (orphans == 1 ? " has" : " have") +
             " no launch call in the recording.");
  }

  // ---- edges

  /// The first collective of the recording, far longer than the others of its name.
  void note_first_collective() {
    std::vector<Row> rows;
    for (const Row row : tree_.gpu_rows) {
      if (tree_.gpu_class[row] == GpuClass::kCommunication) rows.push_back(row);
    }
    if (rows.empty()) return;
    const Row first = rows.front();
    std::vector<std::int64_t> others;
    for (std::size_t i = 1; i < rows.size(); ++i) {
      if (table_.name[rows[i]] == table_.name[first]) others.push_back(table_.dur_ns[rows[i]]);
    }
    if (others.size() + 1 < kLeastCollectives) return;
    const std::int64_t longest_ns = *std::max_element(others.begin(), others.end());
    const std::int64_t usual_ns = median_of(others);
    const std::int64_t wait_ns = table_.dur_ns[first] - usual_ns;
    const std::int64_t times = options_.last_rank_began_ns ? kLongWait : kLongWaitAlone;
    const bool stands_out = wait_ns >= kLeastWaitNs && wait_ns / times >= usual_ns &&
                            wait_ns / kTimesLongest >= longest_ns &&
                            wait_ns >= profiled_ns() / kMaterialPart;
    if (!stands_out || !is_explained_by_start(wait_ns)) return;
    const Interval time{table_.ts_ns[first], table_.end_ns(first) - usual_ns};
    waits_.push_back(time);
    note(
        RecordingFault::kRecordingStartSkew, 1, time,
        "The first collective waits " + std::to_string(wait_ns / 1000) +
            " us for ranks whose recording, or program, began later; the others of its kind take " +
            std::to_string(usual_ns / 1000) + " us at the median.");
  }

  /// With other ranks at hand, the wait is for their recordings if these began as much later.
  bool is_explained_by_start(std::int64_t wait_ns) const {
    if (!options_.last_rank_began_ns) return true;
    const std::int64_t later_ns = *options_.last_rank_began_ns - began_ns();
    return later_ns >= wait_ns / 2;
  }
  /// First host event of the rank.
  std::int64_t began_ns() const {
    std::int64_t began_ns = kNever;
    for (const Row row : tree_.host_rows) began_ns = std::min(began_ns, table_.ts_ns[row]);
    return began_ns;
  }

  /// The first work of a stream stays in its queue although nothing recorded runs before it: the
  /// GPU is busy with what was launched before the recording, from its start on.
  bool note_first_queue() {
    const std::int64_t start_ns = gpu_profiled().start_ns;
    const auto lost = std::find_if(calls_.begin(), calls_.end(),
                                   [](const Launching& call) { return call.fate == Fate::kLost; });
    const std::int64_t lost_ns = lost == calls_.end() ? kNever : table_.ts_ns[lost->row];
    std::vector<bool> seen(tree_.streams.size());
    std::vector<Interval> busy;
    std::int64_t busy_ns = 0, last_end_ns = start_ns, queued_ns = 0, until_ns = start_ns;
    for (const Row row : tree_.gpu_rows) {
      poll_interrupt();
      const std::uint32_t stream = tree_.stream_of[row];
      const Row launch = tree_.launch[row];
      const std::int64_t begin_ns = table_.ts_ns[row];
      if (!seen[stream] && launch != kNoRow && table_.ts_ns[launch] < lost_ns &&
          begin_ns > start_ns && busy_ns <= (begin_ns - start_ns) / kHardlyPart) {
        const std::int64_t since_ns = std::max(to_gpu_clock(table_.end_ns(launch)), last_end_ns);
        const std::int64_t wait_ns = begin_ns - since_ns;
        if (wait_ns >= kLeastWaitNs && wait_ns >= profiled_ns() / kMaterialPart) {
          queued_ns = wait_ns;
          until_ns = begin_ns;
        }
      }
      seen[stream] = true;
      busy.push_back({begin_ns, table_.end_ns(row)});
      busy_ns = add_saturated(busy_ns, table_.dur_ns[row]);
      last_end_ns = std::max(last_end_ns, table_.end_ns(row));
    }
    if (queued_ns == 0) return false;
    const IntervalSet idle =
        set_difference(IntervalSet{{start_ns, until_ns}}, make_union(std::move(busy)));
    waits_.insert(waits_.end(), idle.begin(), idle.end());
    note(RecordingFault::kStartsInsideWork, 1, Interval{start_ns, until_ns},
         "The first work stays in the GPU's queue for " + std::to_string(queued_ns / 1000) +
             " us: what the GPU did before was launched before the recording.");
    return true;
  }

  /// A call that waits for the GPU before anything of the recording has been launched.
  void note_first_wait() {
    if (tree_.gpu_rows.empty() || calls_.empty()) return;
    const std::int64_t first_launch_ns = calls_first_ns();
    std::vector<Interval> waits;
    for (Row row = 0; row < table_.size() && table_.ts_ns[row] <= first_launch_ns; ++row) {
      if (!is_synchronisation(tree_.api[row]) || tree_.host_position[row] == kNoRow) continue;
      waits.push_back({to_gpu_clock(table_.ts_ns[row]), to_gpu_clock(table_.end_ns(row))});
    }
    IntervalSet wait = set_clip(make_union(std::move(waits)), gpu_profiled());
    std::vector<Interval> busy;
    for (const Row row : tree_.gpu_rows) busy.push_back({table_.ts_ns[row], table_.end_ns(row)});
    wait = set_difference(wait, make_union(std::move(busy)));
    const std::int64_t length_ns = total_length_ns(wait);
    if (length_ns < kLeastWaitNs || length_ns < profiled_ns() / kMaterialPart) return;
    waits_.insert(waits_.end(), wait.begin(), wait.end());
    note(RecordingFault::kStartsInsideWork, 1, Interval{wait.front().start_ns, wait.back().end_ns},
         "The host waits " + std::to_string(length_ns / 1000) +
             " us at the start for work that was launched before the recording.");
  }

  Interval gpu_profiled() const {
    return {to_gpu_clock(tree_.profiled.start_ns), to_gpu_clock(tree_.profiled.end_ns)};
  }

  /// Neither the GPU nor operators, calls and ranges of the host fill a thousandth of the time.
  void note_no_load() {
    if (tree_.gpu_rows.empty() || profiled_ns() < kLeastUnloadedNs) return;
    if (!missing_.empty()) return;
    std::vector<Interval> gpu, host;
    for (const Row row : tree_.gpu_rows) gpu.push_back({table_.ts_ns[row], table_.end_ns(row)});
    for (const Row row : tree_.host_rows) {
      if (table_.kind[row] == EventKind::kPythonFunction) continue;
      host.push_back({table_.ts_ns[row], table_.end_ns(row)});
    }
    const std::int64_t most_ns = profiled_ns() / kLoadPart;
    const std::int64_t busy_ns = total_length_ns(make_union(std::move(gpu)));
    if (busy_ns > most_ns || total_length_ns(make_union(std::move(host))) > most_ns) return;
    waits_.push_back(gpu_profiled());
    note(RecordingFault::kNoLoad, tree_.gpu_rows.size(), gpu_profiled(),
         "Hardly anything ran: the GPU worked for " + std::to_string(busy_ns / 1000) + " us of " +
             std::to_string(profiled_ns() / 1'000'000) +
             " ms. Record the program while it has work to do.");
  }

  // ---- the result

  void note(RecordingFault fault, std::uint64_t count, std::optional<Interval> time,
            std::string message) {
    tree_.recording.notes.push_back({fault, count, time, std::move(message)});
  }

  void finish() {
    Recording& recording = tree_.recording;
    std::stable_sort(recording.notes.begin(), recording.notes.end(),
                     [](const auto& a, const auto& b) { return a.fault < b.fault; });
    const IntervalSet stretches = set_union(make_union(std::move(missing_)), without_work());
    recording.missing = set_union(stretches, make_union(std::move(gaps_)));
    recording.not_judged = set_union(stretches, make_union(std::move(waits_)));
    for (std::size_t i = 0; i < tree_.steps.size(); ++i) {
      const Step& step = tree_.steps[i];
      const Interval own{to_gpu_clock(step.start_ns), to_gpu_clock(step.end_ns)};
      const bool lost = lost_in_step_[i] * kStepPart > launched_in_step_[i];
      const bool judged = 2 * covered_ns(recording.not_judged, own) <= own.length_ns();
      recording.step_is_recorded.push_back(!lost && judged);
    }
  }

  /// Where lost copies may have run, but for recorded work beside them.
  IntervalSet without_work() {
    if (missing_copies_.empty()) return {};
    std::vector<Interval> busy;
    for (const Row row : tree_.gpu_rows) busy.push_back({table_.ts_ns[row], table_.end_ns(row)});
    return set_difference(make_union(std::move(missing_copies_)), make_union(std::move(busy)));
  }

  const EventTable& table_;
  const TreeOptions& options_;
  EventTree& tree_;
  std::vector<Row> owner_;
  std::vector<Launching> calls_;  ///< by start
  std::vector<Row> impossible_;
  std::int64_t largest_graph_ = 0;        ///< in kernels
  std::vector<Row> orphans_;              ///< GPU events without a launch, by start
  std::vector<Row> graph_building_;       ///< calls that make graphs
  std::vector<std::int64_t> ended_ns_;    ///< per call: last end of the work up to it
  std::vector<std::int64_t> begins_ns_;   ///< per call: first start of the work from it on
  std::vector<Row> next_recorded_;        ///< per call: the next with a record on its thread
  std::vector<std::size_t> next_kernel_;  ///< per call: the next recorded kernel launch behind it
  std::vector<std::size_t> next_other_stream_;  ///< per kernel launch: the next of another stream
  std::vector<std::size_t> copies_before_;      ///< per call: recorded copies up to it
  std::size_t last_recorded_ = 0;
  std::int64_t launched_ = 0;  ///< in kernels
  std::int64_t end_of_recording_ns_ = 0;
  std::vector<Interval> missing_copies_;
  std::vector<Interval> missing_, gaps_, waits_;  ///< by stretch; by impossible record; edges
  std::vector<std::int64_t> lost_in_step_, launched_in_step_;
};

}  // namespace

std::string_view recording_fault_name(RecordingFault fault) {
  return kNames[static_cast<std::size_t>(fault)];
}

void judge_recording(const TreeContext& context, EventTree& tree) {
  RecordingJudge(context, tree).judge();
}

}  // namespace traceap
