// Note [Lags]: measured times say when things happened, not what they would have cost alone.
//
// An edge of work (a stretch of host code, a GPU event) costs what was measured, unless its end is
// the end of a wait: then the call costs what calls of its name cost when they need not wait, and
// the edge from what it waited for has the rest. So does the time from the begin of a call to the
// work that it starts while it is open: the host is at work in there. And so does the time from the
// end of a wait to the return of its call where that takes a millisecond or more.
//
// An edge of order (launch, stream, wait) costs what edges like it cost where they alone explain
// when their point happened, because no other source was as late: the mean of the middle half of
// those, of the same two names if there are enough, else of one name, else of the kind. Copies
// from and to pageable memory are staged by the host, so what follows them grows with their bytes.
// An edge that was not the last never costs more than the time that it had.
//
// A launch that finds its stream idle may still wait for what no trace shows (another process, a
// clock of the device that lags). So its latency is what the quickest launches took, and no more
// than kLaunchLatencyBoundNs.
//
// A frame that blocks on a side thread (blocked_frames.hpp) costs nothing: what it waits for is not
// in the trace, and it would wait less if that came earlier.
//
// Note [Work from before]: when recording begins, the GPU may be busy with work that was launched
// earlier. What is first on a stream, was launched before any recorded work had begun on its device
// and starts later than a launch explains waited for that work: it happens no earlier than
// measured, whatever is edited. So did a copy that begins while its call is open, if that is later
// than the host needs to stage all of its bytes. What is first on its stream later on, or has no
// launch, met something that happens once; the time from what it follows is its own.
//
// The residual of an edge is what the measured run took beyond its lag, or less: with residuals a
// replay gives back the measured times exactly. Only the edge that explains a point carries one.

#include "traceap/simulation/lags.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "traceap/analysis/dependencies/blocked_frames.hpp"
#include "traceap/analysis/idle/host_activity.hpp"
#include "traceap/analysis/idle/idle.hpp"
#include "traceap/base/flat_map.hpp"
#include "traceap/base/interrupt.hpp"
#include "traceap/base/offsets.hpp"

namespace traceap {
namespace {

using Kind = DependencyKind;

// A wait that began this long before the awaited work ended has really waited.
constexpr std::int64_t kWaitedNs = 1'000;
// Cost of a call that waits, where no call of its name returned at once.
constexpr std::int64_t kCallCostNs = 5'000;
// Edges that a typical cost of names rests on, at least.
constexpr std::size_t kEnough = 4;
// Copies up to this size return before anything is staged (CUDA runtime API, synchronisation
// behaviour of memcpy).
constexpr std::int64_t kStagedBytes = 64 * 1024;
// At which the host stages a copy at least, in bytes: SLOWEST_STAGING of analysis/iterations.py,
// which finds the same copies in a table.
constexpr double kSlowestStagingPerNs = 2.5;

bool is_order(Kind kind) {
  switch (kind) {
    case Kind::kLaunch:
    case Kind::kStreamOrder:
    case Kind::kStreamWait:
    case Kind::kHostWait:
    case Kind::kDeviceOrder:
    case Kind::kQueueLimit:
    case Kind::kCopyEngine:
    case Kind::kTensor:
      return true;
    default:
      return false;
  }
}
bool is_work(Kind kind) { return kind == Kind::kProgramOrder || kind == Kind::kExecution; }
/// Edges whose destination may have been waiting for them while something else was "running".
bool ends_a_wait(Kind kind) {
  return kind == Kind::kHostWait || kind == Kind::kThreadJoin || kind == Kind::kRendezvous ||
         kind == Kind::kThreadStart || kind == Kind::kQueueLimit;
}

/// Mean of the middle half: neither a few outliers nor the clock's steps move it. Of two or three
/// the middle, of two the lower: delays have a least cost, and reasons to be longer.
std::int64_t middle_mean(std::span<std::int64_t> values) {
  std::sort(values.begin(), values.end());
  if (values.size() < kEnough) return values[(values.size() - 1) / 2];
  const std::size_t cut = values.size() / 4;
  const auto first = values.begin() + static_cast<std::ptrdiff_t>(cut);
  const auto last = values.end() - static_cast<std::ptrdiff_t>(cut);
  const double sum = std::accumulate(first, last, 0.0);
  return std::llround(sum / static_cast<double>(last - first));
}

/// Least latency but for a few outliers, of those that are plausible.
std::int64_t least_latency(std::span<std::int64_t> values) {
  constexpr std::size_t kLatenciesPerOutlier = 10;
  const auto at =
      values.begin() + static_cast<std::ptrdiff_t>(values.size() / kLatenciesPerOutlier);
  std::nth_element(values.begin(), at, values.end());
  return std::min(*at, kLaunchLatencyBoundNs);
}

/// What is alike about edges, from the narrowest to the widest class.
struct LagKeys {
  static constexpr int kLevels = 4;
  std::uint64_t level[kLevels];
};

/// Values by class, and one number for each class in the end.
class ClassValues {
 public:
  void add(std::uint64_t key, std::int64_t value_ns) {
    std::uint32_t& group = group_of_[key];
    if (group == 0) group = ++groups_;
    samples_.push_back({group - 1, value_ns});
  }
  /// summarise(values) of each class.
  template <typename Summarise>
  void finish(Summarise summarise) {
    CountingSort sort(groups_);
    for (const auto& [group, value] : samples_) sort.count(group);
    std::vector<std::int64_t> values(sort.start_placing());
    for (const auto& [group, value] : samples_) values[sort.place(group)] = value;
    const auto offsets = sort.take_offsets();
    for (std::uint32_t g = 0; g < groups_; ++g) {
      const std::span of_class(values.data() + offsets[g], offsets[g + 1] - offsets[g]);
      classes_.push_back({of_class.size(), summarise(of_class)});
    }
    samples_ = {};
  }
  struct Class {
    std::size_t count;
    std::int64_t typical_ns;
  };
  /// nullptr: there is none.
  const Class* find(std::uint64_t key) const {
    const std::uint32_t* group = group_of_.find(key);
    return group == nullptr ? nullptr : &classes_[*group - 1];
  }

