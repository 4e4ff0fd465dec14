#include "traceap/analysis/costs/launches.hpp"

#include <algorithm>
#include <tuple>

#include "traceap/base/interrupt.hpp"

namespace traceap {
namespace {

/// A launch call's work on one stream: from its start to that of its first event there.
struct Entry {
  Row call;
  std::int64_t enters_ns;
  std::int64_t leaves_ns;
  Row first;
};

struct Change {
  std::int64_t time_ns;
  bool leaves;
  Row row;
  std::uint32_t entry;

  bool operator<(const Change& other) const {
    return std::tie(time_ns, leaves, row) < std::tie(other.time_ns, other.leaves, other.row);
  }
};

std::int64_t shifted(std::int64_t time_ns, std::int64_t by_ns) {
  std::int64_t result;
  return __builtin_add_overflow(time_ns, by_ns, &result) ? time_ns : result;
}

/// Indices into tree.gpu_rows of the linked events of one stream, those of a call together, by
/// start within.
std::vector<std::uint32_t> by_call(const EventTree& tree, std::vector<std::uint32_t> events) {
  const auto launch_of = [&](std::uint32_t i) { return tree.launch[tree.gpu_rows[i]]; };
  std::erase_if(events, [&](std::uint32_t i) { return launch_of(i) == kNoRow; });
  std::stable_sort(events.begin(), events.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return launch_of(a) < launch_of(b); });
  return events;
}

void append_stream(const EventTable& table, const EventTree& tree,
                   const std::vector<std::uint32_t>& events, LaunchQueue& queue) {
  std::vector<Entry> entries;
  std::vector<std::uint32_t> entry_of;
  for (const std::uint32_t i : events) {
    poll_interrupt();
    const Row row = tree.gpu_rows[i], call = tree.launch[row];
    if (entries.empty() || entries.back().call != call) {
      const std::int64_t start_ns = shifted(table.ts_ns[row], tree.launch_delay_correction_ns);
      entries.push_back({call, table.ts_ns[call], std::max(start_ns, table.ts_ns[call]), row});
    }
    entry_of.push_back(static_cast<std::uint32_t>(entries.size() - 1));
  }
  std::vector<Change> changes;
  changes.reserve(2 * entries.size());
  for (std::uint32_t i = 0; i < entries.size(); ++i) {
    poll_interrupt();
    changes.push_back({entries[i].enters_ns, false, entries[i].call, i});
    changes.push_back({entries[i].leaves_ns, true, entries[i].first, i});
  }
  std::sort(changes.begin(), changes.end());
  std::vector<std::int32_t> found(entries.size());
  std::int32_t length = 0;
  for (const Change& change : changes) {
    poll_interrupt();
    if (!change.leaves) found[change.entry] = length;
    length += change.leaves ? -1 : 1;
    queue.time_ns.push_back(change.time_ns);
    queue.length.push_back(length);
    queue.row.push_back(change.row);
  }
  for (std::size_t i = 0; i < events.size(); ++i) queue.found[events[i]] = found[entry_of[i]];
}

}  // namespace

LaunchQueue build_launch_queue(const EventTable& table, const EventTree& tree) {
  LaunchQueue queue;
  queue.found.assign(tree.gpu_rows.size(), -1);
  std::vector<std::vector<std::uint32_t>> events(tree.streams.size());
  for (std::uint32_t i = 0; i < tree.gpu_rows.size(); ++i) {
    poll_interrupt();
    events[tree.stream_of[tree.gpu_rows[i]]].push_back(i);
  }
  queue.offsets.push_back(0);
  for (auto& of_stream : events) {
    append_stream(table, tree, by_call(tree, std::move(of_stream)), queue);
    queue.offsets.push_back(static_cast<std::uint32_t>(queue.length.size()));
  }
  return queue;
}

}  // namespace traceap
