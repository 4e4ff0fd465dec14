#include "traceap/detect/queries/value_reads.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "traceap/detect/finding.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/ranges.hpp"
#include "traceap/detect/queries/stalls.hpp"

namespace traceap {
namespace {

/// A read of a value or of an index list, rather than of results: the size below which INTERFACE
/// calls copies small constants. Larger ones are high_memcpy's.
constexpr std::int64_t kSmallReadBytes = 64 * 1024;

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

bool blocks_host(const Signals& signals, const Copy& copy) {
  if (copy.sync != kNoRow || copy.kind.memory == HostMemory::kPageable) return true;
  return copy.launch != kNoRow && signals.api(copy.launch) == ApiClass::kCopy;
}

/// Reads of a few bytes. One of unknown size is a value where an operator that reads values makes
/// it; any other could be a result: `unsized` says whether there are such.
void add_small_reads(const Signals& signals, const std::vector<Row>& reading,
                     std::vector<ValueRead>& syncs, std::vector<ValueRead>& unsized) {
  for (const Copy& copy : signals.copies) {
    if (copy.kind.direction != CopyDirection::kDeviceToHost || copy.launch == kNoRow) continue;
    if (copy.bytes.value_or(0) > kSmallReadBytes || !blocks_host(signals, copy)) continue;
    const bool small = copy.bytes.has_value() || reading[copy.launch] != kNoRow;
    (small ? syncs : unsized).push_back({copy.sync != kNoRow ? copy.sync : copy.launch, copy.host});
  }
}

/// Synchronise calls in reading operators that belong to no copy (cub calls, events).
void add_bare_syncs(const Signals& signals, const std::vector<Row>& reading,
                    std::vector<ValueRead>& syncs) {
  std::vector<Row> known;
  for (const Copy& copy : signals.copies) known.push_back(copy.sync);
  std::sort(known.begin(), known.end());
  for (Row r : signals.api_rows) {
    if (!is_synchronisation(signals.api(r)) || reading[r] == kNoRow) continue;
    if (std::binary_search(known.begin(), known.end(), r)) continue;
    syncs.push_back({r, interval_of(signals.table, r)});
  }
}

}  // namespace

ValueReads find_value_reads(const Signals& signals) {
  const EventTable& table = signals.table;
  const LazyNames is_reading(table, is_reading_operator);
  const std::vector<Row> reading = outermost_ranges(
      signals, [&](Row r) { return table.kind[r] == EventKind::kCpuOp && is_reading(r); });
  ValueReads found;
  add_small_reads(signals, reading, found.reads, found.unsized);
  add_bare_syncs(signals, reading, found.reads);
  return found;
}

ReadCost cost_of_reads(const Signals& signals, const std::vector<ValueRead>& reads) {
  std::vector<Interval> stalls, holds;
  for (const ValueRead& read : reads) {
    holds.push_back(read.host);
    stalls.push_back(stall_window(signals, read.host));
  }
  ReadCost cost{.stalls = unexplained_idle_inside(signals, std::move(stalls))};
  cost.late = set_difference(with_lost_lead(signals, cost.stalls, std::move(holds)), cost.stalls);
  const std::optional<std::int64_t> usual_ns = usual_gap_ns(signals, cost.stalls, cost.late);
  cost.usual_gap_ns = usual_ns.value_or(0);
  cost.gap_lost = !usual_ns && lacks_records(signals);
  return cost;
}

}  // namespace traceap
