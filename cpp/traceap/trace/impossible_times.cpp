// GPU records whose times can't be true.
//
// Note [Impossible times]: profilers write such records where a buffer was lost or a time stamp was
// never filled in. Four kinds can be told without doubt:
//
// - A start of 0 among absolute times: everything else lies many times its own span away from 0.
// - A record outside the trace: farther from the host's first and last event than many times what
//   lies between these. Work that was queued outlasts its host by less, and a device's clock that
//   is off moves most records, not a few.
// - A record over later work of its stream. A stream runs one launch after another, so a record
//   can't outlast the start of a later launch's work. Small overlaps are real (programmatic
//   dependent launch, rounding: below 100 us in 169 public traces) and so are those of one graph's
//   branches, which share a launch. What overlaps by more than a millisecond and takes a hundred
//   times the median of its stream is no kernel that ran.
// - A record that repeats another one of its launch, as where a buffer was written twice: the same
//   name, stream, node of a graph, start and duration, to the nanosecond.
//
// These records stay in the table with their text, but are not complete, as one of negative
// duration: no later stage counts them.

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/intervals.hpp"
#include "traceap/trace/assemble.hpp"

namespace traceap {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kSecondNs = 1'000'000'000;
/// So many spans away from everything else is outside of the trace.
constexpr std::int64_t kSpansAway = 10;
constexpr std::int64_t kOverlapNs = 1'000'000;
constexpr std::int64_t kTimesMedian = 100;
/// If more of the device's records than one in so many lie outside, the clocks disagree instead.
constexpr std::size_t kMostOutside = 5;

/// Products and sums of times that a trace claims stay inside 64 bits.
std::int64_t far_from(std::int64_t span_ns) {
  const std::int64_t most = kMaxTimeNs / kSpansAway;
  return kSecondNs + std::min(span_ns, most) * kSpansAway;
}

struct Extent {
  std::int64_t first_ns = kNever, last_ns = -kNever;
  void add(std::int64_t start_ns, std::int64_t end_ns) {
    first_ns = std::min(first_ns, start_ns);
    last_ns = std::max(last_ns, end_ns);
  }
  bool empty() const { return first_ns > last_ns; }
  std::int64_t span_ns() const { return last_ns - first_ns; }
};

class ImpossibleTimes {
 public:
  explicit ImpossibleTimes(EventTable& table) : table_(table) {
    for (Row row = 0; row < table.size(); ++row) {
      poll_interrupt();
      if (table.is_gpu_event(row)) gpu_rows_.push_back(row);
    }
  }

  void flag_all() {
    if (gpu_rows_.empty()) return;
    flag_zeros();
    flag_outside();
    flag_over_later_work();
    table_.diagnostics.add(
        "impossible_duration",
        "GPU events claim times that can't be true (a start of 0 among absolute times, a time "
        "outside of the trace, one over later work of their own stream, or that of another record "
        "of the same launch); they were left out.",
        flagged_);
  }

 private:
  void flag(Row row) {
    table_.flags[row] |= kImpossible;
    ++flagged_;
  }

  void keep_possible() {
    std::erase_if(gpu_rows_, [&](Row row) { return (table_.flags[row] & kImpossible) != 0; });
  }

  void flag_zeros() {
    const auto is_zero = [&](Row row) { return table_.ts_ns[row] == 0; };
    if (std::none_of(gpu_rows_.begin(), gpu_rows_.end(), is_zero)) return;
    Extent rest;  // by starts: durations may be what is wrong
    for (Row row = 0; row < table_.size(); ++row) {
      poll_interrupt();
      if (!table_.is_complete(row) || is_zero(row)) continue;
      rest.add(table_.ts_ns[row], table_.ts_ns[row]);
    }
    if (rest.empty() || rest.first_ns < far_from(rest.span_ns())) return;
    for (const Row row : gpu_rows_) {
      if (is_zero(row)) flag(row);
    }
    keep_possible();
  }

