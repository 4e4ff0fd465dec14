// Hundreds of small constants go to the device in every step: tensors built from Python numbers.
//
// Pinning would not help them: each costs its call, and the wait until the queue has run dry.
// Cost: the copies where no kernel covers them, and GPU idle time while the host sits in their
// calls; where a call held the host until the copy was done, its whole stall.

#include "traceap/base/sums.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/ranges.hpp"
#include "traceap/detect/queries/small_uploads.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// Constants that stay on the device vanish with their waits; those that change in every step go up
/// in one copy. The idle time then is what the host still needs for its launches.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdleOrExposed, .low = 0.2, .best = 0.7};

/// Host time that counts if the GPU idles in it.
Interval waiting_window(const Signals& signals, const Copy& copy) {
  const Interval call = signals.on_gpu_clock(copy.host);
  const bool held = copy.sync != kNoRow || call.end_ns >= signals.table.end_ns(copy.row);
  return held ? stall_window(signals, copy.host) : call;
}

/// What the program called to make the copy: aten::to rather than aten::copy_.
std::vector<Row> calling_operators(const Signals& signals, const std::vector<const Copy*>& copies) {
  const EventTable& table = signals.table;
  const LazyNames is_aten(table, [](std::string_view name) { return name.starts_with("aten::"); });
  const std::vector<Row> outermost = outermost_ranges(
      signals, [&](Row r) { return table.kind[r] == EventKind::kCpuOp && is_aten(r); });
  std::vector<Row> operators;
  for (const Copy* copy : copies) {
    if (outermost[copy->launch] != kNoRow) operators.push_back(outermost[copy->launch]);
  }
  return operators;
}

Finding detect(const Signals& signals) {
  if (!signals.has_gpu) return abstain({"GPU events"});
  if (signals.api_rows.empty()) return abstain({"runtime calls"});
  const auto [copies, sizes_missing] = find_small_uploads(signals);
  if (sizes_missing) return abstain({"sizes of the copies"});
  if (copies.empty()) return absent();
  Draft draft(kSaving);
  std::vector<Interval> copied, waiting, calls;
  std::int64_t bytes = 0;
  for (const Copy* copy : copies) {
    copied.push_back(interval_of(signals.table, copy->row));
    waiting.push_back(waiting_window(signals, *copy));
    calls.push_back(copy->host);
    draft.evidence.push_back(copy->row);
    add_to(bytes, *copy->bytes);
  }
  draft.cost = set_union(set_difference(make_union(std::move(copied)), signals.gpu.compute),
                         unexplained_idle_inside(signals, std::move(waiting)));
  draft.cost = with_lost_lead(signals, std::move(draft.cost), std::move(calls));
  draft.count("copies", copies.size());
  add_per_step_fact(signals, draft, "per step", copies.size());
  draft.bytes("bytes", bytes);
  const std::vector<Row> operators = calling_operators(signals, copies);
  if (!operators.empty()) {
    draft.text("operations", most_frequent_names(signals.table, operators, 2));
  } else {
    draft.missing_signals.emplace_back("host operators: what makes the copies");
    draft.confidence = 0.7;  // a batch in many small tensors looks the same
  }
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule small_copies{
    .type = "small_copies", .claim = Claim::kSpecific, .saving = kSaving, .detect = detect};
}

}  // namespace traceap
