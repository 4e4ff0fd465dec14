// Note [Rows without points]: the graph has the begin and the end of host ranges and GPU events. An
// event of these moves by as much as its points do, so that what the graph cut or rounded is not
// lost as long as the event takes as long as it did. Every other event moves with what stands
// around it on its track: a range begins with the first range that began when it did, and ends with
// the last that ended when it did; an instant or an arrow stays at the begin of the innermost range
// that began with it; what lies between two known times keeps its share of the way from one to the
// other. So the order of a track's times stays, and ranges that were nested still are. Tracks of
// which the graph knows nothing (counters, the profiler's own span) follow all tracks of the rank
// together: a moment there is when all has happened that had happened before.

#include "traceap/simulation/row_times.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>

#include "traceap/base/error.hpp"
#include "traceap/base/interrupt.hpp"
#include "traceap/base/intervals.hpp"
#include "traceap/base/sums.hpp"

namespace traceap {
namespace {

constexpr std::int64_t kLowest = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kHighest = std::numeric_limits<std::int64_t>::max();

/// What happened at one time of a track, and when that happens now.
struct Moment {
  TrackId track;
  std::int64_t old_ns;
  std::int64_t first_ns = kHighest, last_ns = kLowest;  ///< of all
  std::int64_t first_begin_ns = kHighest, last_begin_ns = kLowest;
  std::int64_t first_end_ns = kHighest, last_end_ns = kLowest;
  std::int64_t reached_ns = kLowest;  ///< the latest of these and of all before on the track

  bool begins() const { return last_begin_ns != kLowest; }
  bool ends() const { return last_end_ns != kLowest; }
};

struct Anchor {
  TrackId track;
  std::int64_t old_ns, new_ns;
  StringId name;
  bool is_end;

  auto key() const { return std::tie(track, old_ns, is_end, name, new_ns); }
};

/// From old to new times along tracks.
class TimeMap {
 public:
  /// `anchors` sorted by key.
  explicit TimeMap(std::span<const Anchor> anchors) {
    for (const Anchor& anchor : anchors) {
      poll_interrupt();
      const bool is_new = moments_.empty() || moments_.back().track != anchor.track ||
                          moments_.back().old_ns != anchor.old_ns;
      if (is_new) moments_.push_back({anchor.track, anchor.old_ns});
      Moment& at = moments_.back();
      widen(at.first_ns, at.last_ns, anchor.new_ns);
      if (anchor.is_end) {
        widen(at.first_end_ns, at.last_end_ns, anchor.new_ns);
      } else {
        widen(at.first_begin_ns, at.last_begin_ns, anchor.new_ns);
      }
    }
    for (std::size_t i = 0; i < moments_.size(); ++i) {
      const bool goes_on = i > 0 && moments_[i - 1].track == moments_[i].track;
      moments_[i].reached_ns =
          std::max(moments_[i].last_ns, goes_on ? moments_[i - 1].reached_ns : kLowest);
    }
  }

  bool knows(TrackId track) const {
    const auto at = from(track, kLowest);
    return at != moments_.end() && at->track == track;
  }
  std::int64_t begin_of_range(TrackId track, std::int64_t old_ns) const {
    const Moment* at = exactly(track, old_ns);
    if (!at) return between(track, old_ns);
    return at->begins() ? at->first_begin_ns : at->last_end_ns;
  }
  std::int64_t end_of_range(TrackId track, std::int64_t old_ns) const {
    const Moment* at = exactly(track, old_ns);
    if (!at) return between(track, old_ns);
    return at->ends() ? at->last_end_ns : at->first_begin_ns;
  }
  std::int64_t instant(TrackId track, std::int64_t old_ns) const {
    const Moment* at = exactly(track, old_ns);
    if (!at) return between(track, old_ns);
    return at->begins() ? at->last_begin_ns : at->last_end_ns;
  }
  /// When all has happened that had happened at that time.
  std::int64_t reached(TrackId track, std::int64_t old_ns) const {
    const Moment* at = exactly(track, old_ns);
    return at ? at->reached_ns : between(track, old_ns);
  }

 private:
  using Iterator = std::vector<Moment>::const_iterator;

  static void widen(std::int64_t& first, std::int64_t& last, std::int64_t ns) {
    first = std::min(first, ns);
    last = std::max(last, ns);
  }

