#include "traceap/tree/iterations.hpp"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include "traceap/base/interrupt.hpp"
#include "traceap/tree/iteration_name.hpp"

namespace traceap {
namespace {

// What is known of a name: does it mark an iteration?
enum MarkState : std::uint8_t { kUnread = 0, kIsNone, kIsMark };

/// Times that a sequence of graphs has to follow itself to be an iteration.
constexpr std::size_t kLeastRepeats = 2;

struct Repetition {
  std::size_t period = 0, first = 0;
};

/// The shortest sequence that repeats to the end, and where it first begins.
Repetition find_repetition(const std::vector<std::uint32_t>& graphs) {
  const std::size_t count = graphs.size();
  for (std::size_t period = 1; period <= count / kLeastRepeats; ++period) {
    poll_interrupt_now();
    std::size_t first = count - period;
    while (first > 0 && graphs[first - 1] == graphs[first - 1 + period]) --first;
    // What comes before the first whole sequence may be cut off by the recording.
    if (count - first >= kLeastRepeats * period && first < period) return {period, first};
  }
  return {};
}

/// An iteration for each time that the sequence of replayed graphs starts over. Graphs are told
/// apart by the names of what they run.
std::vector<Interval> find_graph_spans(const EventTable& table, const EventTree& tree) {
  std::vector<Row> calls;
  std::vector<std::uint32_t> graphs;
  std::unordered_map<std::string, std::uint32_t> numbers;
  for (Row row = 0; row < table.size(); ++row) {
    poll_interrupt();
    if (tree.api[row] != ApiClass::kGraphLaunch || tree.launched_by(row).empty()) continue;
    const auto launched = tree.launched_by(row);
    // Nodes of several streams run in any order.
    std::vector<StringId> kernels;
    for (const Row r : launched) kernels.push_back(table.name[r]);
    std::sort(kernels.begin(), kernels.end());
    std::string names;
    for (const StringId name : kernels) names += std::to_string(name) + ' ';
    calls.push_back(row);
    graphs.push_back(
        numbers.try_emplace(std::move(names), static_cast<std::uint32_t>(numbers.size()))
            .first->second);
  }
  const Repetition found = find_repetition(graphs);
  std::vector<Interval> spans;
  if (found.period == 0) return spans;
  for (std::size_t i = found.first; i < calls.size(); i += found.period) {
    const std::int64_t start_ns = table.ts_ns[calls[i]];
    if (!spans.empty()) spans.back().end_ns = start_ns - 1;
    spans.push_back({start_ns, std::max(tree.profiled.end_ns - 1, start_ns)});
  }
  return spans;
}

}  // namespace

std::string_view iteration_source_name(IterationSource source) {
  static constexpr std::array<std::string_view, kIterationSourceCount> kNames{
      "annotations", "profiler steps", "pattern", "graphs", "trace"};
  return kNames[static_cast<std::size_t>(source)];
}

IterationSpans find_iteration_spans(const EventTable& table, const EventTree& tree) {
  IterationSpans found{
      .source = IterationSource::kAnnotations, .spans = {}, .rows = find_iterations(table, tree)};
  for (const Row row : found.rows) found.spans.push_back({table.ts_ns[row], table.end_ns(row)});
  if (!found.rows.empty()) return found;
  found.source = tree.steps_inferred ? IterationSource::kPattern : IterationSource::kProfilerSteps;
  for (const Step& step : tree.steps) found.spans.push_back({step.start_ns, step.end_ns});
  if (!found.spans.empty()) return found;
  found.source = IterationSource::kGraphs;
  found.spans = find_graph_spans(table, tree);
  if (!found.spans.empty()) return found;
  found.source = IterationSource::kTrace;
  found.spans = {tree.profiled};
  return found;
}

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
