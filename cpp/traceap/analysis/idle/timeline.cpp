#include "traceap/analysis/idle/timeline.hpp"

#include <algorithm>
#include <iterator>
#include <span>

#include "traceap/base/interrupt.hpp"

namespace traceap {
namespace {

/// The members of `set` that reach into `bounds`.
std::span<const Interval> members_in(const IntervalSet& set, Interval bounds) {
  const auto first = std::partition_point(
      set.begin(), set.end(), [&](const Interval& i) { return i.end_ns <= bounds.start_ns; });
  const auto last = std::partition_point(
      first, set.end(), [&](const Interval& i) { return i.start_ns < bounds.end_ns; });
  return {first, last};
}

std::int64_t overlap_ns(const Interval& a, const Interval& b, Interval bounds) {
  const std::int64_t start = std::max({a.start_ns, b.start_ns, bounds.start_ns});
  const std::int64_t end = std::min({a.end_ns, b.end_ns, bounds.end_ns});
  return std::max<std::int64_t>(0, end - start);
}

/// Length of the intersection of a and b inside `bounds`.
std::int64_t common_ns(const IntervalSet& a, const IntervalSet& b, Interval bounds) {
  const auto in_a = members_in(a, bounds), in_b = members_in(b, bounds);
  std::int64_t total = 0;
  for (std::size_t i = 0, j = 0; i < in_a.size() && j < in_b.size();) {
    poll_interrupt();
    total += overlap_ns(in_a[i], in_b[j], bounds);
    if (in_a[i].end_ns < in_b[j].end_ns) {
      ++i;
    } else {
      ++j;
    }
  }
  return total;
}

void leave_out(GpuIntervals& gpu, const IntervalSet& not_judged) {
  if (not_judged.empty()) return;
  for (IntervalSet* set : {&gpu.busy, &gpu.compute, &gpu.communication, &gpu.memcpy}) {
    *set = set_difference(*set, not_judged);
  }
  gpu.not_judged = not_judged;
}

/// Unions of `rows`, which stand in order of start.
GpuIntervals unite(const EventTable& table, const EventTree& tree, std::span<const Row> rows,
                   bool keep_not_judged = false) {
  std::vector<Interval> busy, compute, communication, memcpy;
  GpuIntervals gpu;
  busy.reserve(rows.size());
  for (const Row r : rows) {
    poll_interrupt();
    const Interval interval{table.ts_ns[r], table.end_ns(r)};
    const bool first = busy.empty();
    gpu.span.start_ns = first ? interval.start_ns : std::min(gpu.span.start_ns, interval.start_ns);
    gpu.span.end_ns = first ? interval.end_ns : std::max(gpu.span.end_ns, interval.end_ns);
    busy.push_back(interval);
    switch (tree.gpu_class[r]) {
      case GpuClass::kCommunication:
        communication.push_back(interval);
        break;
      case GpuClass::kMemcpy:
        memcpy.push_back(interval);
        break;
      default:
        compute.push_back(interval);
        break;
    }
  }
  gpu.busy = make_union(std::move(busy));
  gpu.compute = make_union(std::move(compute));
  gpu.communication = make_union(std::move(communication));
  gpu.memcpy = make_union(std::move(memcpy));
  if (!keep_not_judged) leave_out(gpu, tree.recording.not_judged);
  return gpu;
}

const std::vector<Row>& rows_of(const EventTree& tree, bool linked_only) {
  return linked_only ? tree.linked_gpu_rows : tree.gpu_rows;
}

}  // namespace

GpuIntervals build_gpu_intervals(const EventTable& table, const EventTree& tree,
                                 const TimelineOptions& options) {
  const std::vector<Row>& rows = rows_of(tree, options.linked_only);
  if (options.device < 0) return unite(table, tree, rows, options.keep_not_judged);
  std::vector<Row> chosen;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(chosen),
               [&](Row r) { return table.device[r] == options.device; });
  return unite(table, tree, chosen, options.keep_not_judged);
}

std::vector<DeviceTimeline> compute_device_timelines(const EventTable& table, const EventTree& tree,
                                                     bool linked_only) {
  std::vector<Row> rows = rows_of(tree, linked_only);
  std::stable_sort(rows.begin(), rows.end(),
                   [&](Row a, Row b) { return table.device[a] < table.device[b]; });
  std::vector<DeviceTimeline> result;
  for (auto begin = rows.begin(); begin != rows.end();) {
    const std::int32_t device = table.device[*begin];
    const auto end =
        std::find_if(begin, rows.end(), [&](Row r) { return table.device[r] != device; });
    result.push_back({device, compute_timeline(unite(table, tree, {begin, end}))});
    begin = end;
  }
  return result;
}

Timeline compute_timeline(const GpuIntervals& gpu) {
  if (gpu.span.length_ns() > 0) return compute_timeline(gpu, gpu.span);
  if (gpu.busy.empty()) return {};
  return compute_timeline(gpu, {gpu.busy.front().start_ns, gpu.busy.back().end_ns});
}

Timeline compute_timeline(const GpuIntervals& gpu, Interval bounds) {
  Timeline t;
  if (bounds.end_ns <= bounds.start_ns) return t;
  t.span_ns = bounds.length_ns() - covered_ns(gpu.not_judged, bounds);
  t.busy_ns = covered_ns(gpu.busy, bounds);
  t.idle_ns = t.span_ns - t.busy_ns;
  t.compute_ns = covered_ns(gpu.compute, bounds);
  t.communication_ns = covered_ns(gpu.communication, bounds);
  t.memcpy_ns = covered_ns(gpu.memcpy, bounds);
  t.exposed_communication_ns =
      t.communication_ns - common_ns(gpu.compute, gpu.communication, bounds);
  // U(memcpy) - U(compute) - U(communication) is what the other two leave of U(all).
  t.exposed_memcpy_ns = t.busy_ns - t.compute_ns - t.exposed_communication_ns;
  return t;
}

Timeline operator+(const Timeline& a, const Timeline& b) {
  return {a.span_ns + b.span_ns,
          a.busy_ns + b.busy_ns,
          a.idle_ns + b.idle_ns,
          a.compute_ns + b.compute_ns,
          a.communication_ns + b.communication_ns,
          a.memcpy_ns + b.memcpy_ns,
          a.exposed_communication_ns + b.exposed_communication_ns,
          a.exposed_memcpy_ns + b.exposed_memcpy_ns};
}

}  // namespace traceap
