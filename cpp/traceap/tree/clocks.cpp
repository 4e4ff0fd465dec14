// Do the host's and the GPU's clocks agree?
//
// Note [Clock offset]: a GPU event can't start before its launch call does, so delays (start of the
// event minus start of the call) below zero prove that the GPU's clock is behind. Delays far above
// what a launch takes may be a clock that is ahead, or a queue that was full all the time
// (recording that begins in mid-run finds tens of milliseconds of work queued). The two differ
// where the device was idle: with an empty queue the event starts as soon as the launch reaches the
// device, so under an offset the delays behind idle gaps gather at the smallest delay of all; work
// that was queued has delays that depend on the work before it. A call that waits for the whole
// device settles it too: it returns when the last work ends, by agreeing clocks; most such calls
// must (a few do by chance). Without such evidence delays stay as they are.

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "traceap/base/interrupt.hpp"
#include "traceap/tree/build_parts.hpp"

namespace traceap {

namespace {

// Fewer delays than this say nothing about the clocks.
constexpr std::size_t kMinDelays = 8;
// One delay in so many may be wrong (a reused id, a bad time stamp) without being believed.
constexpr std::size_t kDelaysPerOutlier = 100;
// Times of traces before 2023 are whole microseconds: start and call may be off by one.
constexpr std::int64_t kResolutionNs = 1'000;
// The corpus' smallest launch delays are 2 to 25 us, on every GPU; no launch needs a millisecond.
constexpr std::int64_t kImplausibleDelayNs = 1'000'000;
// What the smallest delay becomes by the correction: a usual launch (7 us on V100, 5 us on H100).
constexpr std::int64_t kUsualDelayNs = 5'000;
// The device is idle, not merely between two queued kernels (1 to 20 us in the corpus).
constexpr std::int64_t kIdleGapNs = 25'000;
// Behind an idle gap, delays of an empty queue gather this close to the smallest of all, or to a
// part of it where that is more: a larger offset was measured less exactly.
constexpr std::int64_t kGatherNs = 50'000;
constexpr std::int64_t kGatherPart = 50;
// A waiting call returns this soon after the work it waited for.
constexpr std::uint64_t kReturnNs = 200'000;

struct Delays {
  std::vector<std::int64_t> all;
  std::vector<std::int64_t> behind_idle;  ///< of events that found their device idle
};

Delays collect_delays(const EventTable& table, const EventTree& tree) {
  Delays delays;
  std::vector<std::int64_t> device_end(tree.streams.size(), kNoId);
  std::vector<std::uint32_t> device_of(tree.streams.size());  // streams are sorted by device
  for (std::uint32_t i = 1; i < tree.streams.size(); ++i) {
    device_of[i] = tree.streams[i].device == tree.streams[i - 1].device ? device_of[i - 1] : i;
  }
  for (const Row row : tree.gpu_rows) {
    poll_interrupt();
    std::int64_t& end_ns = device_end[device_of[tree.stream_of[row]]];
    const std::int64_t start_ns = table.ts_ns[row];
    const bool was_idle = end_ns != kNoId && start_ns > end_ns && start_ns - end_ns >= kIdleGapNs;
    end_ns = std::max(end_ns, table.end_ns(row));
    if (tree.launch[row] == kNoRow) continue;
    delays.all.push_back(start_ns - table.ts_ns[tree.launch[row]]);
    if (was_idle) delays.behind_idle.push_back(delays.all.back());
  }
  return delays;
}

/// The smallest delay but for outliers.
std::int64_t low_delay(std::vector<std::int64_t> delays) {
  const auto at = delays.begin() + static_cast<std::ptrdiff_t>(delays.size() / kDelaysPerOutlier);
  std::nth_element(delays.begin(), at, delays.end());
  return *at;
}

bool gather_at(const std::vector<std::int64_t>& behind_idle, std::int64_t smallest) {
  const std::int64_t most = smallest + std::max(kGatherNs, smallest / kGatherPart);
  const auto near = static_cast<std::size_t>(std::count_if(
      behind_idle.begin(), behind_idle.end(), [&](std::int64_t delay) { return delay <= most; }));
  return near >= kMinDelays && 2 * near >= behind_idle.size();
}

std::uint64_t distance(std::int64_t a, std::int64_t b) {
  const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
  return a > b ? x - y : y - x;
}

/// Do calls that waited for the device return just as the last work launched before them ends, most
/// of them? Only asked where all work is one device's.
bool waits_agree(const TreeContext& context, const EventTree& tree) {
  if (tree.streams.empty() || tree.streams.front().device != tree.streams.back().device) {
    return false;
  }
  const EventTable& table = context.table;
  std::int64_t last_end_ns = kNoId;
  std::size_t agree = 0, disagree = 0;
  for (Row row = 0; row < table.size(); ++row) {
    poll_interrupt();
    for (const Row gpu_row : tree.launched_by(row)) {
      last_end_ns = std::max(last_end_ns, table.end_ns(gpu_row));
    }
    const bool waits = tree.api[row] == ApiClass::kDeviceSync && table.is_complete(row);
    if (!waits || last_end_ns <= table.ts_ns[row]) continue;  // nothing to wait for
    ++(distance(table.end_ns(row), last_end_ns) <= kReturnNs ? agree : disagree);
  }
  return agree > disagree;
}

std::string in_us(std::int64_t ns) { return std::to_string(ns / 1000) + " us"; }

void correct(EventTree& tree, std::int64_t smallest) {
  // Clocks with origins of their own may be decades apart; more leaves no room for differences.
  tree.launch_delay_correction_ns = std::clamp(kUsualDelayNs - smallest, -kMaxTimeNs, kMaxTimeNs);
  tree.diagnostics.add("clock_offset",
                       "Host and GPU clocks disagree: GPU work starts " + in_us(smallest) +
                           " after its launch call at the earliest, where a launch takes about " +
                           in_us(kUsualDelayNs) + ". Launch delays are shifted by " +
                           in_us(tree.launch_delay_correction_ns) + ".");
}

void report_full_queue(EventTree& tree, std::int64_t smallest, bool agree) {
  tree.diagnostics.add(
      "launch_delay_floor",
      "No GPU event starts less than " + in_us(smallest) + " after its launch call. " +
          (agree ? "A call that waits for the device returns as the last work ends, so the clocks "
                   "agree and this much work was queued throughout."
                 : "Work queued throughout explains it as well as clocks that disagree; the trace "
                   "can't tell, and launch delays stay as recorded."));
}

}  // namespace

void compare_clocks(const TreeContext& context, EventTree& tree) {
  const Delays delays = collect_delays(context.table, tree);
  if (delays.all.size() < kMinDelays) return;
  const std::int64_t low = low_delay(delays.all);
  if (low < -kResolutionNs) return correct(tree, low);
  if (low <= kImplausibleDelayNs) return;
  const bool agree = waits_agree(context, tree);
  if (!agree && gather_at(delays.behind_idle, low)) return correct(tree, low);
  report_full_queue(tree, low, agree);
}

}  // namespace traceap
