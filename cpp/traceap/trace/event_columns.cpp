#include "traceap/trace/event_columns.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>

#include "traceap/base/error.hpp"
#include "traceap/base/interrupt.hpp"
#include "traceap/base/intervals.hpp"
#include "traceap/table/json_text.hpp"
#include "traceap/trace/assemble.hpp"
#include "traceap/trace/chunk_parser.hpp"
#include "traceap/trace/read.hpp"

namespace traceap {
namespace {

std::string shown(std::int64_t value) { return std::to_string(value); }

void check_length(std::size_t length, std::size_t events, const std::string& what) {
  if (length == events) return;
  throw SchemaError(what + ": one for each of " + std::to_string(events) +
                    " events was expected, not " + std::to_string(length));
}

void check_code(std::size_t code, std::size_t texts, const std::string& what) {
  if (code < texts) return;
  throw SchemaError(what + ": there is no text " + std::to_string(code) + ", there are " +
                    std::to_string(texts));
}

/// Times that leave room for their differences, as those of a file do.
void check_times(std::int64_t ts_ns, std::int64_t dur_ns, std::size_t event) {
  const bool fits =
      ts_ns >= -kMaxTimeNs && ts_ns <= kMaxTimeNs && dur_ns >= 0 && dur_ns <= kMaxTimeNs;
  if (fits) return;
  throw SchemaError("event " + std::to_string(event) + ": it starts at " + shown(ts_ns) +
                    " ns and takes " + shown(dur_ns) + " ns; at most " + shown(kMaxTimeNs) +
                    " ns either way, and no time below 0, are expected");
}

/// `text` as it stands between the quotes of a JSON string.
std::string escaped(std::string_view text) {
  std::string quoted;
  append_json_string(quoted, text);
  return quoted.substr(1, quoted.size() - 2);
}

// ------------------------------------------------------------------------------ from columns

/// Writes the template of an event, and what it takes out of it, into a chunk.
class RowWriter {
 public:
  RowWriter(const EventColumns& columns, ParserPools& pools, ChunkEvents& events)
      : columns_(columns), pools_(pools), events_(events) {
    for (const std::string& text : columns.strings) {
      strings_.push_back(pools.names.intern(escaped(text)));
    }
    for (const auto& [pid, tid] : columns.tracks) {
      tracks_.push_back(pools.tracks.intern(track_key(pid, tid)));
      slots_.push_back(id_text("pid", pid, kSlotPid) + id_text("tid", tid, kSlotTid));
    }
  }

  void write(std::size_t i) {
    start(i);
    text_.assign("{\"ph\": \"").push_back(static_cast<char>(columns_.phase[i]));
    text_ += '"';
    if (columns_.category[i] != kNoString) add_slot("cat", kSlotCategory);
    add_slot("name", kSlotName);
    text_ += slots_[columns_.track[i]];
    if (!is_metadata(i)) add_slot("ts", kSlotTs);
    if (is_range(i)) add_slot("dur", kSlotDur);
    for (const CellColumn& column : columns_.members) add_cell(column, i, false);
    add_args(i);
    text_ += '}';
    events_.template_id.push_back(pools_.templates.intern(text_));
    events_.values_end.push_back(static_cast<std::uint32_t>(events_.values.size()));
  }

 private:
  bool is_range(std::size_t i) const { return columns_.phase[i] == 'X'; }
  /// What is said of processes and threads has no time.
  bool is_metadata(std::size_t i) const { return columns_.phase[i] == 'M'; }

  static std::string id_text(std::string_view key, std::string_view id, char slot) {
    std::string text = ", \"";
    text += key;
    text += "\": ";
    if (parse_int64(id)) {
      text.push_back(slot);
    } else {
      append_json_string(text, id);
    }
    return text;
  }

