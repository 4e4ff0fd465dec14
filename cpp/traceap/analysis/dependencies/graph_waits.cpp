// Calls that make the host wait for the GPU, and streams wait for streams.
//
// Note [What a wait waits for]: with synchronisation events recorded (`cuda_sync` rows), the row of
// a call names the stream, and for events the call that recorded them; the work meant is the last
// that was launched there before the wait (before the record, for an event). Without such rows a
// call that waits for the device still waits for everything launched before it. For a stream or an
// event the trace doesn't name its partner: of the work launched before the call, that which ended
// last before the call returned explains the return, if it ended while the call was open. A stream
// that was told to wait starts its next work after the work it waited for, so of the work launched
// before the call that which ended last before this start is taken. Where not even such a call is
// recorded, only an end within kCoincidenceNs of a start that nothing else explains is taken, and
// marked as assumed.
//
// Note [Room on the device]: work that was launched long ago, whose stream is free, and that starts
// while long work of another stream is in its last moments, waited for that work to leave room. The
// edge comes from a point inside that work.

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "traceap/analysis/dependencies/graph_builder.hpp"
#include "traceap/analysis/dependencies/stream_waits.hpp"
#include "traceap/analysis/idle/idle.hpp"
#include "traceap/base/interrupt.hpp"
#include "traceap/base/text.hpp"
#include "traceap/tree/id_index.hpp"

namespace traceap {
namespace {

// A waiting call returns this soon after what it waited for (compare tree/clocks.cpp).
constexpr std::int64_t kReturnNs = 200'000;
// A start this long after all that it depends on needs no further reason.
constexpr std::int64_t kUsualStartNs = 20'000;
constexpr std::int64_t kCoincidenceNs = 5'000;
// A copy call without a word on its memory must have been open this long to count as waiting.
constexpr std::int64_t kCopyWaitNs = 20'000;
// Events looked at before a time; bounds hostile input.
constexpr int kMostBack = 64;

/// Calls after which the host or a stream goes on when GPU work is done, and the records of events.
/// Queries return at once and wait for nothing.
bool orders_work(ApiClass api) {
  return is_synchronisation(api) || api == ApiClass::kStreamWaitEvent ||
         api == ApiClass::kEventRecord || api == ApiClass::kDeviceFree;
}

/// GPU work with the time when the host put it into its queue (host clock, no rank offset).
struct Launched {
  std::int64_t time_ns;
  Row row;
  friend bool operator<(const Launched& a, const Launched& b) {
    return a.time_ns != b.time_ns ? a.time_ns < b.time_ns : a.row < b.row;
  }
};

class WaitLinker {
 public:
  WaitLinker(GraphBuilder& builder, const GraphRank& rank, std::uint32_t rank_index)
      : builder_(builder),
        table_(*rank.table),
        tree_(*rank.tree),
        points_(builder.points(rank_index)),
        rank_index_(rank_index),
        shift_ns_(rank.offset_ns),
        on_stream_(tree_.streams.size()),
        unawaited_(tree_.streams.size(), kNoRow),
        waiting_since_(table_.tracks.size(), kNoId),
        explained_(table_.size()) {
    order_gpu_work();
    index_sync_rows();
  }

  void link() {
    link_sync_rows_without_call();
    link_by_records();
    for (Row row = 0; row < table_.size(); ++row) {
      poll_interrupt();
      if (!is_api_call(table_.kind[row]) || points_.end[row] == kNoPoint) continue;
      link_call(row);
    }
    link_unexplained_starts();
  }

 private:
  // ---- indices

  void order_gpu_work() {
    for (const Row row : tree_.gpu_rows) {
      poll_interrupt();
      launched_.push_back({launch_time_ns(table_, tree_, row), row});
    }
    std::sort(launched_.begin(), launched_.end());
    for (const Launched& l : launched_) on_stream_[tree_.stream_of[l.row]].push_back(l);
    by_end_ = tree_.gpu_rows;
    std::stable_sort(by_end_.begin(), by_end_.end(),
                     [&](Row a, Row b) { return table_.end_ns(a) < table_.end_ns(b); });
  }

