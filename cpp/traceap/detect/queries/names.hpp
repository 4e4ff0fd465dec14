#pragma once
// Questions about the names of rows, judged once per distinct name.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "traceap/base/ids.hpp"
#include "traceap/base/interrupt.hpp"
#include "traceap/base/string_pool.hpp"
#include "traceap/base/text.hpp"
#include "traceap/table/event_table.hpp"
#include "traceap/tree/event_tree.hpp"

namespace traceap {

/// A property of names, judged when a name is first asked for: a rule that looks at kernels never
/// reads the names of a hundred thousand Python frames.
template <class Predicate = bool (*)(std::string_view)>
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

/// An operator's name, rather than that of a range that a program or record_function put around
/// code ("ProfilerStep#3", "Optimizer.step#Adam.step"), which older torch writes as an operator.
bool is_operator_name(std::string_view name);
/// Rows of the host whose name has the property, by start. O(n).
template <class Predicate>
std::vector<Row> host_rows_named(const EventTable& table, const EventTree& tree,
                                 const LazyNames<Predicate>& names) {
  std::vector<Row> rows;
  for (Row r = 0; r < table.size(); ++r) {
    poll_interrupt();
    if (tree.host_position[r] != kNoRow && names(r)) rows.push_back(r);
  }
  return rows;
}
/// The `top` most frequent names of rows, joined by ", ".
std::string most_frequent_names(const EventTable& table, const std::vector<Row>& rows,
                                std::size_t top);

}  // namespace traceap
