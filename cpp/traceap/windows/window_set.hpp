#pragma once
// Windows of equal time over a trace, as bounds plus ragged lists of rows.

#include <cstdint>
#include <span>
#include <vector>

#include "traceap/tree/event_tree.hpp"

namespace traceap {

struct WindowOptions {
  std::uint32_t count = 100;   ///< windows of equal time (the paper: 50, 100 or 200)
  std::int64_t length_ns = 0;  ///< > 0: windows of this length instead, the last one shorter
  bool host_rows = false;      ///< list host rows too, not only GPU events
};

/// bounds_ns has count+1 entries. An event belongs to the window of its start (rows); `overlapping`
/// lists events that began earlier and reach into the window.
struct WindowSet {
  std::vector<std::int64_t> bounds_ns;
  std::vector<std::uint32_t> offsets;  ///< count+1 into rows
  std::vector<Row> rows;
  std::vector<std::uint32_t> overlapping_offsets;  ///< count+1 into overlapping
  std::vector<Row> overlapping;

  std::uint32_t count() const { return static_cast<std::uint32_t>(bounds_ns.size() - 1); }
  Interval bounds(std::uint32_t w) const { return {bounds_ns[w], bounds_ns[w + 1]}; }
  std::span<const Row> rows_of(std::uint32_t w) const {
    return {rows.data() + offsets[w], rows.data() + offsets[w + 1]};
  }
};

/// Windows over `bounds` (by default tree.profiled). Throws OptionError for count 0 or above 1e6.
WindowSet build_windows(const EventTable& table, const EventTree& tree,
                        const WindowOptions& options = {});
WindowSet build_windows(const EventTable& table, const EventTree& tree, Interval bounds,
                        const WindowOptions& options);

}  // namespace traceap