  /// The first moment of a track at or after a time, or of a later track.
  Iterator from(TrackId track, std::int64_t old_ns) const {
    return std::lower_bound(moments_.begin(), moments_.end(), std::tie(track, old_ns),
                            [](const Moment& moment, const auto& key) {
                              return std::tie(moment.track, moment.old_ns) < key;
                            });
  }
  const Moment* exactly(TrackId track, std::int64_t old_ns) const {
    const Iterator at = from(track, old_ns);
    const bool found = at != moments_.end() && at->track == track && at->old_ns == old_ns;
    return found ? &*at : nullptr;
  }

  std::int64_t between(TrackId track, std::int64_t old_ns) const {
    const Iterator after = from(track, old_ns);
    const bool has_after = after != moments_.end() && after->track == track;
    const bool has_before = after != moments_.begin() && std::prev(after)->track == track;
    if (!has_before && !has_after) return old_ns;
    if (!has_before) return add_saturated(after->first_ns, old_ns - after->old_ns);
    const Moment& before = *std::prev(after);
    if (!has_after) return add_saturated(before.reached_ns, old_ns - before.old_ns);
    const std::int64_t way_ns = after->old_ns - before.old_ns;
    const std::int64_t now_ns =
        std::max(std::int64_t{0}, add_saturated(after->first_ns, -before.reached_ns));
    const std::int64_t gone_ns = old_ns - before.old_ns;
    if (way_ns == now_ns) return before.reached_ns + gone_ns;
    const double share = static_cast<double>(now_ns) / static_cast<double>(way_ns);
    const auto along = static_cast<std::int64_t>(static_cast<double>(gone_ns) * share);
    return add_saturated(before.reached_ns, std::clamp(along, std::int64_t{0}, now_ns));
  }

  std::vector<Moment> moments_;
};

class RowMover {
 public:
  RowMover(const ExecutionGraph& graph, std::uint32_t rank, const EventTable& table,
           std::span<const std::int64_t> replayed_ns, std::int64_t gpu_shift_ns)
      : begin_of_(graph.begin_of[rank]),
        end_of_(graph.end_of[rank]),
        measured_ns_(graph.points.time_ns),
        replayed_ns_(replayed_ns),
        table_(table),
        gpu_shift_ns_(gpu_shift_ns),
        times_{std::vector<std::int64_t>(table.size()), std::vector<std::int64_t>(table.size())} {}

  RowTimes move() {
    move_known();
    std::sort(anchors_.begin(), anchors_.end(),
              [](const Anchor& a, const Anchor& b) { return a.key() < b.key(); });
    const TimeMap tracks(anchors_);
    std::vector<bool> has_map(table_.tracks.size());
    for (TrackId track = 0; track < has_map.size(); ++track) has_map[track] = tracks.knows(track);
    std::vector<Anchor> all(anchors_);
    for (Anchor& anchor : all) anchor.track = 0;
    std::sort(all.begin(), all.end(),
              [](const Anchor& a, const Anchor& b) { return a.key() < b.key(); });
    const TimeMap rank(all);
    for (Row row = 0; row < table_.size(); ++row) {
      poll_interrupt();
      if ((table_.flags[row] & kHasTime) == 0 || is_known(row)) continue;
      if (table_.kind[row] == EventKind::kMetadata) {
        times_.ts_ns[row] = table_.ts_ns[row];
      } else if (has_map[table_.track[row]]) {
        move_on_track(tracks, row);
      } else {
        set(row, rank.reached(0, table_.ts_ns[row]), rank.reached(0, table_.end_ns(row)));
      }
    }
    return std::move(times_);
  }

 private:
  bool is_known(Row row) const { return begin_of_[row] != kNoPoint && end_of_[row] != kNoPoint; }

  std::int64_t moved(std::int64_t ns, Point point) const {
    const std::int64_t by_ns = add_saturated(replayed_ns_[point], -measured_ns_[point]);
    return clamped(add_saturated(ns, by_ns));
  }