  void index_sync_rows() {
    std::vector<IdRow> syncs, records, calls;
    for (Row row = 0; row < table_.size(); ++row) {
      poll_interrupt();
      if (table_.correlation[row] == kNoId) continue;
      if (table_.kind[row] == EventKind::kCudaSync) {
        syncs.push_back({table_.correlation[row], row});
      } else if (is_api_call(table_.kind[row]) && points_.begin[row] != kNoPoint) {
        const ApiClass api = tree_.api[row];
        if (api == ApiClass::kEventRecord) records.push_back({table_.correlation[row], row});
        if (orders_work(api)) calls.push_back({table_.correlation[row], row});
      }
    }
    if (!syncs.empty()) {
      wait_on_stream_.emplace(table_, "wait_on_stream");
      wait_on_record_.emplace(table_, "wait_on_cuda_event_record_corr_id");
    }
    syncs_ = IdIndex(std::move(syncs));
    records_ = IdIndex(std::move(records));
    waiting_calls_ = IdIndex(std::move(calls));
  }

  Row sync_row_of(Row call) const {
    if (table_.correlation[call] == kNoId) return kNoRow;
    const auto rows = syncs_.find(table_.correlation[call]);
    return rows.empty() ? kNoRow : rows.front();
  }

  /// Index in tree.streams; of any device where the row names none.
  std::optional<std::uint32_t> find_stream(std::int32_t device, std::int64_t stream) const {
    const auto& streams = tree_.streams;
    const auto it = std::lower_bound(
        streams.begin(), streams.end(), std::pair(device, stream),
        [](const Stream& s, const auto& key) { return std::pair(s.device, s.stream) < key; });
    if (it == streams.end() || it->device != device || it->stream != stream) return std::nullopt;
    return static_cast<std::uint32_t>(it - streams.begin());
  }

  /// Last work put on a stream before a moment; kNoRow if none.
  Row last_on_stream(std::uint32_t stream, std::int64_t before_ns) const {
    const auto& work = on_stream_[stream];
    const auto after = std::partition_point(
        work.begin(), work.end(), [&](const Launched& l) { return l.time_ns < before_ns; });
    return after == work.begin() ? kNoRow : (after - 1)->row;
  }
  Row next_on_stream(std::uint32_t stream, std::int64_t after_ns) const {
    const auto& work = on_stream_[stream];
    const auto next = std::partition_point(
        work.begin(), work.end(), [&](const Launched& l) { return l.time_ns <= after_ns; });
    return next == work.end() ? kNoRow : next->row;
  }

  /// Of the work launched before a moment, that which ended last but not after `end_ns` (common
  /// clock) nor before `since_ns`; `other_than`: not on this stream.
  Row ended_last(std::int64_t end_ns, std::int64_t since_ns, std::int64_t launched_before_ns,
                 std::uint32_t other_than) const {
    const std::int64_t shift = shift_ns_ + tree_.launch_delay_correction_ns;
    auto it = std::partition_point(by_end_.begin(), by_end_.end(),
                                   [&](Row row) { return table_.end_ns(row) + shift <= end_ns; });
    for (int i = 0; i < kMostBack && it != by_end_.begin(); ++i) {
      const Row row = *--it;
      if (table_.end_ns(row) + shift < since_ns) break;
      if (tree_.stream_of[row] == other_than) continue;
      if (launch_time_ns(table_, tree_, row) < launched_before_ns) return row;
    }
    return kNoRow;
  }

  // ---- calls

  void link_call(Row call) {
    switch (tree_.api[call]) {
      case ApiClass::kStreamWaitEvent:
        return link_stream_wait(call, sync_row_of(call));
      case ApiClass::kDeviceSync:
        return link_device_wait(call);
      case ApiClass::kStreamSync:
      case ApiClass::kEventSync:
        return link_host_wait(call);
      case ApiClass::kDeviceFree:
        return link_by_return(call);
      case ApiClass::kEventRecord:
        return;
      default:
        break;
    }
    const auto launched = tree_.launched_by(call);
    if (launched.empty()) return;
    infer_stream_wait(call, launched.front());
    link_copies(call, launched);
  }

