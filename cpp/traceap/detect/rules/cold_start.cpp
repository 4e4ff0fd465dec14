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
    intervals.push_back(signals.on_gpu_clock(host));
    name(row, kind, host.length_ns());
  }
  /// A row as evidence; what it costs is added apart.
  void name(Row row, std::string_view kind, std::int64_t weight_ns) {
    rows.push_back(row);
    weights.push_back(weight_ns);
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

/// What is compiled, or recorded, anew: other rules have it.
IntervalSet find_repeats(const Signals& signals) {
  std::vector<Interval> repeats;
  for (Row r : find_compile_ranges(signals).again) {
    repeats.push_back(signals.on_gpu_clock(interval_of(signals.table, r)));
  }
  for (const GraphCapture& capture : find_graph_captures(signals).again) {
    repeats.push_back(signals.on_gpu_clock(capture.host));
  }
  return make_union(std::move(repeats));
}

/// A convolution synchronises to time algorithms, in steady state for each new shape.
bool tunes_in_steady_state(const Signals& signals, Row row) {
  const WarmUp& warm_up = signals.tree.warm_up;
  return is_synchronisation(signals.api(row)) && warm_up.known &&
         signals.table.ts_ns[row] >= warm_up.end_ns;
}

std::string_view first_call_kind(const Signals& signals, Row row) {
  switch (signals.table.kind[row]) {
    case EventKind::kCpuOp:
      return "first calls of operators";
    case EventKind::kRuntime:
    case EventKind::kDriver:
      return "first calls of the runtime";
    default:
      return "loading of modules";
  }
}

/// What the idle causes take for compilation: operators and API calls whose first call generated or
/// loaded code or started the context. What was added before keeps its name.
void add_first_calls(const Signals& signals, Costs& costs) {
  const IntervalSet repeats = find_repeats(signals);
  const CoverIndex repeated(repeats);
  std::vector<Row> named = costs.rows;
  std::sort(named.begin(), named.end());
  std::vector<Interval> found;
  for (const IdleInterval& idle : signals.idle.intervals) {
    const Row row = idle.explained_by;
    if (idle.cause != IdleCause::kCompilation || row == kNoRow) continue;
    const std::int64_t once_ns = idle.interval.length_ns() - repeated.covered_ns(idle.interval);
    if (once_ns == 0 || tunes_in_steady_state(signals, row)) continue;
    found.push_back(idle.interval);
    if (is_compile_range(signals, row)) continue;
    if (std::binary_search(named.begin(), named.end(), row)) continue;
    costs.name(row, first_call_kind(signals, row), once_ns);
  }
  const IntervalSet once = set_difference(make_union(std::move(found)), repeats);
  costs.intervals.insert(costs.intervals.end(), once.begin(), once.end());
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

/// Growth of the pools in warm-up; in a program that runs once, until memory is first given back:
/// from then on the pools have been full (allocator_thrash).
void add_allocations(const Signals& signals, Costs& costs) {
  const WarmUp& warm_up = signals.tree.warm_up;
  for (Row r : signals.api_rows) {
    if (warm_up.known && signals.table.ts_ns[r] >= warm_up.end_ns) return;
    if (!warm_up.known && gives_memory_back(signals.api(r))) return;
    if (is_allocator_call(signals.api(r))) costs.add(signals, r, "allocation of memory");
  }
}

/// Could first calls hide in what the host did? Only operators tell them from others.
bool is_open_without_operators(const Signals& signals, const IntervalSet& seen) {
  if (signals.has_operators) return false;
  IntervalSet possible = idle_with_cause(signals, {IdleCause::kHostWait});
  std::erase_if(possible, [](const Interval& idle) { return idle.length_ns() < kSlowLaunchNs; });
  return is_material(signals, total_length_ns(set_union(seen, possible)));
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
  for (Row r : find_compile_ranges(signals).first) {
    costs.add(signals, r, compile_kind(signals.table.name_of(r)));
  }
  add_first_calls(signals, costs);
  Draft draft(kSaving);
  draft.cost = idle_inside(signals, std::move(costs.intervals));
  if (!is_material(signals, total_length_ns(draft.cost)) &&
      is_open_without_operators(signals, draft.cost)) {
    return abstain({"host operators"});
  }
  if (costs.rows.empty()) return absent();

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
