#include "traceap/tree/excerpt.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <span>
#include <vector>

#include "traceap/base/interrupt.hpp"

namespace traceap {
namespace {

/// Whether [start_ns, end_ns] lies in one of the windows, ends included.
bool lies_in(const IntervalSet& windows, std::int64_t start_ns, std::int64_t end_ns) {
  const auto behind = std::upper_bound(
      windows.begin(), windows.end(), start_ns,
      [](std::int64_t time_ns, const Interval& window) { return time_ns < window.start_ns; });
  return behind != windows.begin() && end_ns <= std::prev(behind)->end_ns;
}

/// Which rows are kept, and under which number.
class RowMap {
 public:
  RowMap(const EventTable& table, const EventTree& tree, const IntervalSet& windows)
      : number_(table.size()) {
    const auto inside = [&](Row row) {
      return (table.flags[row] & kHasTime) != 0 &&
             lies_in(windows, table.ts_ns[row], table.end_ns(row));
    };
    const auto launched_inside = [&](Row row) {
      if (tree.launch[row] != kNoRow) return inside(tree.launch[row]);
      const std::int64_t at_ns = launch_time_ns(table, tree, row);
      return lies_in(windows, at_ns, add_saturated(at_ns, 1));
    };
    for (Row row = 0; row < table.size(); ++row) {
      poll_interrupt();
      const bool is_gpu = tree.gpu_class[row] != GpuClass::kNone;
      number_[row] = kNoRow;
      if (!(is_gpu ? launched_inside(row) : inside(row))) continue;
      number_[row] = static_cast<Row>(rows_.size());
      rows_.push_back(row);
    }
  }

  Row operator[](Row row) const { return row == kNoRow ? kNoRow : number_[row]; }
  std::span<const Row> rows() const { return rows_; }

  template <typename T>
  std::vector<T> pick(const std::vector<T>& column) const {
    std::vector<T> picked;
    picked.reserve(rows_.size());
    for (const Row row : rows_) picked.push_back(column[row]);
    return picked;
  }
  template <typename T, T kAbsent>
  NarrowColumn<T, kAbsent> pick(const NarrowColumn<T, kAbsent>& column) const {
    return column.pick(rows_);
  }
  /// A column that names rows.
  std::vector<Row> pick_links(const std::vector<Row>& column) const {
    std::vector<Row> picked = pick(column);
    for (Row& row : picked) row = (*this)[row];
    return picked;
  }
  /// A list of rows.
  std::vector<Row> keep(std::span<const Row> list) const {
    std::vector<Row> kept;
    for (const Row row : list) {
      if (number_[row] != kNoRow) kept.push_back(number_[row]);
    }
    return kept;
  }

 private:
  std::vector<Row> number_, rows_;
};

/// Ids of one pool in another, which gets the strings that are asked for.
class Interned {
 public:
  Interned(const StringPool& from, StringPool& to)
      : from_(from), to_(to), number_(from.size(), kNoString) {}

  void renumber(std::vector<StringId>& ids) {
    for (StringId& id : ids) id = number_of(id);
  }
  void renumber(NarrowColumn<StringId, kNoString>& ids) {
    for (std::size_t i = 0; i < ids.size(); ++i) ids.set(i, number_of(ids[i]));
  }