 private:
  FlatMap<std::uint32_t> group_of_;  // plus 1
  std::uint32_t groups_ = 0;
  std::vector<std::pair<std::uint32_t, std::int64_t>> samples_;
  std::vector<Class> classes_;
};

class LagMeasurer {
 public:
  LagMeasurer(ExecutionGraph& graph, std::span<const GraphRank> ranks,
              std::span<const std::int64_t> take_ns)
      : graph_(graph),
        points_(graph.points),
        ranks_(ranks),
        take_ns_(take_ns),
        gap_ns_(points_.edges()) {
    for (Point p = 0; p < points_.size(); ++p) {
      poll_interrupt();
      for (EdgeId e = points_.in_offsets[p]; e < points_.in_offsets[p + 1]; ++e) {
        gap_ns_[e] = points_.lag_ns(e, p);
      }
    }
    for (const GraphRank& rank : ranks) {
      bytes_.emplace_back(*rank.table, "bytes");
      blocked_.emplace_back(*rank.table, *rank.tree);
    }
    find_device_begins();
  }

  void measure() {
    measure_call_costs();
    collect();
    graph_.lag_ns.resize(points_.edges());
    graph_.residual_ns.assign(points_.edges(), 0);
    graph_.held.assign(points_.size(), 0);
    for (Point p = 0; p < points_.size(); ++p) set_lags(p);
  }

 private:
  // ---- points and edges

  std::uint32_t rank_of(Point p) const { return points_.lanes[points_.lane[p]].rank; }
  const EventTable& table_of(Point p) const { return *ranks_[rank_of(p)].table; }
  StringId name_of(Point p) const {
    return points_.row[p] == kNoRow ? kNoString : table_of(p).name[points_.row[p]];
  }
  bool is_call(Point p) const {
    return points_.row[p] != kNoRow && is_api_call(table_of(p).kind[points_.row[p]]);
  }

  /// Did a point wait, in that an awaited source happened after the point's own work had begun?
  bool has_waited(Point p) const {
    if (paced_fetch(p) != kNoRow) return true;
    std::int64_t began = kNoId, awaited = kNoId;
    for (EdgeId e = points_.in_offsets[p]; e < points_.in_offsets[p + 1]; ++e) {
      const std::int64_t source_ns = points_.time_ns[points_.source[e]];
      if (is_work(points_.kind[e])) began = std::max(began, source_ns);
      if (ends_a_wait(points_.kind[e])) awaited = std::max(awaited, source_ns);
    }
    return began != kNoId && awaited != kNoId && awaited > began + kWaitedNs;
  }

  EdgeId latest_source(Point p) const {
    EdgeId latest = kNoEdge;
    for (EdgeId e = points_.in_offsets[p]; e < points_.in_offsets[p + 1]; ++e) {
      if (latest == kNoEdge || gap_ns_[e] < gap_ns_[latest]) latest = e;
    }
    return latest;
  }

