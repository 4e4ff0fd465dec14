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
// The residual of an edge is what the measured run took beyond its lag, or less: with residuals a
// replay gives back the measured times exactly. Only the edge that explains a point carries one.

#include "traceap/simulation/lags.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <utility>

#include "traceap/analysis/idle/host_activity.hpp"
#include "traceap/base/interrupt.hpp"

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
std::int64_t middle_mean(std::vector<std::int64_t>& values) {
  std::sort(values.begin(), values.end());
  if (values.size() < kEnough) return values[(values.size() - 1) / 2];
  const std::size_t cut = values.size() / 4;
  const auto first = values.begin() + static_cast<std::ptrdiff_t>(cut);
  const auto last = values.end() - static_cast<std::ptrdiff_t>(cut);
  const double sum = std::accumulate(first, last, 0.0);
  return std::llround(sum / static_cast<double>(last - first));
}

/// What is alike about edges, from the narrowest to the widest class.
struct LagKeys {
  static constexpr int kLevels = 4;
  std::uint64_t level[kLevels];
};

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);
  return hash * 0xff51afd7ed558ccdULL;
}

class LagMeasurer {
 public:
  LagMeasurer(ExecutionGraph& graph, std::span<const GraphRank> ranks)
      : graph_(graph), points_(graph.points), ranks_(ranks), gap_ns_(points_.edges()) {
    for (Point p = 0; p < points_.size(); ++p) {
      poll_interrupt();
      for (EdgeId e = points_.in_offsets[p]; e < points_.in_offsets[p + 1]; ++e) {
        gap_ns_[e] = points_.lag_ns(e, p);
      }
    }
    for (const GraphRank& rank : ranks) {
      bytes_.emplace_back(*rank.table, "bytes");
    }
  }

  void measure() {
    measure_call_costs();
    collect();
    graph_.lag_ns.resize(points_.edges());
    graph_.residual_ns.assign(points_.edges(), 0);
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

  // ---- calls

  static std::uint64_t key(std::uint32_t rank, StringId name) {
    return (std::uint64_t{rank} << 32) | name;
  }

  /// Typical length of a stretch that ends a call of a name without waiting. See Note [Lags].
  void measure_call_costs() {
    std::unordered_map<std::uint64_t, std::vector<std::int64_t>> lengths;
    for (Point p = 0; p < points_.size(); ++p) {
      poll_interrupt();
      if (!points_.is_end[p] || !is_call(p) || has_waited(p)) continue;
      for (EdgeId e = points_.in_offsets[p]; e < points_.in_offsets[p + 1]; ++e) {
        if (points_.kind[e] == Kind::kProgramOrder) {
          lengths[key(rank_of(p), name_of(p))].push_back(gap_ns_[e]);
        }
      }
    }
    for (auto& [name, values] : lengths) call_cost_ns_[name] = middle_mean(values);
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
    std::unordered_map<std::uint64_t, std::vector<std::int64_t>> found;
    for (Point p = 0; p < points_.size(); ++p) {
      poll_interrupt();
      const EdgeId e = latest_source(p);
      if (e == kNoEdge || !is_order(points_.kind[e]) || is_once(e)) continue;
      const LagKeys keys = keys_of(e, p);
      const std::int64_t bytes = staged_bytes(e);
      if (bytes > kStagedBytes) staged_.push_back({e, bytes});
      for (int i = 0; i < LagKeys::kLevels; ++i) {
        if (i > 0 && bytes > kStagedBytes) break;  // says nothing about others
        found[keys.level[i]].push_back(gap_ns_[e]);
      }
    }
    for (auto& [key, values] : found) {
      typical_ns_[key] = {values.size(), middle_mean(values)};
    }
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
      const auto found = typical_ns_.find(key);
      if (found != typical_ns_.end()) return found->second.second;
    }
    return 0;
  }

  std::int64_t typical_order(EdgeId e, Point p) const {
    const LagKeys keys = keys_of(e, p);
    const std::int64_t bytes = staged_bytes(e);
    for (int i = 0; i < LagKeys::kLevels; ++i) {
      if (i > 0 && bytes > kStagedBytes) break;
      const auto found = typical_ns_.find(keys.level[i]);
      if (found == typical_ns_.end()) continue;
      if (found->second.first >= kEnough || i >= 2) return found->second.second;
    }
    if (bytes <= kStagedBytes) return 0;
    return wait_ns(e) + std::llround(static_cast<double>(staging_ns_per_mebibyte_) *
                                     static_cast<double>(bytes) / 1048576.0);
  }

  // ---- lags

  void set_lags(Point p) {
    const bool waited = has_waited(p);
    const EdgeId last = latest_source(p);
    EdgeId binding = kNoEdge;
    std::int64_t reached = kNoId;
    for (EdgeId e = points_.in_offsets[p]; e < points_.in_offsets[p + 1]; ++e) {
      const std::int64_t lag = typical(e, p, waited, e == last);
      graph_.lag_ns[e] = e == last ? lag : std::min(gap_ns_[e], lag);
      const std::int64_t at = points_.time_ns[points_.source[e]] + graph_.lag_ns[e];
      if (binding != kNoEdge && at <= reached) continue;
      binding = e;
      reached = at;
    }
    if (binding != kNoEdge) graph_.residual_ns[binding] = points_.time_ns[p] - reached;
  }

  std::int64_t typical(EdgeId e, Point p, bool waited, bool is_last) const {
    const Kind kind = points_.kind[e];
    if (is_work(kind)) return waited ? cost_without_wait(e, p) : gap_ns_[e];
    if (kind == Kind::kRendezvous) {
      return points_.row[p] == kNoRow ? 0 : gap_ns_[e];  // to the meeting point: at once
    }
    if (!is_order(kind)) return gap_ns_[e];
    const bool inside_call = kind == Kind::kLaunch && !points_.is_end[points_.source[e]];
    return is_last && (inside_call || is_once(e)) ? gap_ns_[e] : typical_order(e, p);
  }

  /// A collective that meets others has no work before the meeting; a call has that of its name.
  std::int64_t cost_without_wait(EdgeId e, Point p) const {
    if (points_.kind[e] == Kind::kExecution || points_.row[p] == kNoRow) return 0;
    const auto found = call_cost_ns_.find(key(rank_of(p), name_of(p)));
    return std::min(gap_ns_[e], found == call_cost_ns_.end() ? kCallCostNs : found->second);
  }

  ExecutionGraph& graph_;
  const DependencyGraph& points_;
  std::span<const GraphRank> ranks_;
  std::vector<std::int64_t> gap_ns_;  // by edge: measured time between its points
  std::vector<ArgReader> bytes_;      // by rank
  std::unordered_map<std::uint64_t, std::int64_t> call_cost_ns_;
  std::unordered_map<std::uint64_t, std::pair<std::size_t, std::int64_t>> typical_ns_;
  std::vector<std::pair<EdgeId, std::int64_t>> staged_;
  std::int64_t staging_ns_per_mebibyte_ = 0;
};

}  // namespace

void measure_lags(ExecutionGraph& graph, std::span<const GraphRank> ranks) {
  LagMeasurer(graph, ranks).measure();
}

}  // namespace traceap