  /// One edge from each stream that got work since the last call of this kind: what was launched
  /// earlier had ended by then.
  void link_device_wait(Row call) {
    for (; next_launched_ < launched_.size(); ++next_launched_) {
      const Launched& next = launched_[next_launched_];
      if (next.time_ns >= table_.ts_ns[call]) break;
      const std::uint32_t stream = tree_.stream_of[next.row];
      if (unawaited_[stream] == kNoRow)
        unawaited_of_[tree_.streams[stream].device].push_back(stream);
      unawaited_[stream] = next.row;
    }
    const Row sync_row = sync_row_of(call);
    if (sync_row != kNoRow) return await_device(call, table_.device[sync_row]);
    while (!unawaited_of_.empty()) await_device(call, unawaited_of_.begin()->first);
  }

  void await_device(Row call, std::int32_t device) {
    const auto waiting = unawaited_of_.extract(device);
    if (waiting.empty()) return;
    for (const std::uint32_t stream : waiting.mapped()) {
      add_host_wait(std::exchange(unawaited_[stream], kNoRow), call, Evidence::kExplicit);
    }
  }

  void link_host_wait(Row call) {
    const Row sync_row = sync_row_of(call);
    const auto source = sync_row == kNoRow ? std::nullopt : awaited_by_host(call, sync_row);
    if (!source) return link_by_return(call);
    if (*source != kNoRow) add_host_wait(*source, call, Evidence::kExplicit);
  }

  /// What a recorded synchronisation of the host waits for; kNoRow: nothing was launched there;
  /// nothing: the row doesn't say where.
  std::optional<Row> awaited_by_host(Row call, Row sync_row) const {
    if (tree_.api[call] == ApiClass::kStreamSync) {
      const auto stream = find_stream(table_.device[sync_row], table_.stream[sync_row]);
      if (!stream) return std::nullopt;
      return last_on_stream(*stream, table_.ts_ns[call]);
    }
    return recorded_work(sync_row);
  }

  /// The work that an event stands for: the last one on its stream when it was recorded.
  std::optional<Row> recorded_work(Row sync_row) const {
    const auto stream_id = wait_on_stream_->integer(sync_row);
    const Row record = record_of(sync_row);
    if (!stream_id || record == kNoRow) return std::nullopt;
    const auto stream = find_stream(table_.device[sync_row], *stream_id);
    if (!stream) return std::nullopt;
    return last_on_stream(*stream, table_.ts_ns[record]);
  }

  Row record_of(Row sync_row) const {
    const auto id = wait_on_record_->integer(sync_row);
    if (!id || *id < 0) return kNoRow;
    const auto records = records_.find(*id);
    return records.empty() ? kNoRow : records.front();
  }

  /// Where even the beginning of the work lies behind the call's end (clocks), what precedes it on
  /// its stream is taken.
  void add_host_wait(Row gpu_row, Row call, Evidence evidence) {
    constexpr int kMostBefore = 4;
    for (int i = 0; i < kMostBefore && gpu_row != kNoRow; ++i) {
      if (builder_.add_edge_within(kClockJitterNs, points_.end[gpu_row], points_.end[call], call,
                                   DependencyKind::kHostWait, evidence)) {
        return;
      }
      const std::vector<Row>& rows = tree_.streams[tree_.stream_of[gpu_row]].rows;
      const auto at = std::lower_bound(rows.begin(), rows.end(), gpu_row);
      gpu_row = at == rows.begin() || at == rows.end() ? kNoRow : *(at - 1);
    }
  }