  /// A return that takes so long met something that happens once: the call's own work.
  bool is_once(EdgeId e) const {
    return points_.kind[e] == Kind::kHostWait && gap_ns_[e] >= kLongCallNs && staged_bytes(e) == 0;
  }

  /// Does the work start while its launch call is open?
  bool is_inside_call(EdgeId e) const {
    return points_.kind[e] == Kind::kLaunch && !points_.is_end[points_.source[e]];
  }

  /// How long the host may be at work on a copy before that begins.
  std::int64_t staging_ns(Point p) const {
    const std::int64_t bytes = bytes_[rank_of(p)].integer(points_.row[p]).value_or(0);
    return bytes <= 0 ? 0 : std::llround(static_cast<double>(bytes) / kSlowestStagingPerNs);
  }
  /// Does a copy start while its call is open, and later than the host needs for it?
  bool waits_inside_call(EdgeId e, Point p) const {
    const GpuClass gpu_class = ranks_[rank_of(p)].tree->gpu_class[points_.row[p]];
    return is_inside_call(e) && gpu_class == GpuClass::kMemcpy &&
           gap_ns_[e] - kLaunchLatencyBoundNs > staging_ns(p);
  }

  // ---- calls

  std::uint64_t call_key(Point p) const { return mix(rank_of(p), name_of(p)); }

  /// Typical length of a stretch that ends a call of a name without waiting. See Note [Lags].
  void measure_call_costs() {
    for (Point p = 0; p < points_.size(); ++p) {
      poll_interrupt();
      if (!points_.is_end[p] || !is_call(p) || has_waited(p)) continue;
      for (EdgeId e = points_.in_offsets[p]; e < points_.in_offsets[p + 1]; ++e) {
        if (points_.kind[e] == Kind::kProgramOrder) {
          call_cost_.add(call_key(p), gap_ns_[e]);
        }
      }
    }
    call_cost_.finish(middle_mean);
  }

  // ---- order

  /// Bytes of the copy from or to pageable memory behind which the host goes on; 0 for others.
  std::int64_t staged_bytes(EdgeId e) const {
    if (points_.kind[e] != Kind::kHostWait) return 0;
    const Point source = points_.source[e];
    const std::uint32_t rank = rank_of(source);
    const Row row = points_.row[source];
    if (row == kNoRow || ranks_[rank].tree->gpu_class[row] != GpuClass::kMemcpy) return 0;
    if (ranks_[rank].tree->host_memory[row] != HostMemory::kPageable) return 0;
    return std::max<std::int64_t>(0, bytes_[rank].integer(row).value_or(0));
  }

  /// A launch edge from the begin of its call is another delay than one from its end.
  LagKeys keys_of(EdgeId e, Point p) const {
    const Point source = points_.source[e];
    const Kind kind = points_.kind[e];
    const std::uint64_t form =
        mix(static_cast<std::uint64_t>(kind), points_.is_end[source] ? 1 : 0);
    const std::uint64_t own = mix(form, rank_of(p) + 1);
    const std::uint64_t by_call = mix(own, kind == Kind::kLaunch ? name_of(source) : name_of(p));
    const std::uint64_t bytes = static_cast<std::uint64_t>(staged_bytes(e));
    return {{mix(mix(mix(mix(own, name_of(source)), name_of(p)), 3), bytes), mix(by_call, 2),
             mix(own, 1), form}};
  }

  void collect() {
    for (Point p = 0; p < points_.size(); ++p) {
      poll_interrupt();
      const EdgeId e = latest_source(p);
      if (e == kNoEdge || !is_order(points_.kind[e]) || is_once(e)) continue;
      const LagKeys keys = keys_of(e, p);
      const std::int64_t bytes = staged_bytes(e);
      if (bytes > kStagedBytes) staged_.push_back({e, bytes});
      for (int i = 0; i < LagKeys::kLevels; ++i) {
        if (i > 0 && bytes > kStagedBytes) break;  // says nothing about others
        (points_.kind[e] == Kind::kLaunch ? launch_ : order_).add(keys.level[i], gap_ns_[e]);
      }
    }
    order_.finish(middle_mean);
    launch_.finish(least_latency);
    measure_staging();
  }

