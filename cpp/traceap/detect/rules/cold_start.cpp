// First-call costs inside the profiled time: code is loaded, compiled, memory pools grow, handles
// are made. They say nothing about steady state, and a profile should leave them out.

#include <algorithm>

#include "traceap/base/interrupt.hpp"
#include "traceap/detect/queries/compile.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

constexpr SavingShares kSaving{.basis = SavingBasis::kIdle};

/// A launch takes some microseconds; the first one of a kernel loads its code (lazy loading since
/// CUDA 11.7), which takes milliseconds. In between lies no other reason with an idle GPU.
constexpr std::int64_t kSlowLaunchNs = 1'000'000;

struct Costs {
  std::vector<Row> rows;
  std::vector<std::int64_t> weights;  ///< by row: how long it lasts
  std::vector<Interval> intervals;
  std::vector<std::string> kinds;

  void add(const Signals& signals, Row row, std::string_view kind) {
    add(signals, row, kind, interval_of(signals.table, row));
  }
  void add(const Signals& signals, Row row, std::string_view kind, Interval host) {
    add_idle(row, kind, signals.on_gpu_clock(host));
  }
  void add_idle(Row row, std::string_view kind, Interval interval) {
    rows.push_back(row);
    weights.push_back(interval.length_ns());
    intervals.push_back(interval);
    add_kind(kind);
  }
  void add_kind(std::string_view kind) {
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.emplace_back(kind);
  }
};

/// The profiler marks the driver's loading of code as overhead ("Lazy Function Loading", "Runtime
/// Triggered Module Loading").
void add_loading(const Signals& signals, Costs& costs) {
  const EventTable& table = signals.table;
  const LazyNames loading(table, [](std::string_view name) { return contains(name, "Loading"); });
  for (Row r = 0; r < table.size(); ++r) {
    poll_interrupt();
    if (table.kind[r] == EventKind::kOverhead && table.is_complete(r) && loading(r)) {
      costs.add(signals, r, "loading of modules");
    }
  }
}

void add_calls(const Signals& signals, Costs& costs) {
  for (Row r : signals.api_rows) {
    const ApiClass api = signals.api(r);
    if (api == ApiClass::kCodeLoading) {
      costs.add(signals, r, "loading of modules");
    } else if (api == ApiClass::kSetup) {
      costs.add(signals, r, "creation of streams and handles");
    }
  }
}

/// Recordings of graphs, and instantiations and uploads of others, but for those that go on in call
/// after call (graph_recapture).
void add_graphs(const Signals& signals, Costs& costs) {
  constexpr std::string_view kKind = "recording of CUDA graphs";
  const GraphCaptures captures = find_graph_captures(signals);
  for (const GraphCapture& capture : captures.first) {
    costs.add(signals, capture.begin, kKind, capture.host);
  }
  std::vector<Interval> again;
  for (const GraphCapture& capture : captures.again) again.push_back(capture.host);
  const IntervalSet elsewhere = make_union(std::move(again));
  for (Row r : signals.api_rows) {
    if (signals.api(r) != ApiClass::kGraphBuilding) continue;
    const Interval call = interval_of(signals.table, r);
    if (covered_ns(elsewhere, call) == 0) costs.add(signals, r, kKind);
  }
}

/// Operators whose first call generated or loaded code (idle causes say which).
void add_first_calls(const Signals& signals, Costs& costs) {
  for (const IdleInterval& idle : signals.idle.intervals) {
    const Row row = idle.explained_by;
    if (idle.cause != IdleCause::kCompilation || row == kNoRow) continue;
    if (signals.table.kind[row] != EventKind::kCpuOp || is_compile_range(signals, row)) continue;
    costs.add_idle(row, "first calls of operators", idle.interval);
  }
}

/// First launch of each kernel name, if it is slow.
void add_slow_first_launches(const Signals& signals, Costs& costs) {
  const EventTable& table = signals.table;
  std::vector<std::uint8_t> seen(table.strings.size(), 0);
  for (Row r : signals.tree.linked_gpu_rows) {
    if (seen[table.name[r]] != 0) continue;
    seen[table.name[r]] = 1;
    const Row launch = signals.tree.launch[r];
    if (launch == kNoRow || table.dur_ns[launch] < kSlowLaunchNs) continue;
    if (is_launch(signals.api(launch))) costs.add(signals, launch, "first launches of kernels");
  }
}

/// Growth of the pools in warm-up; in a program that runs once all of it.
void add_allocations(const Signals& signals, Costs& costs) {
  const WarmUp& warm_up = signals.tree.warm_up;
  for (Row r : signals.api_rows) {
    if (warm_up.known && signals.table.ts_ns[r] >= warm_up.end_ns) return;
    if (is_allocator_call(signals.api(r))) costs.add(signals, r, "allocation of memory");
  }
}

Finding detect(const Signals& signals) {
  if (!signals.has_gpu) return abstain({"GPU events"});
  if (signals.api_rows.empty()) return abstain({"runtime calls"});
  Costs costs;
  add_loading(signals, costs);
  add_calls(signals, costs);
  add_slow_first_launches(signals, costs);
  add_allocations(signals, costs);
  add_graphs(signals, costs);
  add_first_calls(signals, costs);
  for (Row r : find_compile_ranges(signals).first) {
    costs.add(signals, r, compile_kind(signals.table.name_of(r)));
  }
  if (costs.rows.empty()) return absent();

  Draft draft(kSaving);
  draft.cost = idle_inside(signals, std::move(costs.intervals));
  draft.evidence = std::move(costs.rows);
  draft.evidence_weights = std::move(costs.weights);
  std::sort(costs.kinds.begin(), costs.kinds.end());
  std::string kinds;
  for (const std::string& kind : costs.kinds) kinds += (kinds.empty() ? "" : ", ") + kind;
  draft.text("kinds", kinds);
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule cold_start{.type = "cold_start", .saving = kSaving, .detect = detect};
}

}  // namespace traceap