  /// The work whose end lets this call return, by time.
  void link_by_return(Row call) {
    const std::int64_t begin_ns = builder_.time_ns(points_.begin[call]);
    const std::int64_t end_ns = builder_.time_ns(points_.end[call]);
    const Row before = ended_last(end_ns, begin_ns + 1, table_.ts_ns[call], kNoRow);
    const Row behind = ended_last(end_ns + kClockJitterNs, end_ns + 1, table_.ts_ns[call], kNoRow);
    const auto distance_ns = [&](Row row) {
      return row == kNoRow ? std::numeric_limits<std::int64_t>::max()
                           : std::abs(end_ns - builder_.time_ns(points_.end[row]));
    };
    const Row row = distance_ns(before) <= distance_ns(behind) ? before : behind;
    if (row == kNoRow) return;
    const std::int64_t done_ns = builder_.time_ns(points_.end[row]);
    if (end_ns - done_ns > std::max(kReturnNs, done_ns - begin_ns)) return;
    add_host_wait(row, call, Evidence::kInferred);
  }

  void link_copies(Row call, std::span<const Row> launched) {
    if (!is_copy_call(tree_.api[call])) return;
    const bool synchronous = tree_.api[call] == ApiClass::kCopy;
    for (const Row copy : launched) {
      if (tree_.gpu_class[copy] != GpuClass::kMemcpy) continue;
      const CopyKind kind = tree_.copy_of(copy);
      const bool pageable = kind.memory == HostMemory::kPageable;
      const bool reads = pageable && kind.direction == CopyDirection::kDeviceToHost;
      const bool certain = synchronous || pageable;
      const std::int64_t open_ns =
          builder_.time_ns(points_.end[copy]) - builder_.time_ns(points_.begin[call]);
      const bool stays = is_between_devices(kind.direction);
      if (!certain && (stays || open_ns < kCopyWaitNs)) continue;
      // An upload from pageable memory is awaited until it is staged, which may be earlier.
      builder_.add_edge_within(synchronous || reads ? kClockJitterNs : 0, points_.end[copy],
                               points_.end[call], call, DependencyKind::kHostWait,
                               certain ? Evidence::kExplicit : Evidence::kInferred);
    }
  }

  // ---- streams

  void link_stream_wait(Row call, Row sync_row) {
    if (sync_row != kNoRow && link_recorded_wait(sync_row, table_.ts_ns[call])) return;
    if (has_records_) return;  // link_by_records has seen it
    waiting_since_[table_.track[call]] = table_.ts_ns[call];
  }

  /// Waits that no sync row explains, by the calls that record events. See stream_waits.cpp.
  void link_by_records() {
    std::vector<StreamCall> calls;
    for (Row row = 0; row < table_.size(); ++row) {
      poll_interrupt();
      if (!is_api_call(table_.kind[row]) || points_.end[row] == kNoPoint) continue;
      const bool records = tree_.api[row] == ApiClass::kEventRecord;
      const bool waits = tree_.api[row] == ApiClass::kStreamWaitEvent && names_no_partner(row);
      if (!records && !waits) continue;
      has_records_ = has_records_ || records;
      calls.push_back({table_.ts_ns[row] + shift_ns_, table_.track[row],
                       records ? StreamCall::kRecord : StreamCall::kWait});
    }
    if (!has_records_) return;
    add_launches(calls);
    std::stable_sort(calls.begin(), calls.end(), [](const StreamCall& a, const StreamCall& b) {
      return a.time_ns < b.time_ns;
    });
    for (const StreamDependency& d : find_stream_dependencies(calls, tree_.streams.size())) {
      if (builder_.add_edge_within(kClockJitterNs, points_.end[d.source],
                                   points_.begin[d.destination], d.destination,
                                   DependencyKind::kStreamWait, Evidence::kInferred)) {
        explained_[d.destination] = true;
      }
    }
  }

