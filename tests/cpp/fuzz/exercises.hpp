#pragma once
// Everything behind the reader, called as the bindings call it, with what must hold of the answers.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "input.hpp"
#include "traceap/analysis/costs/gpu_costs.hpp"
#include "traceap/base/intervals.hpp"
#include "traceap/table/event_table.hpp"
#include "traceap/tree/event_tree.hpp"

namespace traceap::fuzz {

struct Rank {
  EventTable table;
  EventTree tree;
  GpuCosts costs;

  explicit Rank(EventTable&& read)
      : table(std::move(read)), tree(build_tree(table)), costs(build_gpu_costs(table, tree)) {}
  Row size() const { return table.size(); }
};
using RankPtr = std::unique_ptr<const Rank>;
using Ranks = std::vector<RankPtr>;

/// Columns, rebuilt text, keys of args.
void exercise_table(const EventTable& table, Choices& choices);
/// What the header of EventTree promises.
void exercise_tree(const Rank& rank);
/// Timelines, causes of idle time, host threads, pieces of steps.
void exercise_idle(const Rank& rank, Choices& choices);
/// GPU costs, modules, queues, sequences, groups.
void exercise_costs(const Rank& rank, Choices& choices);
/// The same by the rules of other tools.
void exercise_compat(const Rank& rank, Choices& choices);
void exercise_rules(const Rank& rank, Choices& choices);
void exercise_windows(const Rank& rank, Choices& choices);
/// Collectives across ranks, dependencies, critical path, simulation.
void exercise_ranks(std::span<const RankPtr> ranks, Choices& choices);
void exercise_diff(std::span<const RankPtr> before, std::span<const RankPtr> after);

// What must hold, for several of them.

inline void check_row(const EventTable& table, Row row) {
  check(row == kNoRow || row < table.size(), "a row is one of the table");
}
/// By start, none empty, no two overlapping or touching.
void check_set(std::span<const Interval> set);
/// `offsets` leads from 0 to `size`, never back.
void check_offsets(std::span<const std::uint32_t> offsets, std::size_t groups, std::size_t size);

/// A sum that no trace makes overflow, as 64 bits would hold it.
class Sum {
 public:
  Sum& operator+=(std::int64_t value) {
    sum_ += value;
    return *this;
  }
  friend bool operator==(const Sum& sum, std::int64_t value) {
    constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
    return sum.sum_ == value || (sum.sum_ > kMost && value == kMost);
  }

 private:
  __int128 sum_ = 0;
};

}  // namespace traceap::fuzz
