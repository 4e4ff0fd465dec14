#include "traceap/tree/iterations.hpp"

#include <utility>

#include "traceap/base/interrupt.hpp"
#include "traceap/tree/iteration_name.hpp"

namespace traceap {
namespace {

// What is known of a name: does it mark an iteration?
enum MarkState : std::uint8_t { kUnread = 0, kIsNone, kIsMark };

}  // namespace

std::vector<Row> find_iterations(const EventTable& table, const EventTree& tree) {
  std::vector<std::uint8_t> marks(table.strings.size(), kUnread);
  std::vector<Row> best;
  for (const TrackId track : tree.host_tracks) {
    std::vector<Row> rows;
    for (std::uint32_t i = tree.host_offsets[track]; i < tree.host_offsets[track + 1]; ++i) {
      poll_interrupt();
      const Row row = tree.host_rows[i];
      if (table.kind[row] != EventKind::kUserAnnotation) continue;
      std::uint8_t& mark = marks[table.name[row]];
      if (mark == kUnread) mark = read_iteration_name(table.name_of(row)) ? kIsMark : kIsNone;
      if (mark != kIsMark) continue;
      if (!rows.empty() && is_inside(tree, row, rows.back())) rows.pop_back();
      rows.push_back(row);
    }
    if (rows.size() > best.size()) best = std::move(rows);
  }
  return best;
}

}  // namespace traceap
