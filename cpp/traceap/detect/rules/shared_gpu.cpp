// The GPU stops for a time slice again and again although work is queued: another process has it.
//
// Cost: the gaps. The trace shows no other process, only what it leaves behind: gaps of one length,
// before which and after which the same stream works, with nothing to wait for between them.

#include <algorithm>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/statistics.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// If the other process gives the GPU up, all of it comes back; if it has to run, nothing.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdle};
/// A few gaps may have any cause; a neighbour takes its turn all the time.
constexpr std::size_t kMinGaps = 10;
/// Of them so many are of the middle eight tenths.
constexpr std::size_t kMinRegular = 8;
/// Time slices have one length, and a neighbour's kernels much the same one: the gaps that hold the
/// middle eight tenths of their time are at most this many times as long as the shortest of them.
/// By time, since a few short gaps of another cause are found on a device of one's own, too.
constexpr double kMaxSpread = 3.0;

bool is_host_function(std::string_view name) { return contains(name, "HostFunc"); }

/// Idle intervals that begin and end on one stream while its next work is queued.
class GapFinder {
 public:
  explicit GapFinder(const Signals& signals) : signals_(signals) {
    const LazyNames host_function(signals.table, is_host_function);
    for (Row r : signals.api_rows) {
      poll_interrupt();
      const ApiClass api = signals.api(r);
      const bool lost = starts_gpu_work(api) && signals.tree.launched_by(r).empty();
      if (lost || api == ApiClass::kStreamWaitEvent || host_function(r)) holding_.push_back(r);
    }
  }

  std::vector<IdleInterval> find() const {
    std::vector<IdleInterval> gaps;
    for (const IdleInterval& idle : signals_.idle.intervals) {
      poll_interrupt();
      if (idle.cause != IdleCause::kUnknown || idle.next_gpu_row == kNoRow) continue;
      const Row before = previous_on_stream(idle.next_gpu_row);
      if (before != kNoRow && waits_for_nothing(idle, before)) gaps.push_back(idle);
    }
    return gaps;
  }

 private:
  Row previous_on_stream(Row gpu_row) const {
    const std::vector<Row>& rows = signals_.tree.streams[signals_.tree.stream_of[gpu_row]].rows;
    const auto it = std::lower_bound(rows.begin(), rows.end(), gpu_row, [&](Row a, Row b) {
      const std::int64_t start_a = signals_.table.ts_ns[a], start_b = signals_.table.ts_ns[b];
      return start_a != start_b ? start_a < start_b : a < b;
    });
    return it == rows.begin() || it == rows.end() ? kNoRow : *std::prev(it);
  }

  bool waits_for_nothing(const IdleInterval& idle, Row before) const {
    const EventTable& table = signals_.table;
    const EventTree& tree = signals_.tree;
    const Row next = idle.next_gpu_row;
    const Row launch = tree.launch[next], launch_before = tree.launch[before];
    if (launch == kNoRow || launch_before == kNoRow) return false;
    // One that waits itself is `communication_wait`.
    if (tree.gpu_class[before] == GpuClass::kCommunication) return false;
    const std::int64_t queued_ns = signals_.on_gpu_clock(interval_of(table, launch)).end_ns;
    return queued_ns <= idle.interval.start_ns && nothing_between(launch_before, launch);
  }

  bool nothing_between(Row launch_before, Row launch) const {
    const auto next = std::upper_bound(holding_.begin(), holding_.end(), launch_before);
    return next == holding_.end() || *next >= launch;
  }

  const Signals& signals_;
  /// Calls that could hold a stream back, or whose work was lost, by start.
  std::vector<Row> holding_;
};

/// The length below which the gaps hold this share of their time; `lengths_ns` ascend.
std::int64_t length_at(const std::vector<std::int64_t>& lengths_ns, double share) {
  double total_ns = 0.0, so_far_ns = 0.0;
  for (std::int64_t length : lengths_ns) total_ns += static_cast<double>(length);
  for (std::int64_t length : lengths_ns) {
    so_far_ns += static_cast<double>(length);
    if (so_far_ns >= share * total_ns) return length;
  }
  return lengths_ns.back();
}

bool are_regular(std::vector<std::int64_t> lengths_ns) {
  std::sort(lengths_ns.begin(), lengths_ns.end());
  const std::int64_t shortest = length_at(lengths_ns, 0.1), longest = length_at(lengths_ns, 0.9);
  const auto among = [&](std::int64_t length) { return shortest <= length && length <= longest; };
  const auto count = std::count_if(lengths_ns.begin(), lengths_ns.end(), among);
  return static_cast<double>(longest) <= kMaxSpread * static_cast<double>(shortest) &&
         static_cast<std::size_t>(count) >= kMinRegular;
}

Finding detect(const Signals& signals) {
  if (!signals.has_gpu) return abstain({"GPU events"});
  if (signals.tree.linked_gpu_rows.empty()) {
    if (!is_material(signals, total_length_ns(signals.gpu_idle))) return absent();
    return abstain({"launch calls of GPU events"});
  }
  Draft draft(kSaving);
  std::vector<std::int64_t> lengths_ns;
  for (const IdleInterval& gap : GapFinder(signals).find()) {
    draft.cost.push_back(gap.interval);
    draft.evidence.push_back(gap.next_gpu_row);
    draft.evidence_weights.push_back(gap.interval.length_ns());
    lengths_ns.push_back(gap.interval.length_ns());
  }
  if (lengths_ns.size() < kMinGaps) return absent();
  draft.confidence = 0.6;  // the other process is not in the trace
  draft.missing_signals.emplace_back("other processes on the GPU");
  draft.count("gaps", lengths_ns.size());
  const bool regular = are_regular(lengths_ns);
  draft.duration("median gap", median_of(lengths_ns));
  Finding finding = finish_finding(signals, std::move(draft));
  if (regular || finding.verdict != Verdict::kPresent) return finding;
  return abstain({"other processes on the GPU"});
}

}  // namespace

namespace rules {
extern constexpr Rule shared_gpu{
    .type = "shared_gpu", .claim = Claim::kSpecific, .saving = kSaving, .detect = detect};
}

}  // namespace traceap