  void start(std::size_t i) {
    check_times(columns_.ts_ns[i], is_range(i) ? columns_.dur_ns[i] : 0, i);
    check_code(columns_.name[i], strings_.size(), "name");
    check_code(columns_.track[i], tracks_.size(), "track");
    const std::uint32_t category = columns_.category[i];
    if (category != kNoString) check_code(category, strings_.size(), "category");
    events_.ts_ns.push_back(is_metadata(i) ? 0 : columns_.ts_ns[i]);
    events_.dur_ns.push_back(is_range(i) ? columns_.dur_ns[i] : 0);
    events_.flags.push_back(static_cast<std::uint8_t>((is_metadata(i) ? 0 : kHasTime) |
                                                      (is_range(i) ? kHasDuration : 0)));
    events_.phase.push_back(static_cast<char>(columns_.phase[i]));
    events_.name.push_back(strings_[columns_.name[i]]);
    events_.category.push_back(category == kNoString ? kNoString : strings_[category]);
    events_.track.push_back(tracks_[columns_.track[i]]);
    events_.device.push_back(-1);
    events_.stream.push_back(kNoId);
    events_.correlation.push_back(kNoId);
    events_.external_id.push_back(kNoId);
  }

  void add_args(std::size_t i) {
    const std::size_t before = text_.size();
    text_ += ", \"args\": {";
    const std::size_t opened = text_.size();
    for (const CellColumn& column : columns_.args) add_cell(column, i, true);
    if (text_.size() == opened) {
      text_.resize(before);
      return;
    }
    text_.erase(opened, 2);  // the comma before the first
    text_ += '}';
  }

  void add_key(std::string_view key) {
    text_ += ", ";
    append_json_string(text_, key);
    text_ += ": ";
  }
  void add_slot(std::string_view key, char slot) {
    add_key(key);
    text_.push_back(slot);
  }

  void add_cell(const CellColumn& column, std::size_t i, bool in_args) {
    if (!column.present.empty() && column.present[i] == 0) return;
    add_key(column.key);
    if (const auto* integers = std::get_if<std::span<const std::int64_t>>(&column.cells)) {
      add_integer(in_args ? column.key : std::string_view(), (*integers)[i]);
    } else if (const auto* numbers = std::get_if<std::span<const double>>(&column.cells)) {
      add_number(column.key, (*numbers)[i]);
    } else {
      const TextCells& cells = std::get<TextCells>(column.cells);
      check_code(cells.codes[i], cells.texts.size(), column.key);
      const std::string& text = cells.texts[cells.codes[i]];
      if (cells.is_json) {
        text_ += text;
      } else {
        append_json_string(text_, text);
      }
    }
  }

  /// As the walker over an event's text takes it.
  void add_integer(std::string_view key, std::int64_t value) {
    if (key == "device" && value >= 0 && value <= std::numeric_limits<std::int32_t>::max()) {
      events_.device.back() = static_cast<std::int32_t>(value);
      text_.push_back(kSlotDevice);
    } else if (key == "stream" && value != kNoId) {
      events_.stream.back() = value;
      text_.push_back(kSlotStream);
    } else if (key == "correlation" && value != kNoId) {
      events_.correlation.back() = value;
      text_.push_back(kSlotCorrelation);
    } else if (key == "External id" && value != kNoId) {
      events_.external_id.back() = value;
      text_.push_back(kSlotExternalId);
    } else {
      append_varint(events_.values, value);
      text_.push_back(kSlotInteger);
    }
  }

  void add_number(const std::string& key, double value) {
    if (!std::isfinite(value)) throw SchemaError(key + ": a finite number was expected");
    std::array<char, 32> text{};
    const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
    events_.values.push_back(static_cast<std::uint8_t>(end - text.data()));
    events_.values.insert(events_.values.end(), text.data(), end);
    text_.push_back(kSlotNumber);
  }