  void flag_outside() {
    Extent host;
    for (Row row = 0; row < table_.size(); ++row) {
      poll_interrupt();
      if (!is_host(table_.kind[row]) || !table_.is_complete(row)) continue;
      host.add(table_.ts_ns[row], table_.end_ns(row));
    }
    if (host.empty()) return;
    const std::int64_t far_ns = far_from(host.span_ns());
    const auto is_outside = [&](Row row) {
      return table_.ts_ns[row] < add_saturated(host.first_ns, -far_ns) ||
             table_.end_ns(row) > add_saturated(host.last_ns, far_ns);
    };
    std::vector<Row> outside;
    std::copy_if(gpu_rows_.begin(), gpu_rows_.end(), std::back_inserter(outside), is_outside);
    if (outside.size() * kMostOutside > gpu_rows_.size()) return;
    for (const Row row : outside) flag(row);
    keep_possible();
  }

  /// Lines of XLA's "Ops" show operations inside of others: they are no queue.
  bool is_serial(Row row) const {
    const Track& track = table_.tracks[table_.track[row]];
    return table_.stream[row] != kNoId && !track.thread_name.ends_with("Ops");
  }

  void flag_over_later_work() {
    // An annotated graph draws its kernels on a line of its own and names the stream they ran on.
    const ArgReader original_stream(table_, "original_stream");
    // Numbers of devices and streams are a process's own.
    using Queue = std::tuple<std::uint32_t, std::int32_t, std::int64_t>;
    const std::vector<std::uint32_t> process = number_processes(table_.tracks);
    std::vector<std::pair<Queue, Row>> queued;
    for (const Row row : gpu_rows_) {
      poll_interrupt();
      if (!is_serial(row)) continue;
      const std::int64_t stream = original_stream.integer(row).value_or(table_.stream[row]);
      queued.push_back({{process[table_.track[row]], table_.device[row], stream}, row});
    }
    std::sort(queued.begin(), queued.end());
    std::vector<Row> rows;
    for (std::size_t i = 0; i < queued.size(); ++i) {
      rows.push_back(queued[i].second);
      if (i + 1 < queued.size() && queued[i + 1].first == queued[i].first) continue;
      flag_repeated(rows);
      flag_over_later_work(rows);
      rows.clear();
    }
    keep_possible();
  }

  /// Of one stream, by start; erases what it flags.
  void flag_repeated(std::vector<Row>& rows) {
    const auto key = [&](Row row) {
      return std::tuple(table_.ts_ns[row], table_.correlation[row], table_.dur_ns[row],
                        table_.name[row]);
    };
    std::vector<Row> alike(rows);
    std::sort(alike.begin(), alike.end(),
              [&](Row a, Row b) { return std::pair(key(a), a) < std::pair(key(b), b); });
    const ArgReader node(table_, "graph node id");
    for (std::size_t i = 1; i < alike.size(); ++i) {
      poll_interrupt();
      const bool same = is_one_launch(alike[i - 1], alike[i]) &&
                        key(alike[i - 1]) == key(alike[i]) &&
                        node.integer(alike[i - 1]) == node.integer(alike[i]);
      if (same && table_.dur_ns[alike[i]] > 0) flag(alike[i]);
    }
    std::erase_if(rows, [&](Row row) { return (table_.flags[row] & kImpossible) != 0; });
  }

  /// Of one stream, by start.
  void flag_over_later_work(const std::vector<Row>& rows) {
    std::vector<Row> over;
    std::int64_t next_ns = kNever;  // start of the next launch's work
    for (std::size_t i = rows.size(); i-- > 0;) {
      poll_interrupt();
      const bool same_launch = i + 1 < rows.size() && is_one_launch(rows[i], rows[i + 1]);
      if (i + 1 < rows.size() && !same_launch) next_ns = table_.ts_ns[rows[i + 1]];
      if (next_ns == kNever) continue;
      if (table_.end_ns(rows[i]) - next_ns > kOverlapNs) over.push_back(rows[i]);
    }
    if (over.empty()) return;
    std::vector<std::int64_t> durations;
    for (const Row row : rows) durations.push_back(table_.dur_ns[row]);
    // The lower middle, so that of two records the short one is the measure.
    const auto middle = durations.begin() + static_cast<std::ptrdiff_t>((durations.size() - 1) / 2);
    std::nth_element(durations.begin(), middle, durations.end());
    for (const Row row : over) {
      if (table_.dur_ns[row] / kTimesMedian >= *middle) flag(row);
    }
  }

