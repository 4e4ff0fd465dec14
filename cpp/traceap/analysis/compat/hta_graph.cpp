// What is odd about HTA's rules is kept: copies that count nothing, polling taken for waiting, only
// CUDA's names for calls that wait, the later of two edges between the same nodes replaces the
// first.

#include "traceap/analysis/compat/hta_graph.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>

#include "traceap/analysis/compat/hta_events.hpp"
#include "traceap/analysis/compat/longest_path.hpp"
#include "traceap/base/interrupt.hpp"

namespace traceap {
namespace {

using Node = std::uint32_t;
constexpr Node kNoNode = std::numeric_limits<Node>::max();
constexpr std::int64_t kKernelGapLimitUs = 1500;

constexpr std::array<std::string_view, 6> kBlockingCalls{"cudaDeviceSynchronize",
                                                         "cudaStreamSynchronize",
                                                         "cudaEventQuery",
                                                         "cudaEventSynchronize",
                                                         "cudaMemcpy",
                                                         "cudaMemcpyAsync"};
constexpr std::array<std::string_view, 3> kLockingCalls{"cudaHostAlloc", "cudaLaunchKernel",
                                                        "cudaMemcpyAsync"};
constexpr std::array<std::string_view, 11> kLaunchCalls{
    "cudaLaunchKernel",   "cudaLaunchKernelExC",
    "cuLaunchKernel",     "cudaMemcpyAsync",
    "cudaMemsetAsync",    "runFunction - job_prep_and_submit_for_execution",
    "hipLaunchKernel",    "hipExtModuleLaunchKernel",
    "hipMemsetAsync",     "hipMemcpyAsync",
    "hipMemcpyWithStream"};

template <std::size_t N>
std::vector<bool> names_in(const EventTable& table, const std::array<std::string_view, N>& names) {
  std::vector<bool> in(table.strings.size());
  for (const std::string_view name : names) {
    const StringId id = table.strings.find(name);
    if (id != kNoString) in[id] = true;
  }
  return in;
}

class HtaGraph {
 public:
  HtaGraph(const EventTable& table, const HtaOptions& options)
      : table_(table),
        options_(options),
        events_(table, options),
        is_blocking_(names_in(table, kBlockingCalls)),
        is_locking_(names_in(table, kLockingCalls)),
        is_launch_(names_in(table, kLaunchCalls)) {
    start_.assign(table.size(), kNoNode);
    end_.assign(table.size(), kNoNode);
  }

  HtaPath build() {
    HtaPath path;
    if (!events_.found) return path;
    add_nodes();
    if (options_.runtime_lock) add_lock_edges();
    add_call_stacks();
    index_launches();
    measure_queues();
    add_gpu_edges();
    path = search();
    path.of_gpu_copy = events_.of_gpu_copy;
    return path;
  }

 private:
  // ---- nodes

  bool is_call_or_op(Row row) const {
    const std::string_view category = table_.category_of(row);
    return category == "cpu_op" || category == "cuda_runtime" || category == "cuda_driver";
  }

  void add_nodes() {
    std::vector<std::tuple<std::int64_t, Row, bool>> points;  // time, event, is it the end
    for (const Row row : events_.clipped) {
      poll_interrupt();
      const bool on_stream = events_.stream[row] != -1 && events_.is_correlated(row);
      if (!is_call_or_op(row) && !on_stream) continue;
      points.emplace_back(events_.ts_us[row], row, false);
      points.emplace_back(events_.end_us[row], row, true);
    }
    std::sort(points.begin(), points.end());
    for (const auto& [time_us, row, is_end] : points) {
      poll_interrupt();
      (is_end ? end_ : start_)[row] = static_cast<Node>(time_us_.size());
      time_us_.push_back(time_us);
      event_.push_back(row);
      is_end_.push_back(is_end);
    }
  }

  void add_edge(Node begin, Node end, HtaEdgeKind kind, bool zero = false) {
    const bool timed = kind != HtaEdgeKind::kDependency && kind != HtaEdgeKind::kSyncDependency;
    const std::int64_t weight = timed && !zero ? time_us_[end] - time_us_[begin] : 0;
    const HtaEdge edge{
        begin, end, weight, kind, bound_of(begin, end, kind), attributed(begin, end, kind)};
    const std::uint64_t key = std::uint64_t{begin} << 32 | end;
    const auto [known, is_new] = edge_of_.emplace(key, edges_.size());
    if (is_new) {
      edges_.push_back(edge);
    } else {
      edges_[known->second] = edge;  // the later one wins, in the place of the first
    }
  }

