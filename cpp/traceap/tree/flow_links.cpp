// GPU events that carry no correlation id at all, linked by flow arrows.
//
// Note [Flows]: a flow starts (ph s) on the call's track at the call's start and ends (ph f) on the
// GPU event's track at its start; both carry the same `id`. Categories: ac2g, async_cpu_to_gpu, and
// async before 2022. Ids from 2^40 on join kernels of one graph with each other (torch.profiler,
// 2026): no launches. A flow never makes an event "linked" in INTERFACE's sense.

#include <algorithm>

#include "traceap/base/interrupt.hpp"
#include "traceap/tree/build_parts.hpp"
#include "traceap/tree/flows.hpp"
#include "traceap/tree/id_index.hpp"

namespace traceap {

namespace {

constexpr std::int64_t kFirstKernelToKernelId = std::int64_t{1} << 40;

/// A place on a track: where a flow starts or ends, or an event that starts there.
struct Anchor {
  TrackId track;
  std::int64_t ts_ns;
  Row row;
};

bool by_place(const Anchor& a, const Anchor& b) {
  if (a.track != b.track) return a.track < b.track;
  if (a.ts_ns != b.ts_ns) return a.ts_ns < b.ts_ns;
  return a.row < b.row;
}

class AnchorList {
 public:
  void add(const EventTable& table, Row row) {
    anchors_.push_back({table.track[row], table.ts_ns[row], row});
  }
  void sort() { std::sort(anchors_.begin(), anchors_.end(), by_place); }

  /// The first row that starts on the same track at the same time as `row`.
  Row find(const EventTable& table, Row row) const {
    const Anchor wanted{table.track[row], table.ts_ns[row], 0};
    const auto found = std::lower_bound(anchors_.begin(), anchors_.end(), wanted, by_place);
    if (found == anchors_.end() || found->track != wanted.track || found->ts_ns != wanted.ts_ns) {
      return kNoRow;
    }
    return found->row;
  }

 private:
  std::vector<Anchor> anchors_;
};

bool has_unnumbered_gpu_event(const EventTable& table, const EventTree& tree) {
  return std::any_of(tree.gpu_rows.begin(), tree.gpu_rows.end(),
                     [&](Row row) { return table.correlation[row] == kNoId; });
}

class FlowLinker {
 public:
  FlowLinker(const TreeContext& context, const EventTree& tree) : table_(context.table) {
    for (const Row row : tree.gpu_rows) {
      poll_interrupt();
      if (table_.correlation[row] == kNoId) gpu_events_.add(table_, row);
    }
    for (const Row row : tree.host_rows) {
      poll_interrupt();
      if (is_api_call(table_.kind[row])) calls_.add(table_, row);
    }
    gpu_events_.sort();
    calls_.sort();
  }

  std::uint64_t link(EventTree& tree) {
    const IdIndex starts = index_starts();
    std::uint64_t linked = 0;
    for (Row row = 0; row < table_.size(); ++row) {
      poll_interrupt();
      if (!is_launch_flow(row, 'f')) continue;
      const Row gpu_row = gpu_events_.find(table_, row);
      if (gpu_row == kNoRow || tree.launch[gpu_row] != kNoRow) continue;
      const auto id = launch_flow_id(row);
      if (!id || starts.find(*id).empty()) continue;
      tree.launch[gpu_row] = starts.find(*id).front();
      ++linked;
    }
    return linked;
  }

 private:
  bool is_launch_flow(Row row, char phase) const {
    return table_.phase[row] == phase && table_.kind[row] == EventKind::kFlow &&
           is_launch_category(table_.category_of(row));
  }

  std::optional<std::int64_t> launch_flow_id(Row row) const {
    const auto id = flow_id(table_, row);
    return id && *id < kFirstKernelToKernelId ? id : std::nullopt;
  }

  /// API calls by the id of the flow that starts with them.
  IdIndex index_starts() const {
    std::vector<IdRow> starts;
    for (Row row = 0; row < table_.size(); ++row) {
      poll_interrupt();
      if (!is_launch_flow(row, 's')) continue;
      const Row call = calls_.find(table_, row);
      const auto id = call == kNoRow ? std::nullopt : launch_flow_id(row);
      if (id) starts.push_back({*id, call});
    }
    return IdIndex(std::move(starts));
  }

  const EventTable& table_;
  AnchorList gpu_events_, calls_;
};

}  // namespace

void link_by_flows(const TreeContext& context, EventTree& tree) {
  if (!has_unnumbered_gpu_event(context.table, tree)) return;
  const std::uint64_t linked = FlowLinker(context, tree).link(tree);
  tree.diagnostics.add("gpu_events_linked_by_flow",
                       "GPU events without a correlation id were linked to their call by a flow "
                       "arrow; they still count as orphans.",
                       linked);
}

}  // namespace traceap