  bool is_one_launch(Row a, Row b) const {
    return table_.correlation[a] != kNoId && table_.correlation[a] == table_.correlation[b];
  }

  EventTable& table_;
  std::vector<Row> gpu_rows_;  ///< by start
  std::uint64_t flagged_ = 0;
};

// Note [Unclosed frames]: the Python tracer closes what is still open when the recording ends.
// Calls whose return it never sees (some of C extensions) are open until then, and would enclose
// all that comes behind. Such a frame begins inside of a range that ends long before it does, and
// ranges or operators begin behind that range, so that the call has returned. The call that ends
// the recording outlasts its range as well, but nothing begins behind. What is named as an unclosed
// frame and ends with the recording is one too, where nothing shows it: in the last step.

/// The unclosed frames of one thread.
class UnclosedFrames {
 public:
  UnclosedFrames(const EventTable& table, const std::vector<Row>& rows)
      : table_(table), rows_(rows) {}

  std::vector<Row> find() {
    for (const Row row : rows_) {
      const EventKind kind = table_.kind[row];
      if (kind == EventKind::kPythonFunction)
        last_end_ns_ = std::max(last_end_ns_, table_.end_ns(row));
      if (kind == EventKind::kUserAnnotation || kind == EventKind::kCpuOp)
        last_range_ns_ = table_.ts_ns[row];
    }
    std::vector<StringId> names;
    std::vector<std::int64_t> open;  // ends of what encloses the current row
    for (const Row row : rows_) {
      poll_interrupt();
      while (!open.empty() && open.back() <= table_.ts_ns[row]) open.pop_back();
      if (ends_with_recording(row)) {
        const bool crosses = !open.empty() && open.back() < last_end_ns_ - kOverlapNs;
        if (crosses && last_range_ns_ >= open.back()) names.push_back(table_.name[row]);
        continue;
      }
      // Of ranges that cross, the one that ends first counts.
      open.push_back(open.empty() ? table_.end_ns(row) : std::min(open.back(), table_.end_ns(row)));
    }
    std::sort(names.begin(), names.end());
    std::vector<Row> unclosed;
    if (names.empty()) return unclosed;
    std::copy_if(rows_.begin(), rows_.end(), std::back_inserter(unclosed), [&](Row row) {
      return ends_with_recording(row) &&
             std::binary_search(names.begin(), names.end(), table_.name[row]);
    });
    return unclosed;
  }

 private:
  bool ends_with_recording(Row row) const {
    return table_.kind[row] == EventKind::kPythonFunction && table_.end_ns(row) == last_end_ns_;
  }

  const EventTable& table_;
  const std::vector<Row>& rows_;  ///< complete host rows by start
  std::int64_t last_end_ns_ = -kNever, last_range_ns_ = -kNever;
};

void flag_unclosed_frames(EventTable& table) {
  const auto is_frame = [](EventKind kind) { return kind == EventKind::kPythonFunction; };
  if (std::none_of(table.kind.begin(), table.kind.end(), is_frame)) return;
  std::vector<std::vector<Row>> by_track(table.tracks.size());
  for (Row row = 0; row < table.size(); ++row) {
    poll_interrupt();
    if (is_host(table.kind[row]) && table.is_complete(row))
      by_track[table.track[row]].push_back(row);
  }
  std::uint64_t count = 0;
  for (const std::vector<Row>& rows : by_track) {
    for (const Row row : UnclosedFrames(table, rows).find()) {
      table.flags[row] |= kImpossible;
      ++count;
    }
  }
  table.diagnostics.add(
      "unclosed_frames",
      "Python frames whose return was not seen end with the recording, over later "
      "ranges of their thread; they were left out.",
      count);
}

}  // namespace

void flag_impossible_times(EventTable& table) {
  flag_unclosed_frames(table);
  ImpossibleTimes(table).flag_all();
}

}  // namespace traceap