  void add_launches(std::vector<StreamCall>& calls) const {
    for (std::uint32_t s = 0; s < tree_.streams.size(); ++s) {
      std::int64_t ready_ns = std::numeric_limits<std::int64_t>::min();
      for (const Row row : tree_.streams[s].rows) {
        const Row call = tree_.launch[row];
        const std::int64_t end_ns = builder_.time_ns(points_.end[row]);
        if (call != kNoRow) {
          const std::int64_t called_ns = table_.ts_ns[call] + shift_ns_;
          calls.push_back({called_ns, table_.track[call], StreamCall::kLaunch, row, s,
                           std::max(ready_ns, called_ns), builder_.time_ns(points_.begin[row]),
                           end_ns});
        }
        ready_ns = std::max(ready_ns, end_ns);
      }
    }
  }
  bool names_no_partner(Row call) const {
    const Row sync_row = sync_row_of(call);
    if (sync_row == kNoRow || !wait_on_stream_) return true;
    const auto source = wait_on_stream_->integer(sync_row);
    return !source || *source < 0;
  }

  /// Does the row name both streams? Then the next work on the one follows the work on the other.
  bool link_recorded_wait(Row sync_row, std::int64_t waits_ns) {
    const auto waiting = find_stream(table_.device[sync_row], table_.stream[sync_row]);
    const auto source_id = wait_on_stream_->integer(sync_row);
    if (!waiting || !source_id || *source_id < 0) return false;
    const auto source_stream = find_stream(table_.device[sync_row], *source_id);
    if (!source_stream || source_stream == waiting) return true;  // nothing ran there
    const Row record = record_of(sync_row);
    const std::int64_t before_ns = record == kNoRow ? waits_ns : table_.ts_ns[record];
    const Row source = last_on_stream(*source_stream, before_ns);
    const Row next = next_on_stream(*waiting, waits_ns);
    if (source == kNoRow || next == kNoRow) return true;
    add_stream_wait(source, next, record == kNoRow ? Evidence::kInferred : Evidence::kExplicit);
    return true;
  }

  void link_sync_rows_without_call() {
    for (Row row = 0; row < table_.size(); ++row) {
      poll_interrupt();
      if (table_.kind[row] != EventKind::kCudaSync || !table_.is_complete(row)) continue;
      if (table_.name_of(row) != "Stream Wait Event" || !wait_on_stream_) continue;
      if (!waiting_calls_.find(table_.correlation[row]).empty()) continue;
      link_recorded_wait(row, table_.ts_ns[row] + tree_.launch_delay_correction_ns);
    }
  }

  void infer_stream_wait(Row call, Row gpu_row) {
    const std::int64_t since_ns = std::exchange(waiting_since_[table_.track[call]], kNoId);
    if (since_ns == kNoId) return;
    const std::int64_t launched_ns = builder_.time_ns(points_.end[call]);
    link_last_end(gpu_row, launched_ns, since_ns, Evidence::kInferred);
  }

  /// Work of other streams that ended last before `gpu_row` started, but not before `since_ns`.
  bool link_last_end(Row gpu_row, std::int64_t since_ns, std::int64_t launched_before_ns,
                     Evidence evidence) {
    const Row source = ended_last(builder_.time_ns(points_.begin[gpu_row]), since_ns,
                                  launched_before_ns, tree_.stream_of[gpu_row]);
    if (source == kNoRow) return false;
    add_stream_wait(source, gpu_row, evidence);
    return true;
  }

  void add_stream_wait(Row source, Row gpu_row, Evidence evidence) {
    if (builder_.time_ns(points_.end[source]) > builder_.time_ns(points_.begin[gpu_row])) return;
    builder_.add_edge(points_.end[source], points_.begin[gpu_row], gpu_row,
                      DependencyKind::kStreamWait, evidence);
    explained_[gpu_row] = true;
  }

  void link_unexplained_starts() {
    for (std::size_t i = 0; i < tree_.streams.size(); ++i) {
      std::int64_t ready_ns = std::numeric_limits<std::int64_t>::min();
      for (const Row row : tree_.streams[i].rows) {
        const Row call = tree_.launch[row];
        if (call != kNoRow && !explained_[row] && points_.end[call] != kNoPoint) {
          explain_start(row, std::max(ready_ns, builder_.time_ns(points_.end[call])));
        }
        ready_ns = std::max(ready_ns, builder_.time_ns(points_.end[row]));
      }
    }
  }

