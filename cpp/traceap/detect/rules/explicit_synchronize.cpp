// torch.cuda.synchronize(), stream.synchronize() or event.synchronize() in the program itself.

#include "traceap/detect/queries/ranges.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

constexpr SavingShares kSaving{.basis = SavingBasis::kIdle};

/// Waits that the program asked for, with GPU work on both sides: the profiler itself waits for the
/// device before it starts and after it stops.
std::vector<Row> find_calls(const Signals& signals) {
  const EventTable& table = signals.table;
  const auto inside = rows_inside_operators(signals);
  const auto launching = launching_tracks(signals);
  std::vector<Row> calls;
  for (Row r : signals.api_rows) {
    if (!is_synchronisation(signals.api(r)) || inside[r] != 0 || launching[table.track[r]] == 0)
      continue;
    const Interval call = signals.on_gpu_clock(interval_of(table, r));
    const bool work_before = table.ts_ns[signals.tree.gpu_rows.front()] < call.start_ns;
    const bool work_after = first_row_from(table, signals.tree.gpu_rows, call.end_ns) != kNoRow;
    if (work_before && work_after) calls.push_back(r);
  }
  return calls;
}

Finding detect(const Signals& signals) {
  if (!signals.has_gpu) return abstain({"GPU events"});
  if (signals.api_rows.empty()) return abstain({"runtime calls"});
  if (!signals.has_operators) {
    // Without operators nothing tells the program's own waits from those inside operators.
    return abstain({"host operators"});
  }
  std::vector<Interval> copies;  // a wait behind a copy call is the copy's
  for (const Copy& copy : signals.copies) {
    if (copy.sync != kNoRow) copies.push_back(interval_of(signals.table, copy.sync));
  }
  const CoverIndex copy_syncs(make_union(std::move(copies)));
  Draft draft(kSaving);
  std::vector<Interval> stalls, holds;
  for (Row r : find_calls(signals)) {
    const Interval call = interval_of(signals.table, r);
    if (copy_syncs.covered_ns(call) == call.length_ns() && call.length_ns() > 0) continue;
    stalls.push_back(stall_window(signals, call));
    holds.push_back(call);
    draft.evidence.push_back(r);
  }
  if (stalls.empty()) return absent();
  const std::size_t stalls_found = stalls.size();
  draft.cost = unexplained_idle_inside(signals, std::move(stalls));
  if (stalls_found == 1) {
    draft.confidence = 0.6;  // once: a measurement's end rather than a loop's
  } else {
    draft.cost = with_lost_lead(signals, std::move(draft.cost), std::move(holds));
  }
  draft.count("calls", draft.evidence.size());
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule explicit_synchronize{
    .type = "explicit_synchronize", .saving = kSaving, .detect = detect};
}

}  // namespace traceap