  Row attributed(Node begin, Node end, HtaEdgeKind kind) const {
    if (kind == HtaEdgeKind::kKernelKernelDelay) return event_[begin];
    if (kind != HtaEdgeKind::kOperatorKernel) return kNoRow;
    if (!is_end_[begin]) return event_[begin];
    return is_end_[end] ? event_[end] : kNoRow;
  }

  HtaBound bound_of(Node begin, Node end, HtaEdgeKind kind) const {
    switch (kind) {
      case HtaEdgeKind::kKernelKernelDelay:
        return HtaBound::kKernelKernel;
      case HtaEdgeKind::kLaunchDelay:
        return HtaBound::kKernelLaunch;
      case HtaEdgeKind::kDependency:
      case HtaEdgeKind::kSyncDependency:
        return HtaBound::kNone;
      case HtaEdgeKind::kOperatorKernel:
        break;
    }
    const Row row = attributed(begin, end, kind);
    if (row == kNoRow || events_.stream[row] < 0) return HtaBound::kCpu;
    const std::string_view name = table_.name_of(row);
    const bool communicates =
        name.starts_with("nccl") && name.find("Kernel") != std::string_view::npos;
    return communicates ? HtaBound::kGpuCommunication : HtaBound::kGpuCompute;
  }

  // ---- host

  bool locks(Node node) const { return is_locking_[table_.name[event_[node]]]; }

  /// Calls that overlap take turns: the order in which they end is that in which they had the lock.
  void add_lock_edges() {
    std::vector<Node> open;
    Node last = kNoNode;
    for (Node node = 0; node < time_us_.size(); ++node) {
      if (!locks(node)) continue;
      if (!is_end_[node]) {
        open.push_back(node);
      } else {
        for (; !open.empty(); open.pop_back()) {
          const bool own = event_[open.back()] == event_[node];
          add_edge(open.back(), node,
                   own ? HtaEdgeKind::kOperatorKernel : HtaEdgeKind::kDependency);
        }
        if (last != kNoNode && is_end_[last]) add_edge(last, node, HtaEdgeKind::kDependency);
      }
      last = node;
    }
  }

  /// Edges between such nodes exist already, but from an end to the next beginning.
  bool share_lock(Node first, Node second) const {
    return options_.runtime_lock && locks(first) && locks(second) &&
           (!is_end_[first] || is_end_[second]);
  }

  /// Its number, if exactly one thread has operators or annotations with the word.
  std::optional<TrackId> only_thread_with(std::string_view word) const {
    std::optional<TrackId> found;
    for (const Row row : events_.clipped) {
      poll_interrupt();
      const std::string_view category = table_.category_of(row);
      if (category != "cpu_op" && category != "user_annotation") continue;
      if (table_.name_of(row).find(word) == std::string_view::npos) continue;
      if (found && table_.tracks[*found].tid != table_.tracks[table_.track[row]].tid) return {};
      found = table_.track[row];
    }
    return found;
  }

  void add_call_stacks() {
    std::vector<std::vector<Row>> threads(table_.tracks.size());
    for (const Row row : events_.clipped) threads[table_.track[row]].push_back(row);
    if (options_.merge_backward) {
      const auto forward = only_thread_with("forward"), backward = only_thread_with("autograd");
      if (forward && backward && forward != backward) {
        auto& rows = threads[*forward];
        rows.insert(rows.end(), threads[*backward].begin(), threads[*backward].end());
        threads[*backward].clear();
      }
    }
    std::vector<TrackId> order(threads.size());
    for (TrackId t = 0; t < order.size(); ++t) order[t] = t;
    std::stable_sort(order.begin(), order.end(), [&](TrackId a, TrackId b) {
      return std::pair(table_.tracks[a].pid_number(), table_.tracks[a].tid_number()) <
             std::pair(table_.tracks[b].pid_number(), table_.tracks[b].tid_number());
    });
    for (const TrackId track : order) add_call_stack(threads[track]);
  }