  void explain_start(Row row, std::int64_t ready_ns) {
    const std::int64_t start_ns = builder_.time_ns(points_.begin[row]);
    if (start_ns - ready_ns <= kUsualStartNs) return;
    const bool linked = link_last_end(row, start_ns - kCoincidenceNs,
                                      launch_time_ns(table_, tree_, row), Evidence::kAssumed);
    if (!linked && start_ns - ready_ns > kLaunchLatencyBoundNs) link_room(row, ready_ns);
  }

  /// See Note [Room on the device].
  void link_room(Row row, std::int64_t ready_ns) {
    const Row filler = filling_work(row, ready_ns);
    if (filler == kNoRow) return;
    const Point begin = points_.begin[row];
    builder_.start_lane(rank_index_, Lane::kStream, tree_.stream_of[filler]);
    const Point inside = builder_.add_point(builder_.time_ns(begin), filler, false);
    builder_.end_lane();
    builder_.add_edge(points_.begin[filler], inside, filler, DependencyKind::kExecution,
                      Evidence::kAssumed);
    builder_.add_edge(inside, begin, row, DependencyKind::kDeviceBusy, Evidence::kAssumed);
  }

  /// Kernel of another stream of the device that runs when `row` starts, for most of the time since
  /// that was ready, and is nearly done.
  Row filling_work(Row row, std::int64_t ready_ns) const {
    const std::int64_t start_ns = builder_.time_ns(points_.begin[row]);
    const auto& rows = tree_.gpu_rows;
    auto it = std::lower_bound(rows.begin(), rows.end(), row);
    for (int i = 0; i < kMostBack && it != rows.begin(); ++i) {
      const Row other = *--it;
      const Stream& stream = tree_.streams[tree_.stream_of[other]];
      if (tree_.stream_of[other] == tree_.stream_of[row] || table_.dur_ns[other] == 0 ||
          stream.device != tree_.streams[tree_.stream_of[row]].device ||
          tree_.gpu_class[other] == GpuClass::kMemcpy) {
        continue;
      }
      const std::int64_t left_ns = builder_.time_ns(points_.end[other]) - start_ns;
      const std::int64_t shared_ns =
          start_ns - std::max(ready_ns, builder_.time_ns(points_.begin[other]));
      if (left_ns > 0 && left_ns <= table_.dur_ns[other] / 10 &&
          2 * shared_ns >= start_ns - ready_ns) {
        return other;
      }
    }
    return kNoRow;
  }

  GraphBuilder& builder_;
  const EventTable& table_;
  const EventTree& tree_;
  RankPoints& points_;
  const std::uint32_t rank_index_;
  const std::int64_t shift_ns_;
  std::vector<Launched> launched_;                ///< in order of launch
  std::vector<std::vector<Launched>> on_stream_;  ///< the same by stream
  std::vector<Row> by_end_;                       ///< GPU rows by end
  std::optional<ArgReader> wait_on_stream_, wait_on_record_;
  IdIndex syncs_, records_, waiting_calls_;
  std::size_t next_launched_ = 0;
  std::vector<Row> unawaited_;  ///< by stream: last work that no device-wide wait has covered
  std::map<std::int32_t, std::vector<std::uint32_t>> unawaited_of_;  ///< streams with such work
  std::vector<std::int64_t> waiting_since_;  ///< by track: a stream wait that names no partner
  bool has_records_ = false;
  std::vector<bool> explained_;  ///< by row: a stream wait leads to it
};

}  // namespace

void link_waits(GraphBuilder& builder, const GraphRank& rank, std::uint32_t rank_index) {
  if (!rank.tree->gpu_rows.empty()) WaitLinker(builder, rank, rank_index).link();
}

}  // namespace traceap