  const EventColumns& columns_;
  ParserPools& pools_;
  ChunkEvents& events_;
  std::vector<StringId> strings_;
  std::vector<TrackId> tracks_;
  std::vector<std::string> slots_;  ///< by track: pid and tid in a template
  std::string text_;
};

void check_cells(const std::vector<CellColumn>& columns, std::size_t events) {
  for (const CellColumn& column : columns) {
    if (!column.present.empty()) check_length(column.present.size(), events, column.key);
    if (const auto* texts = std::get_if<TextCells>(&column.cells)) {
      check_length(texts->codes.size(), events, column.key);
      for (const std::string& text : texts->texts) {
        if (!texts->is_json || is_valid_json(text)) continue;
        throw SchemaError(column.key + ": " + text + " is no JSON value");
      }
      continue;
    }
    const auto* integers = std::get_if<std::span<const std::int64_t>>(&column.cells);
    check_length(integers ? integers->size() : std::get<1>(column.cells).size(), events,
                 column.key);
  }
}

void check_columns(const EventColumns& columns) {
  const std::size_t events = columns.ts_ns.size();
  check_length(columns.dur_ns.size(), events, "dur_ns");
  check_length(columns.phase.size(), events, "phase");
  check_length(columns.name.size(), events, "name");
  check_length(columns.category.size(), events, "category");
  check_length(columns.track.size(), events, "track");
  check_cells(columns.args, events);
  check_cells(columns.members, events);
  for (std::size_t i = 0; i < events; ++i) {
    const auto phase = static_cast<char>(columns.phase[i]);
    const bool is_letter = (phase >= 'a' && phase <= 'z') || (phase >= 'A' && phase <= 'Z');
    if (!is_letter) throw SchemaError("phase: a letter was expected for each event");
  }
}

EventTable assembled(EventTable table, const std::vector<const ChunkEvents*>& chunks,
                     std::vector<ParserPools> pools,
                     std::vector<std::pair<std::string, std::string>> metadata) {
  Assembler assembler(table);
  for (std::size_t i = 0; i < chunks.size(); ++i) assembler.add(*chunks[i], i);
  assembler.finish(std::move(pools), std::move(metadata));
  table.total_objects = table.size();
  return table;
}

// ------------------------------------------------------------------------------ from a table

/// Is the event's duration its own, and not that of a B that met its E?
bool is_range(const EventTable& table, Row row) {
  return table.phase[row] == 'X' && (table.flags[row] & kHasDuration) != 0;
}

/// The template of an event whose text holds its times: with slots for them. Of a key that came
/// twice the last counts.
std::string with_time_slots(const EventTable& table, Row row) {
  const std::string event = event_json(table, row);
  std::vector<std::pair<std::string_view, std::string_view>> members;
  for_each_member(event,
                  [&](std::string_view quoted, std::string_view key, std::string_view value) {
                    if (key == "ts" && (table.flags[row] & kHasTime) != 0) {
                      value = "\x01";
                    } else if (key == "dur" && is_range(table, row)) {
                      value = "\x02";
                    }
                    for (auto& [known, before] : members) {
                      if (known != quoted) continue;
                      before = value;
                      return;
                    }
                    members.emplace_back(quoted, value);
                  });
  std::string text;
  for (const auto& [quoted, value] : members) {
    text += text.empty() ? "{" : ", ";
    text += quoted;
    text += ": ";
    text += value;
  }
  return text.empty() ? event : text + "}";
}

/// Rows of a table as a chunk that a parser might have made.
class RowCopier {
 public:
  RowCopier(const EventTable& table, const RowEdits& edits, ParserPools& pools, ChunkEvents& events)
      : table_(table), edits_(edits), pools_(pools), events_(events), packed_(table) {
    for (StringId id = 0; id < table.strings.size(); ++id) {
      strings_.push_back(pools.names.intern(escaped(table.strings[id])));
    }
    for (StringId id = 0; id < table.args.templates.size(); ++id) {
      const std::string_view text = table.args.templates[id];
      templates_.push_back(pools.templates.intern(text));
      has_slots_.push_back(text.find(static_cast<char>(kSlotTs)) != std::string_view::npos);
    }
    for (const Track& track : table.tracks) {
      tracks_.push_back(pools.tracks.intern(track_key(track.pid, track.tid)));
    }
  }