  /// Only threads without any stream are the host's.
  void add_call_stack(const std::vector<Row>& rows) {
    struct Mark {
      std::int64_t time_us, dur_us;
      Row row;
      bool is_end;
    };
    std::vector<Mark> marks;
    for (const Row row : rows) {
      poll_interrupt();
      if (events_.stream[row] >= 0) return;
      marks.push_back({events_.ts_us[row], events_.dur_us(row), row, false});
      marks.push_back({events_.end_us[row], events_.dur_us(row), row, true});
    }
    std::sort(marks.begin(), marks.end(), [](const Mark& a, const Mark& b) {
      if (a.time_us != b.time_us) return a.time_us < b.time_us;
      if (a.is_end != b.is_end) return a.is_end;
      const bool longer = a.dur_us != b.dur_us ? a.dur_us > b.dur_us : a.row < b.row;
      return longer != a.is_end && a.row != b.row;
    });
    std::vector<Row> stack;
    StackWalk walk;
    for (const Mark& mark : marks) {
      poll_interrupt();
      if (!mark.is_end) {
        stack.push_back(mark.row);
        enter(walk, mark.row);
      } else if (!stack.empty()) {  // whichever event is on top, HTA takes for the one that ends
        leave(walk, stack.back());
        stack.pop_back();
      }
    }
  }

  struct StackWalk {
    Node last = kNoNode, last_top = kNoNode;
    int depth = 0;
  };

  void enter(StackWalk& walk, Row row) {
    if (start_[row] == kNoNode) return;
    if (walk.depth == 0 && walk.last_top != kNoNode) {
      add_edge(walk.last_top, start_[row], HtaEdgeKind::kDependency);
    }
    if (walk.last != kNoNode && !share_lock(walk.last, start_[row])) {
      add_edge(walk.last, start_[row], HtaEdgeKind::kOperatorKernel);
    }
    ++walk.depth;
    walk.last = start_[row];
  }

  void leave(StackWalk& walk, Row row) {
    if (start_[row] == kNoNode) return;
    --walk.depth;
    if (walk.last != kNoNode && !share_lock(walk.last, end_[row])) {
      add_edge(walk.last, end_[row], HtaEdgeKind::kOperatorKernel, is_blocking_[table_.name[row]]);
    }
    walk.last = walk.depth == 0 ? kNoNode : end_[row];
    if (walk.depth == 0) walk.last_top = end_[row];
  }

  // ---- launches and queues, over the whole trace

  bool launches(Row row) const {
    return is_launch_[table_.name[row]] && events_.partner[row] != kNoRow;
  }

  /// Streams of a process on the GPU's side.
  using StreamKey = std::pair<std::string_view, std::int64_t>;
  StreamKey stream_key(Row gpu_row) const {
    return {table_.tracks[table_.track[gpu_row]].pid, events_.stream[gpu_row]};
  }

  void index_launches() {
    for (const Row row : events_.all) {
      poll_interrupt();
      if (!launches(row) || events_.stream[events_.partner[row]] == -1) continue;
      launches_.push_back(row);
    }
    std::stable_sort(launches_.begin(), launches_.end(),
                     [&](Row a, Row b) { return events_.ts_us[a] < events_.ts_us[b]; });
    wait_on_stream_.emplace(table_, "wait_on_stream");
    wait_on_record_.emplace(table_, "wait_on_cuda_event_record_corr_id");
    for (const Row row : launches_) {
      poll_interrupt();
      const Row work = events_.partner[row];
      by_stream_[stream_key(work)].push_back(row);
      by_thread_[{table_.track[row], events_.stream[work]}].push_back(row);
    }
    has_records_ = table_.strings.find("cudaEventRecord") != kNoString;
    for (const Row row : events_.all) {
      poll_interrupt();
      if (events_.is_named(row, "cudaEventRecord")) records_.emplace(events_.correlation(row), row);
    }
  }

  /// Events launched and not yet begun, by stream, at each launch and each beginning. Of changes in
  /// the same microsecond the launch comes first here; HTA leaves their order to an unstable sort.
  void measure_queues() {
    struct Change {
      std::int64_t time_us;
      Row row;
      int change;
    };
    queue_length_.assign(table_.size(), std::numeric_limits<int>::min());
    std::map<std::int64_t, std::vector<Change>> changes;
    for (const Row row : launches_) {
      poll_interrupt();
      changes[events_.stream[events_.partner[row]]].push_back({events_.ts_us[row], row, 1});
    }
    for (const Row row : events_.all) {
      poll_interrupt();
      if (events_.stream[row] == -1 || events_.partner[row] == kNoRow) continue;
      if (!launches(events_.partner[row])) continue;
      changes[events_.stream[row]].push_back({events_.ts_us[row], row, -1});
    }
    for (auto& [stream, list] : changes) {
      std::stable_sort(list.begin(), list.end(),
                       [](const Change& a, const Change& b) { return a.time_us < b.time_us; });
      int length = 0;
      for (const Change& change : list) queue_length_[change.row] = length += change.change;
    }
  }

