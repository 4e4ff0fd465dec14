#include "traceap/analysis/compat/compat_nesting.hpp"

#include <algorithm>

#include "traceap/base/interrupt.hpp"

namespace traceap {
namespace {

constexpr double kBleedToleranceUs = 1.0;

struct OpenRange {
  double end_us;
  Row row;
  std::uint32_t position;
};

bool is_wanted(const EventTable& table, Row row, bool python_frames) {
  if (!table.is_complete(row)) return false;
  const EventKind kind = table.kind[row];
  return kind == EventKind::kCpuOp || is_api_call(kind) ||
         (python_frames && kind == EventKind::kPythonFunction);
}

/// Wanted rows by track, in row order.
std::vector<std::vector<Row>> rows_by_track(const EventTable& table, bool python_frames) {
  std::vector<std::vector<Row>> by_track(table.tracks.size());
  for (Row row = 0; row < table.size(); ++row) {
    poll_interrupt();
    if (is_wanted(table, row, python_frames)) by_track[table.track[row]].push_back(row);
  }
  return by_track;
}

/// Of rows that start together, operators stand before calls, as the profiler writes them: theirs
/// takes a file's order there. A call that outlives such an operator is dropped then.
void put_calls_last(const EventTable& table, std::vector<Row>& rows) {
  const auto is_op = [&](Row row) { return !is_api_call(table.kind[row]); };
  for (std::size_t begin = 0; begin < rows.size();) {
    poll_interrupt();
    std::size_t end = begin + 1;
    while (end < rows.size() && table.ts_ns[rows[end]] == table.ts_ns[rows[begin]]) ++end;
    if (end - begin > 1) {
      const auto at = [&](std::size_t i) { return rows.begin() + static_cast<std::ptrdiff_t>(i); };
      std::stable_partition(at(begin), at(end), is_op);
    }
    begin = end;
  }
}

class Nester {
 public:
  Nester(const EventTable& table, CompatNesting& nesting) : table_(table), nesting_(nesting) {}

  void nest(const std::vector<Row>& track_rows) {
    for (const Row row : track_rows) place(row);
    while (!stack_.empty()) close();
  }

 private:
  void place(Row row) {
    const double start_us = compat_us(table_.ts_ns[row]);
    const double end_us = start_us + compat_us(table_.dur_ns[row]);
    while (!stack_.empty() && start_us >= stack_.back().end_us) close();
    if (!stack_.empty() && end_us > stack_.back().end_us) {
      const bool bleeds = stack_.back().end_us - start_us < kBleedToleranceUs;
      if (!bleeds || stack_.size() < 2) return;
      close();
    }
    nesting_.parent[row] = stack_.empty() ? kNoRow : stack_.back().row;
    stack_.push_back({end_us, row, static_cast<std::uint32_t>(nesting_.rows.size())});
    nesting_.rows.push_back(row);
    nesting_.subtree_end.push_back(0);
  }

  void close() {
    nesting_.subtree_end[stack_.back().position] = static_cast<std::uint32_t>(nesting_.rows.size());
    stack_.pop_back();
  }

  const EventTable& table_;
  CompatNesting& nesting_;
  std::vector<OpenRange> stack_;
};

}  // namespace

double compat_us(std::int64_t ns) {
  constexpr std::int64_t kExact = std::int64_t{1} << 53;
  if (-kExact < ns && ns < kExact) return static_cast<double>(ns) / 1000.0;
  // The whole part is exact, and against it no fraction rounds onto a tie that it is not.
  return static_cast<double>(ns / 1000) + static_cast<double>(ns % 1000) / 1000.0;
}

CompatNesting build_compat_nesting(const EventTable& table, const CompatNestingOptions& options) {
  CompatNesting nesting;
  nesting.parent.assign(table.size(), kNoRow);
  Nester nester(table, nesting);
  for (auto& rows : rows_by_track(table, options.python_frames)) {
    put_calls_last(table, rows);
    nester.nest(rows);
  }
  return nesting;
}

}  // namespace traceap