  void copy(Row row) {
    const bool has_time = (table_.flags[row] & kHasTime) != 0;
    const bool has_duration = is_range(table_, row);
    const std::int64_t ts_ns = has_time ? edits_.ts_ns[row] : 0;
    const std::int64_t dur_ns = has_duration ? edits_.dur_ns[row] : 0;
    check_times(ts_ns, dur_ns, row);
    events_.ts_ns.push_back(ts_ns);
    events_.dur_ns.push_back(dur_ns);
    events_.flags.push_back(static_cast<std::uint8_t>((has_time ? kHasTime : 0) |
                                                      (has_duration ? kHasDuration : 0) |
                                                      (table_.flags[row] & kRepaired)));
    events_.phase.push_back(table_.phase[row]);
    events_.name.push_back(strings_[table_.name[row]]);
    const StringId category = table_.category[row];
    events_.category.push_back(category == kNoString ? kNoString : strings_[category]);
    events_.track.push_back(tracks_[table_.track[row]]);
    events_.device.push_back(table_.device[row]);
    events_.stream.push_back(table_.stream[row]);
    const std::int64_t correlation = table_.correlation[row];
    events_.correlation.push_back(correlation == kNoId ? kNoId : edits_.correlation[row]);
    events_.external_id.push_back(table_.external_id[row]);
    copy_text(row, ts_ns, dur_ns);
    events_.values_end.push_back(static_cast<std::uint32_t>(events_.values.size()));
  }

 private:
  void copy_text(Row row, std::int64_t ts_ns, std::int64_t dur_ns) {
    const StringId id = table_.args.template_id[row];
    const bool is_moved =
        ts_ns != table_.ts_ns[row] || (is_range(table_, row) && dur_ns != table_.dur_ns[row]);
    if (!has_slots_[id] && is_moved) {
      events_.template_id.push_back(pools_.templates.intern(with_time_slots(table_, row)));
      return;  // all other values stand in the text
    }
    events_.template_id.push_back(templates_[id]);
    const std::span<const std::uint8_t> values = packed_[row];
    events_.values.insert(events_.values.end(), values.begin(), values.end());
  }

  const EventTable& table_;
  const RowEdits& edits_;
  ParserPools& pools_;
  ChunkEvents& events_;
  const PackedValues packed_;
  std::vector<StringId> strings_, templates_;
  std::vector<bool> has_slots_;  ///< by template: whether its times are columns
  std::vector<TrackId> tracks_;
};

/// Events from JSON objects.
ChunkEvents parse_events(ChunkParser& parser, const std::vector<std::string>& objects) {
  std::string text;
  for (const std::string& object : objects) text += (text.empty() ? "" : ",") + object;
  ChunkTask task;
  const std::size_t size = text.size();
  text.append(kTextPadding, '\0');
  task.text = std::string_view(text).substr(0, size);
  task.is_final = true;
  ChunkResult result = parser.parse(task);
  if (result.events.size() != objects.size()) {
    throw SchemaError("more_events: of " + std::to_string(objects.size()) + " texts " +
                      std::to_string(result.events.size()) + " are events");
  }
  return std::move(result.events);
}

}  // namespace

EventTable build_table(const EventColumns& columns) {
  check_columns(columns);
  ParserPools pools;
  ChunkEvents events;
  RowWriter writer(columns, pools, events);
  for (std::size_t i = 0; i < columns.ts_ns.size(); ++i) {
    poll_interrupt();
    writer.write(i);
  }
  EventTable table;
  table.path = columns.path;
  std::vector<ParserPools> taken;
  taken.push_back(std::move(pools));
  return assembled(std::move(table), {&events}, std::move(taken), columns.metadata);
}

EventTable edit_table(const EventTable& table, const RowEdits& edits,
                      const std::vector<std::string>& more_events) {
  check_length(edits.ts_ns.size(), table.size(), "ts_ns");
  check_length(edits.dur_ns.size(), table.size(), "dur_ns");
  check_length(edits.kept.size(), table.size(), "kept");
  check_length(edits.correlation.size(), table.size(), "correlation");
  ParserPools pools;
  ChunkEvents events;
  RowCopier copier(table, edits, pools, events);
  for (Row row = 0; row < table.size(); ++row) {
    poll_interrupt();
    if (edits.kept[row] != 0) copier.copy(row);
  }
  ChunkParser parser(ReadOptions().free_templates);
  const ChunkEvents more = parse_events(parser, more_events);
  EventTable edited;
  edited.path = table.path;
  std::vector<ParserPools> taken;
  taken.push_back(std::move(pools));
  taken.push_back(std::move(parser.pools()));
  return assembled(std::move(edited), {&events, &more}, std::move(taken), table.metadata);
}

}  // namespace traceap
