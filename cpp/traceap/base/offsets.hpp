#pragma once
// Counting sort: entries grouped by a small integer, in the order in which they come.

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace traceap {

/// Two passes over the same entries, in the same order:
///
///   CountingSort sort(groups);
///   for (entry) sort.count(group_of(entry));
///   sorted.resize(sort.start_placing());
///   for (entry) sorted[sort.place(group_of(entry))] = entry;
///   offsets = sort.take_offsets();   // group g is sorted[offsets[g]] to sorted[offsets[g + 1]]
///
/// O(entries + groups).
template <typename Index = std::uint32_t>
class CountingSort {
 public:
  explicit CountingSort(std::size_t groups) : offsets_(groups + 2, 0) {}

  void count(std::size_t group) { ++offsets_[group + 2]; }
  /// The number of entries.
  Index start_placing() {
    std::partial_sum(offsets_.begin(), offsets_.end(), offsets_.begin());
    return offsets_.back();
  }
  /// Where the next entry of `group` goes.
  Index place(std::size_t group) { return offsets_[group + 1]++; }
  /// Where each group begins, and the number of entries behind the last; when all are placed.
  std::vector<Index> take_offsets() {
    offsets_.pop_back();
    return std::move(offsets_);
  }

 private:
  // [g + 1] is where the next entry of g goes: its begin before the second pass, its end (the begin
  // of g + 1) behind it.
  std::vector<Index> offsets_;
};

}  // namespace traceap