  /// The last launch on the stream before the event was recorded.
  Row launch_before_record(Row sync_row) const {
    const auto id = wait_on_record_->integer(sync_row);
    const auto stream = wait_on_stream_->integer(sync_row);
    if (!id || !stream || *stream < 0) return kNoRow;
    const auto record = records_.find(*id);
    if (record == records_.end()) return kNoRow;
    const StreamKey key{table_.tracks[table_.track[sync_row]].pid, *stream};
    const auto launches = by_stream_.find(key);
    if (launches == by_stream_.end()) return kNoRow;
    const std::int64_t recorded_us = events_.ts_us[record->second];
    const auto after =
        std::partition_point(launches->second.begin(), launches->second.end(),
                             [&](Row row) { return events_.ts_us[row] <= recorded_us; });
    return after == launches->second.begin() ? kNoRow : *(after - 1);
  }

  /// The next launch on the waiting stream by the thread that made it wait.
  Row launch_after_wait(Row call, std::int64_t stream) const {
    const auto launches = by_thread_.find({table_.track[call], stream});
    if (launches == by_thread_.end()) return kNoRow;
    const auto next =
        std::partition_point(launches->second.begin(), launches->second.end(),
                             [&](Row row) { return events_.ts_us[row] < events_.ts_us[call]; });
    return next == launches->second.end() ? kNoRow : *next;
  }

  // ---- GPU

  void add_gpu_edges() {
    std::vector<std::pair<std::int64_t, Row>> order;
    for (const Row row : events_.clipped) {
      poll_interrupt();
      const bool syncs_host =
          events_.is_named(row, "Event Sync") || events_.is_named(row, "Context Sync");
      if ((events_.stream[row] == -1 && !syncs_host) || !events_.is_correlated(row)) continue;
      const bool is_sync = table_.category_of(row) == "cuda_sync";
      order.emplace_back(is_sync ? events_.end_us[row] : events_.ts_us[row], row);
    }
    std::stable_sort(order.begin(), order.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [time_us, row] : order) {
      poll_interrupt();
      if (table_.category_of(row) == "cuda_sync") {
        add_sync_edges(row);
      } else if (start_[row] != kNoNode) {
        add_kernel_edges(row);
      }
    }
  }

  void add_sync_edges(Row sync_row) {
    const bool waits = events_.is_named(sync_row, "Stream Wait Event");
    const Row call = events_.partner[sync_row];
    if (waits || events_.is_named(sync_row, "Event Sync")) {
      const Row launch = has_records_ ? launch_before_record(sync_row) : kNoRow;
      if (launch == kNoRow) return;
      if (!waits) return add_host_sync(end_[events_.partner[launch]], call);
      if (call == kNoRow) return;
      const Row next = launch_after_wait(call, events_.stream[sync_row]);
      if (next != kNoRow) waits_for_[events_.partner[next]] = events_.partner[launch];
    } else if (events_.is_named(sync_row, "Context Sync")) {
      for (const auto& [stream, node] : last_on_) add_host_sync(node, call);
    } else if (const auto last = last_on_.find(events_.stream[sync_row]); last != last_on_.end()) {
      add_host_sync(last->second, call);
    }
  }

  void add_host_sync(Node gpu_end, Row call) {
    if (gpu_end == kNoNode || call == kNoRow || end_[call] == kNoNode) return;
    add_edge(gpu_end, end_[call], HtaEdgeKind::kSyncDependency);
  }

  void add_kernel_edges(Row row) {
    add_edge(start_[row], end_[row], HtaEdgeKind::kOperatorKernel);
    const Row call = events_.partner[row];
    Node awaited = kNoNode;
    if (const auto wait = waits_for_.find(row); wait != waits_for_.end()) {
      awaited = end_[wait->second];
      if (awaited != kNoNode) add_edge(awaited, start_[row], HtaEdgeKind::kSyncDependency);
      waits_for_.erase(wait);
    }
    const auto found = last_on_.find(events_.stream[row]);
    const Node last = found == last_on_.end() ? kNoNode : found->second;
    const bool has_call = call != kNoRow && start_[call] != kNoNode;
    const bool launched_idle = has_call && queue_length_[call] == 1 && queue_length_[row] == 0 &&
                               ends_before(last, events_.ts_us[call]) &&
                               ends_before(awaited, events_.ts_us[call]);
    if (launched_idle) {
      add_edge(start_[call], start_[row], HtaEdgeKind::kLaunchDelay);
    } else if (last != kNoNode && follows(row, last) && ends_before(awaited, time_us_[last])) {
      add_edge(last, start_[row], HtaEdgeKind::kKernelKernelDelay);
    }
    if (options_.zero_weight_launch_edges && !launched_idle && has_call) {
      add_edge(start_[call], start_[row], HtaEdgeKind::kLaunchDelay, true);
    }
    last_on_[events_.stream[row]] = end_[row];
  }

