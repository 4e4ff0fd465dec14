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
  std::vector<Interval> intervals;
  std::vector<std::string> kinds;

  void add(const Signals& signals, Row row, std::string_view kind) {
    rows.push_back(row);
    intervals.push_back(signals.on_gpu_clock(interval_of(signals.table, row)));
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
    } else if (api == ApiClass::kSetup || api == ApiClass::kGraphBuilding) {
      costs.add(signals, r, "creation of streams and handles");
    }
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
  for (Row r : find_compile_ranges(signals).first) costs.add(signals, r, "compilation");
  if (costs.rows.empty()) return absent();

  Draft draft(kSaving);
  draft.cost = idle_inside(signals, std::move(costs.intervals));
  draft.evidence = std::move(costs.rows);
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