  /// Time per byte beyond what a wait costs anyway, over copies that were staged.
  void measure_staging() {
    std::vector<std::int64_t> per_mebibyte;
    for (const auto& [e, bytes] : staged_) {
      const std::int64_t beyond = std::max<std::int64_t>(0, gap_ns_[e] - wait_ns(e));
      per_mebibyte.push_back(
          std::llround(static_cast<double>(beyond) * 1048576.0 / static_cast<double>(bytes)));
    }
    if (!per_mebibyte.empty()) staging_ns_per_mebibyte_ = middle_mean(per_mebibyte);
  }
  /// Return of a wait without staging.
  std::int64_t wait_ns(EdgeId e) const {
    const std::uint32_t rank = rank_of(points_.source[e]);
    const std::uint64_t form = mix(static_cast<std::uint64_t>(Kind::kHostWait), 1);
    for (const std::uint64_t key : {mix(mix(form, rank + 1), 1), form}) {
      if (const auto* found = order_.find(key)) return found->typical_ns;
    }
    return 0;
  }

  std::int64_t typical_order(EdgeId e, Point p) const {
    const LagKeys keys = keys_of(e, p);
    const std::int64_t bytes = staged_bytes(e);
    const ClassValues& classes = points_.kind[e] == Kind::kLaunch ? launch_ : order_;
    for (int i = 0; i < LagKeys::kLevels; ++i) {
      if (i > 0 && bytes > kStagedBytes) break;
      const auto* found = classes.find(keys.level[i]);
      if (found != nullptr && (found->count >= kEnough || i >= 2)) return found->typical_ns;
    }
    if (bytes <= kStagedBytes) return 0;
    return wait_ns(e) + std::llround(static_cast<double>(staging_ns_per_mebibyte_) *
                                     static_cast<double>(bytes) / 1048576.0);
  }

  // ---- starts, see Note [Work from before]

  void find_device_begins() {
    for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      const EventTree& tree = *ranks_[rank].tree;
      auto& begins = device_begin_ns_.emplace_back(tree.streams.size(), kNoId);
      std::map<std::int32_t, std::int64_t> first;
      for (const Stream& stream : tree.streams) {
        if (stream.rows.empty()) continue;
        const std::int64_t begin_ns = points_.time_ns[graph_.begin_of[rank][stream.rows.front()]];
        const auto [known, is_new] = first.emplace(stream.device, begin_ns);
        if (!is_new) known->second = std::min(known->second, begin_ns);
      }
      for (std::size_t s = 0; s < begins.size(); ++s) {
        if (!tree.streams[s].rows.empty()) begins[s] = first[tree.streams[s].device];
      }
    }
  }

  enum class Start : std::uint8_t { kExplained, kOnce, kHeld };
  /// Why a point happens when it does, if the edge from its latest source can't say.
  Start start_of(Point p, EdgeId last) const {
    const Row row = points_.row[p];
    const Lane& lane = points_.lanes[points_.lane[p]];
    if (last == kNoEdge || row == kNoRow || lane.kind != Lane::kStream || points_.is_end[p] ||
        !is_order(points_.kind[last]) || gap_ns_[last] <= kLaunchLatencyBoundNs ||
        (is_inside_call(last) && !waits_inside_call(last, p))) {
      return Start::kExplained;
    }
    const EventTree& tree = *ranks_[lane.rank].tree;
    const Row call = tree.launch[row];
    if (tree.streams[lane.index].rows.front() != row) {
      return call == kNoRow ? Start::kOnce : Start::kExplained;
    }
    const Point called = call == kNoRow ? kNoPoint : graph_.begin_of[lane.rank][call];
    const bool before =
        called != kNoPoint && points_.time_ns[called] <= device_begin_ns_[lane.rank][lane.index];
    return before ? Start::kHeld : Start::kOnce;
  }

  // ---- lags

  /// Does one edge of work lead here, and nothing else?
  bool is_plain_work(Point p) const {
    const EdgeId e = points_.in_offsets[p];
    return points_.in_offsets[p + 1] == e + 1 && is_work(points_.kind[e]) && !is_idle(e, p);
  }

