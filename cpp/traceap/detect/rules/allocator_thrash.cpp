// Device memory is allocated from or given back to the driver in steady state, where the caching
// allocator should serve everything from its pool.

#include "traceap/detect/queries/allocator.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

constexpr SavingShares kSaving{.basis = SavingBasis::kIdle};

struct Calls {
  std::vector<Row> rows;
  std::int64_t mallocs = 0, frees = 0;
};

std::vector<Row> allocator_rows(const Signals& signals) {
  std::vector<Row> rows;
  for (Row r : signals.api_rows) {
    if (is_allocator_call(signals.api(r))) rows.push_back(r);
  }
  return rows;
}

Calls calls_from(const Signals& signals, const std::vector<Row>& rows, std::int64_t begin_ns) {
  Calls calls;
  for (Row r : rows) {
    if (signals.table.ts_ns[r] < begin_ns) continue;
    calls.rows.push_back(r);
    ++(gives_memory_back(signals.api(r)) ? calls.frees : calls.mallocs);
  }
  return calls;
}

Finding detect(const Signals& signals) {
  if (!signals.has_gpu) return abstain({"GPU events"});
  if (signals.api_rows.empty()) return abstain({"runtime calls"});
  const std::vector<Row> rows = allocator_rows(signals);
  if (rows.empty() || !uncached_allocator_calls(signals).empty()) return absent();
  const WarmUp& warm_up = signals.tree.warm_up;
  const Calls calls =
      calls_from(signals, rows, warm_up.known ? warm_up.end_ns : signals.profiled.start_ns);

  Draft draft(kSaving);
  std::vector<Interval> stalls;
  for (Row r : calls.rows) stalls.push_back(stall_window(signals, interval_of(signals.table, r)));
  draft.cost = unexplained_idle_inside(signals, std::move(stalls));
  draft.evidence = calls.rows;
  if (calls.mallocs > 0) draft.count("mallocs", calls.mallocs);
  if (calls.frees > 0) draft.count("frees", calls.frees);
  if (!warm_up.by_steps) draft.confidence = 0.7;  // pools may still grow
  Finding finding = finish_finding(signals, std::move(draft));
  if (!warm_up.known && finding.verdict == Verdict::kPresent) {
    // A program that runs once allocates as it goes: growth of the pool, or thrash?
    return abstain({"steps, or a loop that repeats its kernels: where warm-up ends"});
  }
  return finding;
}

}  // namespace

namespace rules {
extern constexpr Rule allocator_thrash{
    .type = "allocator_thrash", .saving = kSaving, .detect = detect};
}

}  // namespace traceap
