#include "traceap/base/intervals.hpp"

#include <algorithm>

#include "traceap/base/interrupt.hpp"

namespace traceap {

IntervalSet make_union(std::vector<Interval> intervals) {
  const auto by_start = [](const Interval& a, const Interval& b) {
    return a.start_ns < b.start_ns;
  };
  if (!std::is_sorted(intervals.begin(), intervals.end(), by_start)) {
    std::sort(intervals.begin(), intervals.end(), by_start);
  }
  std::size_t out = 0;
  for (const Interval& next : intervals) {
    if (next.end_ns <= next.start_ns) continue;
    if (out > 0 && next.start_ns <= intervals[out - 1].end_ns) {
      intervals[out - 1].end_ns = std::max(intervals[out - 1].end_ns, next.end_ns);
    } else {
      intervals[out++] = next;
    }
  }
  intervals.resize(out);
  return intervals;
}

IntervalSet set_union(std::span<const Interval> a, std::span<const Interval> b) {
  std::vector<Interval> merged(a.size() + b.size());
  std::merge(a.begin(), a.end(), b.begin(), b.end(), merged.begin(),
             [](const Interval& x, const Interval& y) { return x.start_ns < y.start_ns; });
  return make_union(std::move(merged));
}

IntervalSet set_intersection(std::span<const Interval> a, std::span<const Interval> b) {
  IntervalSet out;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    poll_interrupt();
    const Interval overlap{std::max(a[i].start_ns, b[j].start_ns),
                           std::min(a[i].end_ns, b[j].end_ns)};
    if (overlap.start_ns < overlap.end_ns) out.push_back(overlap);
    if (a[i].end_ns < b[j].end_ns) {
      ++i;
    } else {
      ++j;
    }
  }
  return out;
}

IntervalSet set_difference(std::span<const Interval> a, std::span<const Interval> b) {
  IntervalSet out;
  std::size_t j = 0;
  for (Interval left : a) {
    while (j < b.size() && b[j].end_ns <= left.start_ns) ++j;
    for (std::size_t k = j; k < b.size() && b[k].start_ns < left.end_ns; ++k) {
      if (b[k].start_ns > left.start_ns) out.push_back({left.start_ns, b[k].start_ns});
      left.start_ns = std::max(left.start_ns, b[k].end_ns);
    }
    if (left.start_ns < left.end_ns) out.push_back(left);
  }
  return out;
}

IntervalSet set_complement(std::span<const Interval> a, Interval bounds) {
  if (bounds.end_ns <= bounds.start_ns) return {};
  return set_difference(std::span<const Interval>(&bounds, 1), a);
}

IntervalSet set_clip(std::span<const Interval> a, Interval bounds) {
  if (bounds.end_ns <= bounds.start_ns) return {};
  // Only the members met are looked at: callers clip one large set to many small bounds.
  const auto first = std::partition_point(
      a.begin(), a.end(), [&](const Interval& i) { return i.end_ns <= bounds.start_ns; });
  const auto last = std::partition_point(
      first, a.end(), [&](const Interval& i) { return i.start_ns < bounds.end_ns; });
  return set_intersection(std::span<const Interval>(first, last),
                          std::span<const Interval>(&bounds, 1));
}

std::int64_t total_length_ns(std::span<const Interval> a) {
  std::int64_t total = 0;
  for (const Interval& i : a) total += i.length_ns();
  return total;
}

std::int64_t covered_ns(std::span<const Interval> a, Interval bounds) {
  auto it = std::partition_point(a.begin(), a.end(),
                                 [&](const Interval& i) { return i.end_ns <= bounds.start_ns; });
  std::int64_t total = 0;
  for (; it != a.end() && it->start_ns < bounds.end_ns; ++it) {
    total += std::min(it->end_ns, bounds.end_ns) - std::max(it->start_ns, bounds.start_ns);
  }
  return total;
}

CoverIndex::CoverIndex(IntervalSet set) : set_(std::move(set)) {
  std::int64_t total = 0;
  for (const Interval& member : set_) {
    before_.push_back(total);
    total += member.length_ns();
  }
}

std::int64_t CoverIndex::before_ns(std::int64_t time_ns) const {
  const auto next = std::partition_point(
      set_.begin(), set_.end(), [&](const Interval& member) { return member.start_ns < time_ns; });
  if (next == set_.begin()) return 0;
  const Interval& last = *(next - 1);
  return before_[static_cast<std::size_t>(next - 1 - set_.begin())] +
         std::min(time_ns, last.end_ns) - last.start_ns;
}

}  // namespace traceap