  bool ends_before(Node node, std::int64_t time_us) const {
    return node == kNoNode || time_us_[node] < time_us;
  }
  bool follows(Row row, Node last) const {
    return !options_.limit_kernel_gaps || events_.ts_us[row] - time_us_[last] < kKernelGapLimitUs;
  }

  // ---- search

  HtaPath search() {
    HtaPath path;
    std::vector<WeightedEdge> weighted;
    for (const HtaEdge& edge : edges_) {
      poll_interrupt();
      weighted.push_back({edge.begin, edge.end, std::max<std::int64_t>(0, edge.weight_us)});
      ++path.edges_of_kind[static_cast<std::size_t>(edge.kind)];
    }
    const LongestPath longest =
        find_longest_path(static_cast<std::uint32_t>(time_us_.size()), weighted);
    path.found = longest.is_acyclic && !longest.nodes.empty();
    path.nodes = count_nodes();
    path.edges = static_cast<std::uint32_t>(edges_.size());
    path.path_nodes = longest.nodes;
    std::vector<Row> rows;
    for (std::size_t i = 0; i < longest.nodes.size(); ++i) {
      poll_interrupt();
      rows.push_back(event_[longest.nodes[i]]);
      if (i == 0) continue;
      const std::uint64_t key = std::uint64_t{longest.nodes[i - 1]} << 32 | longest.nodes[i];
      path.path_edges.push_back(edges_[edge_of_.at(key)]);
      path.duration_us += path.path_edges.back().weight_us;
    }
    std::sort(rows.begin(), rows.end());
    path.path_events =
        static_cast<std::uint32_t>(std::unique(rows.begin(), rows.end()) - rows.begin());
    path.node_us = std::move(time_us_);
    return path;
  }

  /// Nodes without an edge are not in HTA's graph.
  std::uint32_t count_nodes() const {
    std::vector<bool> named(time_us_.size());
    for (const HtaEdge& edge : edges_) named[edge.begin] = named[edge.end] = true;
    return static_cast<std::uint32_t>(std::count(named.begin(), named.end(), true));
  }

  const EventTable& table_;
  const HtaOptions& options_;
  HtaEvents events_;
  std::vector<bool> is_blocking_, is_locking_, is_launch_;  ///< by string
  std::vector<Node> start_, end_;                           ///< by row
  std::vector<std::int64_t> time_us_;                       ///< by node
  std::vector<Row> event_;
  std::vector<bool> is_end_;
  std::vector<HtaEdge> edges_;
  std::unordered_map<std::uint64_t, std::size_t> edge_of_;
  std::vector<Row> launches_;                                               ///< by time
  std::map<StreamKey, std::vector<Row>> by_stream_;                         ///< launches
  std::map<std::pair<TrackId, std::int64_t>, std::vector<Row>> by_thread_;  ///< and stream
  std::optional<ArgReader> wait_on_stream_, wait_on_record_;
  std::unordered_map<std::int64_t, Row> records_;  ///< cudaEventRecord by correlation id
  bool has_records_ = false;
  std::vector<int> queue_length_;           ///< by row
  std::map<std::int64_t, Node> last_on_;    ///< by stream
  std::unordered_map<Row, Row> waits_for_;  ///< GPU work -> work of another stream
};

}  // namespace

std::string_view hta_edge_kind_name(HtaEdgeKind kind) {
  static constexpr std::array<std::string_view, kHtaEdgeKindCount> kNames{
      "critical_path_operator", "critical_path_dependency", "critical_path_kernel_launch_delay",
      "critical_path_kernel_kernel_delay", "critical_path_sync_dependency"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string_view hta_bound_name(HtaBound bound) {
  static constexpr std::array<std::string_view, kHtaBoundCount> kNames{
      "",
      "cpu_bound",
      "gpu_compute_bound",
      "gpu_communication_bound",
      "gpu_kernel_kernel_overhead",
      "gpu_kernel_launch_overhead"};
  return kNames[static_cast<std::size_t>(bound)];
}

HtaPath find_hta_path(const EventTable& table, const HtaOptions& options) {
  return HtaGraph(table, options).build();
}

}  // namespace traceap
