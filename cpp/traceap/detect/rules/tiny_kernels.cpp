// Launch bound: runs of kernels that end before the host can launch the next one.

#include <algorithm>

#include "traceap/base/statistics.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

constexpr SavingShares kSaving{.basis = SavingBasis::kIdle};

/// A launch costs the host 4 to 10 us (6.4 us per launch against 0.58 us per graph node measured in
/// ocannl#488; Python and the profiler come on top): a kernel below that can't hide the next
/// launch.
constexpr std::int64_t kTinyNs = 10'000;
/// HTA's cut-off for a launch call. A longer gap is not the cost of one launch.
constexpr std::int64_t kMaxGapNs = 50'000;
/// A few short kernels in a row occur anywhere.
constexpr std::size_t kMinRun = 10;

struct Gap {
  Interval idle;
  Row kernel;                ///< the one behind the gap
  std::int64_t interval_ns;  ///< from the launch before to this kernel's launch
};

/// By row: the launch before a launch call on the same thread; kNoRow for the first.
std::vector<Row> previous_launches(const Signals& signals) {
  const EventTable& table = signals.table;
  std::vector<Row> last(table.tracks.size(), kNoRow);
  std::vector<Row> previous(table.size(), kNoRow);
  for (Row r : signals.api_rows) {
    if (!is_launch(signals.api(r))) continue;
    previous[r] = last[table.track[r]];
    last[table.track[r]] = r;
  }
  return previous;
}

/// GPU rows that end last so far, in start order, with the idle gap before each.
class GapFinder {
 public:
  explicit GapFinder(const Signals& signals)
      : signals_(signals), previous_launch_(previous_launches(signals)) {}

  /// Runs of at least kMinRun launch-bound gaps, one behind the other.
  std::vector<Gap> find() const {
    std::vector<Gap> all, run;
    const auto flush = [&] {
      if (run.size() >= kMinRun) all.insert(all.end(), run.begin(), run.end());
      run.clear();
    };
    std::int64_t busy_until_ns = kNoId;
    bool tiny_before = false;
    for (Row r : signals_.tree.gpu_rows) {
      const Interval kernel = interval_of(signals_.table, r);
      const bool tiny = kernel.length_ns() < kTinyNs;
      const bool gap_before = busy_until_ns != kNoId && kernel.start_ns > busy_until_ns;
      if (gap_before && tiny && tiny_before && is_launch_bound(r, busy_until_ns)) {
        const Row launch = signals_.tree.launch[r];
        run.push_back(
            {{busy_until_ns, kernel.start_ns},
             r,
             signals_.table.ts_ns[launch] - signals_.table.ts_ns[previous_launch_[launch]]});
      } else if (gap_before || !tiny) {
        flush();
      }
      tiny_before = tiny && (gap_before || tiny_before || busy_until_ns == kNoId);
      busy_until_ns = std::max(busy_until_ns, kernel.end_ns);
    }
    flush();
    return all;
  }

 private:
  /// Was the queue empty when the gap began, and did the host take longer to launch than the kernel
  /// runs?
  bool is_launch_bound(Row kernel, std::int64_t gap_start_ns) const {
    const EventTable& table = signals_.table;
    const Row launch = signals_.tree.launch[kernel];
    if (launch == kNoRow || table.kind[kernel] != EventKind::kKernel) return false;
    if (signals_.api(launch) != ApiClass::kKernelLaunch) return false;
    if (table.ts_ns[kernel] - gap_start_ns > kMaxGapNs) return false;
    if (signals_.on_gpu_clock(interval_of(table, launch)).end_ns < gap_start_ns) return false;
    const Row before = previous_launch_[launch];
    if (before == kNoRow) return false;
    return table.ts_ns[launch] - table.ts_ns[before] > table.dur_ns[kernel];
  }

  const Signals& signals_;
  std::vector<Row> previous_launch_;
};

Finding detect(const Signals& signals) {
  if (!signals.has_gpu) return abstain({"GPU events"});
  if (signals.tree.linked_gpu_rows.empty()) return abstain({"launch calls of GPU events"});
  const std::vector<Gap> gaps = GapFinder(signals).find();
  if (gaps.empty()) return absent();
  Draft draft(kSaving);
  std::vector<std::int64_t> kernel_ns, interval_ns;
  for (const Gap& gap : gaps) {
    draft.cost.push_back(gap.idle);
    draft.evidence.push_back(gap.kernel);
    kernel_ns.push_back(signals.table.dur_ns[gap.kernel]);
    interval_ns.push_back(gap.interval_ns);
  }
  draft.count("kernels", gaps.size());
  // Older traces cut times to whole microseconds: 0 says nothing.
  const std::int64_t median_ns = median_of(kernel_ns);
  if (median_ns > 0) draft.duration("median kernel", median_ns);
  draft.duration("launch interval", median_of(interval_ns));
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule tiny_kernels{
    .type = "tiny_kernels", .claim = Claim::kLeftOver, .saving = kSaving, .detect = detect};
}

}  // namespace traceap
