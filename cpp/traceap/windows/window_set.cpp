#include "traceap/windows/window_set.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "traceap/base/error.hpp"
#include "traceap/base/interrupt.hpp"

namespace traceap {
namespace {

constexpr std::uint32_t kMaxWindows = 1'000'000;
/// A row that spans k windows is stored k times; a trace that spans all of them with everything
/// would not fit into memory. 2^28 entries are one GiB.
constexpr std::uint64_t kMaxOverlaps = std::uint64_t{1} << 28;

/// Length of `bounds`, also where it exceeds an int64.
std::uint64_t span_of(Interval bounds) {
  return static_cast<std::uint64_t>(bounds.end_ns) - static_cast<std::uint64_t>(bounds.start_ns);
}

std::uint32_t window_count(Interval bounds, const WindowOptions& options) {
  if (options.length_ns < 0) throw OptionError("the window length must not be negative");
  if (options.length_ns == 0) {
    if (options.count == 0 || options.count > kMaxWindows) {
      throw OptionError("the number of windows must be 1 to 1000000, got " +
                        std::to_string(options.count));
    }
    return options.count;
  }
  const auto span = span_of(bounds);
  const auto length = static_cast<std::uint64_t>(options.length_ns);
  const std::uint64_t count = span == 0 ? 1 : (span - 1) / length + 1;
  if (count > kMaxWindows) {
    throw OptionError("windows of " + std::to_string(length) +
                      " ns are too short: " + std::to_string(count) + " of them, at most 1000000");
  }
  return static_cast<std::uint32_t>(count);
}

/// Bounds of equal time, exact to the nanosecond: start + floor(span * i / count).
std::vector<std::int64_t> build_bounds(Interval bounds, const WindowOptions& options) {
  const std::uint32_t count = window_count(bounds, options);
  const auto span = span_of(bounds);
  std::vector<std::int64_t> edges(std::size_t{count} + 1);
  const std::uint64_t whole = span / count, rest = span % count;
  for (std::uint64_t i = 0; i <= count; ++i) {
    const std::uint64_t offset =
        options.length_ns > 0 ? std::min(span, i * static_cast<std::uint64_t>(options.length_ns))
                              : whole * i + rest * i / count;
    edges[i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(bounds.start_ns) + offset);
  }
  return edges;
}

/// Calls visit(row, first, last) for every listed row that touches the windows: it starts in window
/// `first` (count if it began before all of them) and reaches into those up to `last`.
template <class Visit>
void for_each_row(const EventTable& table, std::span<const Row> rows, const WindowSet& set,
                  Visit&& visit) {
  const std::vector<std::int64_t>& edges = set.bounds_ns;
  const std::uint32_t count = set.count();
  std::uint32_t window = 0;
  for (const Row r : rows) {
    poll_interrupt();
    const std::int64_t start = table.ts_ns[r], end = table.end_ns(r);
    if (start > edges[count]) break;  // rows are sorted by start
    while (window + 1 < count && edges[window + 1] <= start) ++window;
    const bool began_before = start < edges[0];
    if (began_before && end <= edges[0]) continue;
    std::uint32_t last = began_before ? 0 : window;
    // Far jumps by search, near ones by a step: most events end where they start.
    if (last + 1 < count && edges[last + 1] < end) {
      const auto it = std::lower_bound(edges.begin() + last + 1, edges.begin() + count, end);
      last = static_cast<std::uint32_t>(it - edges.begin()) - 1;
    }
    visit(r, began_before ? count : window, last);
  }
}

/// GPU events and host rows, by start.
std::vector<Row> all_listed_rows(const EventTable& table, const EventTree& tree) {
  std::vector<Row> rows;
  rows.reserve(tree.gpu_rows.size() + tree.host_rows.size());
  for (Row r = 0; r < table.size(); ++r) {
    poll_interrupt();
    if (table.is_complete(r) && (is_gpu(table.kind[r]) || is_host(table.kind[r]))) {
      rows.push_back(r);
    }
  }
  return rows;
}

/// Turns counts in [1, n] into offsets.
void accumulate(std::vector<std::uint32_t>& counts) {
  for (std::size_t i = 1; i < counts.size(); ++i) counts[i] += counts[i - 1];
}

void count_rows(const EventTable& table, std::span<const Row> rows, WindowSet& set) {
  const std::uint32_t count = set.count();
  set.offsets.assign(std::size_t{count} + 1, 0);
  std::vector<std::int64_t> change(std::size_t{count} + 1, 0);  // of overlapping rows per window
  for_each_row(table, rows, set, [&](Row, std::uint32_t first, std::uint32_t last) {
    if (first < count) ++set.offsets[first + 1];
    const std::uint32_t from = first < count ? first + 1 : 0;
    if (from > last) return;
    ++change[from];
    --change[last + 1];
  });
  accumulate(set.offsets);
  set.overlapping_offsets.assign(std::size_t{count} + 1, 0);
  std::int64_t open = 0;
  std::uint64_t total = 0;
  for (std::uint32_t w = 0; w < count; ++w) {
    open += change[w];
    total += static_cast<std::uint64_t>(open);
    if (total > kMaxOverlaps) {
      throw OptionError("events overlap more than 268 million windows; choose fewer windows");
    }
    set.overlapping_offsets[w + 1] = static_cast<std::uint32_t>(total);
  }
}

void fill_rows(const EventTable& table, std::span<const Row> rows, WindowSet& set) {
  const std::uint32_t count = set.count();
  set.rows.resize(set.offsets[count]);
  set.overlapping.resize(set.overlapping_offsets[count]);
  std::vector<std::uint32_t> next(set.offsets), next_overlapping(set.overlapping_offsets);
  for_each_row(table, rows, set, [&](Row r, std::uint32_t first, std::uint32_t last) {
    if (first < count) set.rows[next[first]++] = r;
    for (std::uint32_t w = first < count ? first + 1 : 0; w <= last; ++w) {
      set.overlapping[next_overlapping[w]++] = r;
    }
  });
}

}  // namespace

WindowSet build_windows(const EventTable& table, const EventTree& tree,
                        const WindowOptions& options) {
  return build_windows(table, tree, tree.profiled, options);
}

WindowSet build_windows(const EventTable& table, const EventTree& tree, Interval bounds,
                        const WindowOptions& options) {
  if (bounds.end_ns < bounds.start_ns) throw OptionError("the windows end before they begin");
  WindowSet set;
  set.bounds_ns = build_bounds(bounds, options);
  const std::vector<Row> with_host =
      options.host_rows ? all_listed_rows(table, tree) : std::vector<Row>();
  const std::span<const Row> rows = options.host_rows ? with_host : tree.gpu_rows;
  count_rows(table, rows, set);
  fill_rows(table, rows, set);
  return set;
}

}  // namespace traceap
