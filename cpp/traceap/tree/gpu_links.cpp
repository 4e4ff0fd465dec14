// GPU events to the API calls that launched them, by correlation id.
//
// Note [Which call]: one call carries an id as a rule. Where a runtime call and the driver call
// inside it carry the same one, or an id came back (merged traces, wrap-around), calls that put
// work on the GPU by name win over others; of these the one that starts last without starting after
// the GPU event, which is the innermost; if all start after it (clocks that disagree), the first.

#include <algorithm>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/offsets.hpp"
#include "traceap/tree/build_parts.hpp"
#include "traceap/tree/id_index.hpp"

namespace traceap {

namespace {

/// API calls by correlation id, those that put work on the GPU apart from the rest.
class CallIndex {
 public:
  explicit CallIndex(const TreeContext& context, const EventTree& tree) : table_(context.table) {
    std::vector<IdRow> launching, others;
    for (Row row = 0; row < table_.size(); ++row) {
      poll_interrupt();
      if (!is_api_call(table_.kind[row]) || tree.host_position[row] == kNoRow) continue;
      if (table_.correlation[row] == kNoId) continue;
      auto& calls = starts_gpu_work(tree.api[row]) ? launching : others;
      calls.push_back({table_.correlation[row], row});
    }
    launching_ = IdIndex(std::move(launching));
    others_ = IdIndex(std::move(others));
  }

  /// See Note [Which call]; kNoRow if no call carries the id of `gpu_row`.
  Row find(Row gpu_row, std::uint64_t& ambiguous) const {
    const std::int64_t id = table_.correlation[gpu_row];
    std::span<const Row> calls = launching_.find(id);
    if (calls.empty()) calls = others_.find(id);
    if (calls.empty()) return kNoRow;
    if (calls.size() == 1) return calls.front();
    ++ambiguous;
    const std::int64_t start_ns = table_.ts_ns[gpu_row];
    const auto after = std::partition_point(
        calls.begin(), calls.end(), [&](Row call) { return table_.ts_ns[call] <= start_ns; });
    return after == calls.begin() ? calls.front() : *(after - 1);
  }

 private:
  const EventTable& table_;
  IdIndex launching_, others_;
};

void report_links(const EventTree& tree, std::uint64_t ambiguous, Diagnostics& diagnostics) {
  diagnostics.add("orphan_gpu_events",
                  "GPU events have no launch call in the trace: recording began or ended between "
                  "the call and the work, or the calls were not recorded.",
                  tree.gpu_rows.size() - tree.linked_gpu_rows.size());
  diagnostics.add("ambiguous_correlations",
                  "GPU events carry a correlation id that several API calls carry; the innermost "
                  "launching call before the work was taken.",
                  ambiguous);
}

}  // namespace

void link_by_correlation(const TreeContext& context, EventTree& tree) {
  const EventTable& table = context.table;
  const CallIndex calls(context, tree);
  tree.launch.assign(table.size(), kNoRow);
  tree.linked_gpu_rows.reserve(tree.gpu_rows.size());
  std::uint64_t ambiguous = 0;
  for (const Row row : tree.gpu_rows) {
    poll_interrupt();
    if (table.correlation[row] == kNoId) continue;
    const Row call = calls.find(row, ambiguous);
    if (call == kNoRow) continue;
    tree.launch[row] = call;
    tree.linked_gpu_rows.push_back(row);
  }
  report_links(tree, ambiguous, tree.diagnostics);
}

void invert_launches(const TreeContext& context, EventTree& tree) {
  CountingSort by_call(context.table.size());
  for (const Row row : tree.gpu_rows) {
    poll_interrupt();
    if (tree.launch[row] != kNoRow) by_call.count(tree.launch[row]);
  }
  tree.launched_rows.resize(by_call.start_placing());
  for (const Row row : tree.gpu_rows) {
    poll_interrupt();
    if (tree.launch[row] != kNoRow) tree.launched_rows[by_call.place(tree.launch[row])] = row;
  }
  tree.launched_offsets = by_call.take_offsets();
  std::uint64_t graph_launches = 0;
  for (Row row = 0; row < context.table.size(); ++row) {
    poll_interrupt();
    graph_launches += tree.launched_by(row).size() > 1;
  }
  tree.diagnostics.add(
      "graph_launches",
      "API calls own several GPU events, as replays of CUDA or HIP graphs do; all of "
      "them count as launched by that call.",
      graph_launches);
}

}  // namespace traceap
