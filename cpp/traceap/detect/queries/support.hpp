#pragma once
// What several of the extended rules need: names judged lazily, stalls behind blocking calls,
// warm-up, ranges and what they launched, number types and shapes.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "traceap/detect/evidence.hpp"

namespace traceap {

/// A property of names, judged when a name is first asked for: a rule that looks at kernels never
/// reads the names of a hundred thousand Python frames.
template <class Predicate>  // bool(std::string_view)
class LazyNames {
 public:
  LazyNames(const EventTable& table, Predicate predicate)
      : table_(table), predicate_(std::move(predicate)), state_(table.strings.size(), 0) {}
  /// Does the row's name have the property?
  bool operator()(Row row) const {
    const StringId id = table_.name[row];
    if (id >= state_.size()) return false;
    if (state_[id] == 0) state_[id] = predicate_(table_.strings[id]) ? 2 : 1;
    return state_[id] == 2;
  }

 private:
  const EventTable& table_;
  Predicate predicate_;
  mutable std::vector<std::uint8_t> state_;  ///< 0 not judged, 1 no, 2 yes
};

/// A host that is free launches its next kernel within some tens of microseconds; with the profiler
/// and Python on top, 1 ms is still some fifty operations. A longer pause has another cause.
inline constexpr std::int64_t kRefillReachNs = 1'000'000;
/// From the start of a call that blocks the host to the first GPU event after its end, at most
/// kRefillReachNs after it. GPU idle in there is what the call costs: the queue ran dry, and the
/// host had to refill it.
Interval stall_window(const Signals& signals, Interval host_call);
/// GPU idle inside any of the intervals.
IntervalSet idle_inside(const Signals& signals, std::vector<Interval> intervals);
/// The same without the idle time that data loading, compilation or the profiler explain.
IntervalSet unexplained_idle_inside(const Signals& signals, std::vector<Interval> intervals);

/// Saving of a finding whose cost is GPU work that would get shorter: `high_share` of it at most,
/// `best_share` of it as the guess, and that only as far as the GPU is what the program waits for:
/// where the host is late, shorter kernels leave longer gaps. The share of busy time stands for it.
void bound_gpu_saving(const Signals& signals, Finding& finding, double best_share,
                      double high_share);

/// Where warm-up ends. Before it first-call costs are to be expected, after it they are defects.
struct WarmUp {
  bool known = false;       ///< false: neither steps nor repetition tell
  bool by_steps = false;    ///< told by steps, else by the repetition of kernels
  std::int64_t end_ns = 0;  ///< host clock; start of the profile if it begins warm
};
/// By the number in the first step's name, else the end of the first of several steps, else the
/// time at which a program that repeats its kernels has shown nearly all of them.
WarmUp find_warm_up(const Signals& signals);

/// Per track: does it launch kernels or copies? Other threads' waiting stops no work.
std::vector<std::uint8_t> launching_tracks(const Signals& signals);
/// Per row: does an operator enclose it (itself excluded)? One pass.
std::vector<std::uint8_t> rows_inside_operators(const Signals& signals);
/// Did a backward pass run? Then the trace is of training.
bool has_backward(const Signals& signals);

/// Per row: the outermost enclosing host row (itself included) for which `is_range` holds; kNoRow
/// if none. One pass, whatever the nesting.
template <class Predicate>  // bool(Row)
std::vector<Row> outermost_ranges(const Signals& signals, Predicate&& is_range) {
  const EventTable& table = signals.table;
  std::vector<Row> outer(table.size(), kNoRow);
  for (Row r = 0; r < table.size(); ++r) {  // parents precede children
    if (!is_host(table.kind[r]) || !table.is_complete(r)) continue;
    const Row parent = signals.tree.parent[r];
    if (parent != kNoRow && outer[parent] != kNoRow) {
      outer[r] = outer[parent];
    } else if (is_range(r)) {
      outer[r] = r;
    }
  }
  return outer;
}
/// Rows that are their own outermost range.
std::vector<Row> range_rows(const std::vector<Row>& outer);

/// GPU rows launched from inside each range: kernels, copies and memsets by range, in row order of
/// the ranges, then by start.
struct RangeLaunches {
  Row range;
  std::vector<Row> gpu_rows;
};
std::vector<RangeLaunches> launches_by_range(const Signals& signals, const std::vector<Row>& outer);
/// First start to last end of GPU rows; empty for none.
Interval extent_of(const EventTable& table, const std::vector<Row>& gpu_rows);

/// Sum over steps divided by steps, as text for a fact; nothing without steps.
void add_per_step_fact(const Signals& signals, Draft& draft, std::string name, std::size_t count);
/// The `top` most frequent names of rows, joined by ", ".
std::string most_frequent_names(const EventTable& table, const std::vector<Row>& rows,
                                std::size_t top);
/// "12.3 MB", for facts.
std::string format_bytes(std::int64_t bytes);
/// "12.3 µs", for facts.
std::string format_us(std::int64_t ns);
/// Median; 0 of nothing. Reorders the values.
std::int64_t median_of(std::vector<std::int64_t>& values);

/// Shapes and number types of an operator's inputs, as recorded with record_shapes=True.
struct TensorInfo {
  std::vector<std::int64_t> dims;
  std::vector<std::int64_t> strides;  ///< empty where not recorded
  std::string type;                   ///< "float", "c10::Half", "c10::BFloat16", ...
};
class InputReader {
 public:
  explicit InputReader(const EventTable& table);
  /// One entry per input; empty if shapes were not recorded for this row.
  std::vector<TensorInfo> inputs(Row op) const;
  /// Number types only; empty if not recorded.
  std::vector<std::string> types(Row op) const;

 private:
  ArgReader dims_, old_dims_, types_, strides_;
};
bool is_half_type(std::string_view type);  ///< fp16 or bf16
/// [[2, 3], [], [4]] to lists of integers; anything else in a place becomes an empty list.
std::vector<std::vector<std::int64_t>> parse_int_lists(std::string_view json);

}  // namespace traceap
