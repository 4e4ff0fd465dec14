// Operators that need a value on the host: .item(), nonzero, boolean masks, small .cpu(). Each
// makes the host wait until the queue is empty; then the GPU waits for the host.

#include <algorithm>

#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/ranges.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

constexpr SavingShares kSaving{.basis = SavingBasis::kIdle};
/// A read of a value or of an index list, rather than of results: the size below which INTERFACE
/// calls copies small constants. Larger ones are high_memcpy's.
constexpr std::int64_t kSmallReadBytes = 64 * 1024;
/// Once is no loop.
constexpr std::size_t kMinRepeats = 2;

/// Operators that read from the device inside, whatever they call to do so.
bool is_reading_operator(std::string_view name) {
  constexpr std::string_view kNames[] = {"aten::item",
                                         "aten::_local_scalar_dense",
                                         "aten::is_nonzero",
                                         "aten::nonzero",
                                         "aten::masked_select",
                                         "aten::_unique2",
                                         "aten::equal",
                                         "aten::unique_dim",
                                         "aten::unique_consecutive",
                                         "aten::repeat_interleave"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

struct Sync {
  Row call;       ///< the API call that blocks, or the copy call
  Interval host;  ///< how long the host was blocked
};

bool blocks_host(const Signals& signals, const Copy& copy) {
  if (copy.sync != kNoRow || copy.kind.memory == HostMemory::kPageable) return true;
  return copy.launch != kNoRow && signals.api(copy.launch) == ApiClass::kCopy;
}

/// Reads of a few bytes. One of unknown size is a value where an operator that reads values makes
/// it; any other could be a result: `unsized` says whether there are such.
void add_small_reads(const Signals& signals, const std::vector<Row>& reading,
                     std::vector<Sync>& syncs, std::vector<Sync>& unsized) {
  for (const Copy& copy : signals.copies) {
    if (copy.kind.direction != CopyDirection::kDeviceToHost || copy.launch == kNoRow) continue;
    if (copy.bytes.value_or(0) > kSmallReadBytes || !blocks_host(signals, copy)) continue;
    const bool small = copy.bytes.has_value() || reading[copy.launch] != kNoRow;
    (small ? syncs : unsized).push_back({copy.sync != kNoRow ? copy.sync : copy.launch, copy.host});
  }
}

/// Synchronise calls in reading operators that belong to no copy (cub calls, events).
void add_bare_syncs(const Signals& signals, const std::vector<Row>& reading,
                    std::vector<Sync>& syncs) {
  std::vector<Row> known;
  for (const Copy& copy : signals.copies) known.push_back(copy.sync);
  std::sort(known.begin(), known.end());
  for (Row r : signals.api_rows) {
    if (!is_synchronisation(signals.api(r)) || reading[r] == kNoRow) continue;
    if (std::binary_search(known.begin(), known.end(), r)) continue;
    syncs.push_back({r, interval_of(signals.table, r)});
  }
}

IntervalSet stalls_of(const Signals& signals, const std::vector<Sync>& syncs) {
  std::vector<Interval> stalls;
  for (const Sync& sync : syncs) stalls.push_back(stall_window(signals, sync.host));
  return unexplained_idle_inside(signals, std::move(stalls));
}

Finding detect(const Signals& signals) {
  if (!signals.has_gpu) return abstain({"GPU events"});
  if (signals.api_rows.empty()) return abstain({"runtime calls"});
  const EventTable& table = signals.table;
  const LazyNames is_reading(table, is_reading_operator);
  const std::vector<Row> reading = outermost_ranges(
      signals, [&](Row r) { return table.kind[r] == EventKind::kCpuOp && is_reading(r); });
  std::vector<Sync> syncs, unsized;
  add_small_reads(signals, reading, syncs, unsized);
  add_bare_syncs(signals, reading, syncs);
  const IntervalSet cost = stalls_of(signals, syncs);
  if (!is_material(signals, total_length_ns(cost)) && unsized.size() >= kMinRepeats) {
    const std::int64_t possible_ns = total_length_ns(set_union(cost, stalls_of(signals, unsized)));
    if (is_material(signals, possible_ns)) return abstain({"sizes of the copies"});
  }
  if (syncs.size() < kMinRepeats) return absent();

  Draft draft(kSaving);
  std::vector<Row> operators;
  const LazyNames is_aten(table,
                          [](std::string_view name) { return name.substr(0, 6) == "aten::"; });
  const std::vector<Row> outermost = outermost_ranges(
      signals, [&](Row r) { return table.kind[r] == EventKind::kCpuOp && is_aten(r); });
  for (const Sync& sync : syncs) {
    const Row op = outermost[sync.call];  // what the program called: aten::to rather than copy_
    draft.evidence.push_back(op != kNoRow ? op : sync.call);
    if (op != kNoRow) operators.push_back(op);
  }
  draft.cost = cost;
  draft.count("syncs", syncs.size());
  add_per_step_fact(signals, draft, "per step", syncs.size());
  if (!operators.empty()) draft.text("operations", most_frequent_names(table, operators, 3));
  if (!signals.has_operators) {
    draft.missing_signals.emplace_back("host operators: which operation reads the value");
    draft.confidence = 0.6;  // the program may need what it reads
  }
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule host_sync_in_loop{
    .type = "host_sync_in_loop", .saving = kSaving, .detect = detect};
}

}  // namespace traceap