  /// What sticks out of an event's end in the graph is kept while it takes as long as it did.
  std::int64_t moved_end(Row row, std::int64_t begin_ns) const {
    const Point begin = begin_of_[row], end = end_of_[row];
    const std::int64_t length_ns = add_saturated(replayed_ns_[end], -replayed_ns_[begin]);
    const std::int64_t before_ns = add_saturated(measured_ns_[end], -measured_ns_[begin]);
    if (length_ns == before_ns) return moved(table_.end_ns(row), end);
    return clamped(add_saturated(begin_ns, length_ns));
  }

  void move_known() {
    for (Row row = 0; row < table_.size(); ++row) {
      poll_interrupt();
      if (!is_known(row)) continue;
      std::int64_t begin_ns = moved(table_.ts_ns[row], begin_of_[row]);
      std::int64_t end_ns = moved_end(row, begin_ns);
      if (is_gpu(table_.kind[row])) {
        begin_ns = clamped(add_saturated(begin_ns, gpu_shift_ns_));
        end_ns = clamped(add_saturated(end_ns, gpu_shift_ns_));
      }
      set(row, begin_ns, end_ns);
      const TrackId track = table_.track[row];
      anchors_.push_back({track, table_.ts_ns[row], begin_ns, table_.name[row], false});
      anchors_.push_back({track, table_.end_ns(row), end_ns, table_.name[row], true});
    }
  }

  void move_on_track(const TimeMap& tracks, Row row) {
    const TrackId track = table_.track[row];
    if (table_.is_complete(row)) {
      set(row, tracks.begin_of_range(track, table_.ts_ns[row]),
          tracks.end_of_range(track, table_.end_ns(row)));
    } else if ((table_.flags[row] & kMatchedEnd) != 0) {
      times_.ts_ns[row] = end_of_named(tracks, row);
    } else {
      times_.ts_ns[row] = clamped(tracks.instant(track, table_.ts_ns[row]));
    }
  }

  /// When the range ends that an E event closed: one of its name, else the last that ends there.
  std::int64_t end_of_named(const TimeMap& tracks, Row row) const {
    const Anchor wanted{table_.track[row], table_.ts_ns[row], kLowest, table_.name[row], true};
    const auto at =
        std::lower_bound(anchors_.begin(), anchors_.end(), wanted,
                         [](const Anchor& a, const Anchor& b) { return a.key() < b.key(); });
    const bool found = at != anchors_.end() && at->track == wanted.track &&
                       at->old_ns == wanted.old_ns && at->is_end && at->name == wanted.name;
    return clamped(found ? at->new_ns : tracks.end_of_range(wanted.track, wanted.old_ns));
  }

  static std::int64_t clamped(std::int64_t ns) { return std::clamp(ns, -kMaxTimeNs, kMaxTimeNs); }

  void set(Row row, std::int64_t begin_ns, std::int64_t end_ns) {
    times_.ts_ns[row] = clamped(begin_ns);
    if (!table_.is_complete(row)) return;
    const std::int64_t dur_ns = add_saturated(clamped(end_ns), -times_.ts_ns[row]);
    times_.dur_ns[row] = std::clamp(dur_ns, std::int64_t{0}, kMaxTimeNs);
  }

  const std::vector<Point>&begin_of_, &end_of_;
  const std::vector<std::int64_t>& measured_ns_;
  std::span<const std::int64_t> replayed_ns_;
  const EventTable& table_;
  std::int64_t gpu_shift_ns_;
  RowTimes times_;
  std::vector<Anchor> anchors_;
};

}  // namespace

RowTimes row_times(const ExecutionGraph& graph, std::uint32_t rank, const EventTable& table,
                   std::span<const std::int64_t> replayed_ns, std::int64_t gpu_shift_ns) {
  if (rank >= graph.begin_of.size()) {
    throw SchemaError("the graph has no rank " + std::to_string(rank));
  }
  if (graph.begin_of[rank].size() != table.size()) {
    throw SchemaError("the graph's rank " + std::to_string(rank) + " is another table");
  }
  if (replayed_ns.size() != graph.size()) {
    throw SchemaError("one time for each of " + std::to_string(graph.size()) +
                      " points is needed, not " + std::to_string(replayed_ns.size()));
  }
  if (gpu_shift_ns < -kMaxTimeNs || gpu_shift_ns > kMaxTimeNs) {
    throw SchemaError("gpu_shift_ns: beyond what times can hold");
  }
  return RowMover(graph, rank, table, replayed_ns, gpu_shift_ns).move();
}

}  // namespace traceap