 private:
  StringId number_of(StringId id) {
    if (id == kNoString) return kNoString;
    if (number_[id] == kNoString) number_[id] = to_.intern(from_[id]);
    return number_[id];
  }
  const StringPool& from_;
  StringPool& to_;
  std::vector<StringId> number_;
};

void copy_args(const EventTable& from, const RowMap& map, ArgStore& to) {
  to.template_id = map.pick(from.args.template_id);
  Interned(from.args.templates, to.templates).renumber(to.template_id);
  const PackedValues packed(from);
  for (const Row row : map.rows()) {
    const std::span<const std::uint8_t> values = packed[row];
    to.values_offset.push_back(to.values.size());
    to.values.insert(to.values.end(), values.begin(), values.end());
  }
}

EventTable pick_table(const EventTable& from, const RowMap& map) {
  EventTable to;
  to.ts_ns = map.pick(from.ts_ns);
  to.dur_ns = map.pick(from.dur_ns);
  to.name = map.pick(from.name);
  to.category = map.pick(from.category);
  to.kind = map.pick(from.kind);
  to.phase = map.pick(from.phase);
  to.flags = map.pick(from.flags);
  to.track = map.pick(from.track);
  to.device = map.pick(from.device);
  to.stream = map.pick(from.stream);
  to.correlation = map.pick(from.correlation);
  to.external_id = map.pick(from.external_id);
  copy_args(from, map, to.args);
  Interned strings(from.strings, to.strings);
  strings.renumber(to.name);
  strings.renumber(to.category);
  to.tracks = from.tracks;
  to.track_texts = from.track_texts;
  to.metadata = from.metadata;
  to.devices = from.devices;
  to.distributed = from.distributed;
  to.path = from.path;
  to.total_objects = to.size();
  return to;
}

/// host_rows and what is by place in it; parents and depths without the rows that are gone.
void pick_nesting(const EventTree& from, const RowMap& map, EventTree& to) {
  to.parent = map.pick_links(from.parent);
  to.depth.assign(to.parent.size(), 0);
  for (Row row = 0; row < to.parent.size(); ++row) {
    poll_interrupt();
    if (to.parent[row] == kNoRow) continue;
    const unsigned above = to.depth[to.parent[row]];
    constexpr unsigned kDeepest = std::numeric_limits<std::uint16_t>::max();
    to.depth[row] = static_cast<std::uint16_t>(std::min(above + 1, kDeepest));
  }
  to.host_rows = map.keep(from.host_rows);
  // kept[i]: how many of the first i places are kept.
  std::vector<std::uint32_t> kept{0};
  kept.reserve(from.host_rows.size() + 1);
  for (const Row row : from.host_rows) kept.push_back(kept.back() + (map[row] != kNoRow));
  for (const std::uint32_t place : from.host_offsets) to.host_offsets.push_back(kept[place]);
  to.host_position.assign(map.rows().size(), kNoRow);
  for (std::uint32_t i = 0; i < to.host_rows.size(); ++i) to.host_position[to.host_rows[i]] = i;
  for (std::uint32_t i = 0; i < from.host_rows.size(); ++i) {
    if (map[from.host_rows[i]] != kNoRow) to.subtree_end.push_back(kept[from.subtree_end[i]]);
  }
  for (const TrackId track : from.host_tracks) {
    poll_interrupt();
    if (to.host_offsets[track + 1] > to.host_offsets[track]) to.host_tracks.push_back(track);
  }
}

void pick_launches(const EventTree& from, const RowMap& map, EventTree& to) {
  to.launch = map.pick_links(from.launch);
  to.launched_offsets.push_back(0);
  for (const Row row : map.rows()) {
    for (const Row launched : from.launched_by(row)) {
      if (map[launched] != kNoRow) to.launched_rows.push_back(map[launched]);
    }
    to.launched_offsets.push_back(static_cast<std::uint32_t>(to.launched_rows.size()));
  }
}

void pick_steps(const EventTree& from, const RowMap& map, const IntervalSet& windows,
                EventTree& to) {
  std::vector<std::uint32_t> number(from.steps.size(), kNoStep);
  for (std::uint32_t i = 0; i < from.steps.size(); ++i) {
    const Step& step = from.steps[i];
    if (!lies_in(windows, step.start_ns, step.end_ns)) continue;
    number[i] = static_cast<std::uint32_t>(to.steps.size());
    to.steps.push_back({step.name, step.start_ns, step.end_ns, map[step.row], step.kind});
    to.recording.step_is_recorded.push_back(from.recording.step_is_recorded[i]);
  }
  to.step = map.pick(from.step);
  for (std::uint32_t& step : to.step) {
    if (step != kNoStep) step = number[step];
  }
  to.steps_inferred = from.steps_inferred;
  if (!windows.empty()) {
    to.profiled = {std::max(windows.front().start_ns, from.profiled.start_ns),
                   std::min(windows.back().end_ns, from.profiled.end_ns)};
  }
  if (!to.steps.empty() && !to.steps_inferred) {
    to.profiled = {to.steps.front().start_ns, to.steps.back().end_ns};
  }
}

/// What can't be trusted, with the notes of what lies in the profiled time or anywhere.
void pick_recording(const Recording& from, const IntervalSet& left_out, Interval profiled,
                    Recording& to) {
  for (const RecordingNote& note : from.notes) {
    const bool inside = !note.time || (note.time->start_ns < profiled.end_ns &&
                                       profiled.start_ns < note.time->end_ns);
    if (inside) to.notes.push_back(note);
  }
  to.missing = from.missing;
  to.not_judged = set_union(from.not_judged, left_out);
}

/// What ran as the whole shows it, by rows that are kept: those that showed it or others of their
/// names.
Workload pick_workload(const EventTable& table, const EventTree& from, const RowMap& map) {
  const auto alike = [&](Row row) {
    if (row == kNoRow || map[row] != kNoRow) return map[row];
    const auto kept = map.rows();
    const auto found = std::find_if(
        kept.begin(), kept.end(), [&](Row other) { return table.name[other] == table.name[row]; });
    return found == kept.end() ? kNoRow : map[*found];
  };
  Workload workload = from.workload;
  for (Row* row : {&workload.framework_row, &workload.role_row}) *row = alike(*row);
  for (Row& row : workload.parallelism) row = alike(row);
  return workload;
}

EventTree pick_tree(const EventTable& table, const EventTree& from, const RowMap& map,
                    const IntervalSet& windows, const IntervalSet& left_out,
                    std::optional<Interval> profiled) {
  EventTree to;
  pick_nesting(from, map, to);
  pick_launches(from, map, to);
  pick_steps(from, map, windows, to);
  if (profiled) to.profiled = *profiled;
  to.workload = pick_workload(table, from, map);
  pick_recording(from.recording, left_out, to.profiled, to.recording);
  to.api = map.pick(from.api);
  to.copy_direction = map.pick(from.copy_direction);
  to.host_memory = map.pick(from.host_memory);
  to.op = map.pick_links(from.op);
  to.forward = map.pick_links(from.forward);
  to.gpu_class = map.pick(from.gpu_class);
  to.phase = map.pick(from.phase);
  to.gpu_rows = map.keep(from.gpu_rows);
  to.linked_gpu_rows = map.keep(from.linked_gpu_rows);
  for (const Stream& s : from.streams) {
    to.streams.push_back({s.device, s.stream, s.role, map.keep(s.rows)});
  }
  to.stream_of = map.pick(from.stream_of);
  to.warm_up = from.warm_up;
  to.main_track = from.main_track;
  to.launch_delay_correction_ns = from.launch_delay_correction_ns;
  return to;
}

}  // namespace

Excerpt take_excerpt(const EventTable& table, const EventTree& tree, const IntervalSet& windows,
                     const IntervalSet& left_out, std::optional<Interval> profiled) {
  const RowMap map(table, tree, windows);
  return {pick_table(table, map), pick_tree(table, tree, map, windows, left_out, profiled)};
}

}  // namespace traceap