  void set_lags(Point p) {
    if (is_plain_work(p)) {
      graph_.lag_ns[points_.in_offsets[p]] = gap_ns_[points_.in_offsets[p]];
      return;
    }
    const bool waited = has_waited(p);
    const EdgeId last = latest_source(p);
    const Start start = start_of(p, last);
    EdgeId binding = kNoEdge;
    std::int64_t reached = kNoId;
    for (EdgeId e = points_.in_offsets[p]; e < points_.in_offsets[p + 1]; ++e) {
      const bool once = e == last && start == Start::kOnce;
      const bool staged = e == last && start == Start::kHeld && is_inside_call(e);
      const std::int64_t lag = once     ? gap_ns_[e]
                               : staged ? staging_ns(p)
                                        : typical(e, p, waited, e == last);
      graph_.lag_ns[e] = e == last ? lag : std::min(gap_ns_[e], lag);
      const std::int64_t at = points_.time_ns[points_.source[e]] + graph_.lag_ns[e];
      if (binding != kNoEdge && at <= reached) continue;
      binding = e;
      reached = at;
    }
    if (binding == kNoEdge) return;
    graph_.held[p] = start == Start::kHeld && reached <= points_.time_ns[p];
    if (!graph_.held[p]) graph_.residual_ns[binding] = points_.time_ns[p] - reached;
  }

  std::int64_t typical(EdgeId e, Point p, bool waited, bool is_last) const {
    const Kind kind = points_.kind[e];
    if (is_idle(e, p)) return 0;
    if (is_work(kind)) return waited ? cost_without_wait(e, p) : gap_ns_[e];
    if (kind == Kind::kRendezvous) {
      return points_.row[p] == kNoRow ? 0 : gap_ns_[e];  // to the meeting point: at once
    }
    if (!is_order(kind)) return gap_ns_[e];
    return is_last && (is_inside_call(e) || is_once(e)) ? gap_ns_[e] : typical_order(e, p);
  }

  /// Is the thread at nobody's service in this stretch? On the main thread, and below an operator,
  /// a frame that blocks is part of the program.
  bool is_idle(EdgeId e, Point p) const {
    const Lane& lane = points_.lanes[points_.lane[p]];
    if (points_.kind[e] != Kind::kProgramOrder || !blocked_[lane.rank].any()) return false;
    const Row owner = points_.owner[e];
    const EventTree& tree = *ranks_[lane.rank].tree;
    if (!blocked_[lane.rank](owner) || lane.index == tree.main_track) return false;
    Row root = owner;
    while (tree.parent[root] != kNoRow) root = tree.parent[root];
    return table_of(p).kind[root] == EventKind::kPythonFunction;
  }

  /// The fetch whose wait ends here; kNoRow: none does. See Note [Worker pace] in worker_pace.cpp.
  Row paced_fetch(Point p) const {
    for (EdgeId e = points_.in_offsets[p]; e < points_.in_offsets[p + 1]; ++e) {
      if (points_.kind[e] == Kind::kWorkerPace) return points_.owner[e];
    }
    return kNoRow;
  }

  /// What remains of a fetch's cost for the stretch in which it waited.
  std::int64_t take_ns(Row fetch, EdgeId e, Point p) const {
    const std::uint32_t rank = rank_of(p);
    const std::int64_t length_ns =
        points_.time_ns[graph_.end_of[rank][fetch]] - points_.time_ns[graph_.begin_of[rank][fetch]];
    return std::clamp<std::int64_t>(take_ns_[rank] - (length_ns - gap_ns_[e]), 0, gap_ns_[e]);
  }

  /// A collective that meets others has no work before the meeting; a call has that of its name.
  std::int64_t cost_without_wait(EdgeId e, Point p) const {
    if (points_.kind[e] == Kind::kExecution || points_.row[p] == kNoRow) return 0;
    if (const Row fetch = paced_fetch(p); fetch != kNoRow) return take_ns(fetch, e, p);
    const auto* found = call_cost_.find(call_key(p));
    return std::min(gap_ns_[e], found == nullptr ? kCallCostNs : found->typical_ns);
  }

  ExecutionGraph& graph_;
  const DependencyGraph& points_;
  std::span<const GraphRank> ranks_;
  std::span<const std::int64_t> take_ns_;  // by rank
  std::vector<std::int64_t> gap_ns_;       // by edge: measured time between its points
  std::vector<ArgReader> bytes_;           // by rank
  std::vector<BlockedFrames> blocked_;
  ClassValues call_cost_;       // by rank and name of calls that need not wait
  ClassValues order_, launch_;  // by LagKeys
  std::vector<std::vector<std::int64_t>> device_begin_ns_;  // by rank and stream
  std::vector<std::pair<EdgeId, std::int64_t>> staged_;
  std::int64_t staging_ns_per_mebibyte_ = 0;
};

}  // namespace

void measure_lags(ExecutionGraph& graph, std::span<const GraphRank> ranks,
                  std::span<const std::int64_t> take_ns) {
  LagMeasurer(graph, ranks, take_ns).measure();
}

}  // namespace traceap
