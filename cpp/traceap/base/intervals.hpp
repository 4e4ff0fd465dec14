#pragma once
// Algebra on sets of half-open time intervals [start, end), the common currency of timelines,
// idle causes and findings. A set is sorted by start and its members neither overlap nor touch.

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace traceap {

/// No time of an event lies farther from 0, nor does a duration; sums of two then fit 64 bits.
inline constexpr std::int64_t kMaxTimeNs = 2'300'000'000'000'000'000;

/// Sums of times stop at the ends of 64 bits: a trace may claim any time.
constexpr std::int64_t add_saturated(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return b < 0 ? std::numeric_limits<std::int64_t>::min()
               : std::numeric_limits<std::int64_t>::max();
}

struct Interval {
  std::int64_t start_ns;
  std::int64_t end_ns;
  std::int64_t length_ns() const { return end_ns - start_ns; }
  friend bool operator==(const Interval&, const Interval&) = default;
};

using IntervalSet = std::vector<Interval>;

/// Union of arbitrary intervals; empty ones vanish. O(n log n), O(n) when already sorted by start.
IntervalSet make_union(std::vector<Interval> intervals);
IntervalSet set_union(std::span<const Interval> a, std::span<const Interval> b);
IntervalSet set_intersection(std::span<const Interval> a, std::span<const Interval> b);
/// a without b.
IntervalSet set_difference(std::span<const Interval> a, std::span<const Interval> b);
/// Gaps of `a` inside `bounds`.
IntervalSet set_complement(std::span<const Interval> a, Interval bounds);
IntervalSet set_clip(std::span<const Interval> a, Interval bounds);
std::int64_t total_length_ns(std::span<const Interval> a);
/// Length of `a` inside [start, end). O(log n + members met).
std::int64_t covered_ns(std::span<const Interval> a, Interval bounds);

/// A set that answers covered_ns in O(log n), however many members lie inside of the bounds.
class CoverIndex {
 public:
  CoverIndex() = default;
  explicit CoverIndex(IntervalSet set);
  std::int64_t covered_ns(Interval bounds) const {
    return before_ns(bounds.end_ns) - before_ns(bounds.start_ns);
  }

 private:
  /// Length of the set before a time.
  std::int64_t before_ns(std::int64_t time_ns) const;
  IntervalSet set_;
  std::vector<std::int64_t> before_;  ///< by member: length of those before it
};

}  // namespace traceap
