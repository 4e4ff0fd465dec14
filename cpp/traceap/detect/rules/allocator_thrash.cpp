// Device memory is allocated from or given back to the driver in steady state, where the caching
// allocator should serve everything from its pool. Where the run computes on the host, operators
// that allocate and take long: the system maps memory for them, or they wait for its lock.

#include <algorithm>
#include <iterator>
#include <optional>

#include "traceap/detect/queries/allocator.hpp"
#include "traceap/detect/queries/host_work.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

constexpr SavingShares kSaving{.basis = SavingBasis::kIdle};

/// The C library serves an allocation from memory that it holds in less than a microsecond, and the
/// profiler's own row costs one or two: what takes this long went to the system.
constexpr std::int64_t kSlowAllocationNs = 20'000;

bool is_allocating_operator(std::string_view name) {
  return is_any(name, {"aten::empty", "aten::empty_strided", "aten::resize_"});
}

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

/// Are kernels missing, by whose repetition a loop without steps is known?
bool lacks_kernels(const Signals& signals) {
  const auto& notes = signals.tree.recording.notes;
  return lacks_records(signals) ||
         std::any_of(notes.begin(), notes.end(), [](const RecordingNote& note) {
           return note.fault == RecordingFault::kImpossibleDuration;
         });
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

/// Without a loop that shows where warm-up ends: when memory is first given back and then taken
/// again. From there on the pools have been full once.
std::optional<std::int64_t> first_refill(const Signals& signals, const std::vector<Row>& rows) {
  std::optional<std::int64_t> given_back_ns;
  for (Row r : rows) {
    if (gives_memory_back(signals.api(r))) {
      if (!given_back_ns) given_back_ns = signals.table.ts_ns[r];
    } else if (given_back_ns) {
      return given_back_ns;
    }
  }
  return std::nullopt;
}

/// What the system takes to hand out fresh pages when they are first written is in the operator
/// that writes them, and can't be told from its own work.
Finding detect_on_host(const Signals& signals) {
  const WarmUp& warm_up = signals.tree.warm_up;
  if (!warm_up.known) {
    return abstain({"steps, or a loop that repeats its kernels: where warm-up ends"});
  }
  const EventTable& table = signals.table;
  const std::vector<std::uint8_t> awaited = awaited_tracks(signals);
  const LazyNames allocating(table, is_allocating_operator);
  Draft draft(kSaving);
  std::copy_if(signals.tree.host_rows.begin(), signals.tree.host_rows.end(),
               std::back_inserter(draft.evidence), [&](Row r) {
                 return table.kind[r] == EventKind::kCpuOp && allocating(r) &&
                        awaited[table.track[r]] != 0 && table.dur_ns[r] >= kSlowAllocationNs &&
                        table.ts_ns[r] >= warm_up.end_ns;
               });
  if (draft.evidence.empty()) return absent();
  draft.cost = intervals_of(signals, draft.evidence);
  draft.count("mallocs", draft.evidence.size());
  draft.missing_signals.emplace_back("what first writes to fresh memory cost");
  draft.confidence = 0.7;  // a thread that was put aside takes long, too
  return finish_finding(signals, std::move(draft));
}

Finding detect(const Signals& signals) {
  if (signals.on_host) return detect_on_host(signals);
  if (!signals.has_gpu) return abstain({"GPU events"});
  if (signals.api_rows.empty()) return abstain({"runtime calls"});
  const std::vector<Row> rows = allocator_rows(signals);
  if (rows.empty() || !uncached_allocator_calls(signals).empty()) return absent();
  const WarmUp& warm_up = signals.tree.warm_up;
  const std::optional<std::int64_t> full_ns =
      warm_up.known ? warm_up.end_ns : first_refill(signals, rows);
  const Calls calls = calls_from(signals, rows, full_ns.value_or(signals.profiled.start_ns));

  Draft draft(kSaving);
  std::vector<Interval> stalls;
  for (Row r : calls.rows) stalls.push_back(stall_window(signals, interval_of(signals.table, r)));
  draft.cost =
      with_lost_lead(signals, unexplained_idle_inside(signals, std::move(stalls)), calls.rows);
  draft.evidence = calls.rows;
  if (calls.mallocs > 0) draft.count("mallocs", calls.mallocs);
  if (calls.frees > 0) draft.count("frees", calls.frees);
  if (!warm_up.by_steps) draft.confidence = 0.7;  // pools may still grow
  Finding finding = finish_finding(signals, std::move(draft));
  const bool unsure = !full_ns || (!warm_up.by_steps && lacks_kernels(signals));
  if (unsure && finding.verdict == Verdict::kPresent) {
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
