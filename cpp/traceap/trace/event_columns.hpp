#pragma once
// EventTables that no file stands behind: from columns, and from a table whose events moved. No
// text of theirs is parsed.

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "traceap/table/event_table.hpp"

namespace traceap {

/// Texts by code: [n] indices in `texts`.
struct TextCells {
  std::span<const std::uint32_t> codes;
  std::vector<std::string> texts;
  bool is_json = false;  ///< each text is a JSON value as it stands, else the inside of a string
};

/// One key of `args`, or of the event itself, for all events.
struct CellColumn {
  std::string key;
  std::variant<std::span<const std::int64_t>, std::span<const double>, TextCells> cells;
  std::span<const std::uint8_t> present;  ///< [n]: 0 where an event lacks the key; empty: none does
};

/// Events as columns [n], in any order.
struct EventColumns {
  std::span<const std::int64_t> ts_ns;
  std::span<const std::int64_t> dur_ns;  ///< of phase X; others have none
  std::span<const std::uint8_t> phase;   ///< letters
  std::span<const std::uint32_t> name;
  std::span<const std::uint32_t> category;  ///< kNoString: none
  std::span<const std::uint32_t> track;
  std::vector<std::string> strings;                           ///< names and categories
  std::vector<std::pair<std::string, std::string>> tracks;    ///< pid and tid
  std::vector<CellColumn> args, members;                      ///< in the order in which they stand
  std::vector<std::pair<std::string, std::string>> metadata;  ///< top-level: key and JSON text
  std::string path;                                           ///< stands for the file in messages
};

/// The table that reading a file of these events would give: sorted, B and E matched, devices, rank
/// and names of tracks taken from metadata. Throws SchemaError for columns of different lengths,
/// codes outside their texts, times or durations outside what a table holds, numbers that are not
/// finite, and texts that are no JSON where they should be.
EventTable build_table(const EventColumns& columns);

/// How the events of a table differ in one made from it, by row.
struct RowEdits {
  std::span<const std::int64_t> ts_ns, dur_ns;
  std::span<const std::uint8_t> kept;         ///< 0: the event is gone
  std::span<const std::int64_t> correlation;  ///< of events that carry a correlation id
};

/// The table with its events at other times, some of them gone, and `more_events` (JSON objects)
/// among them. What the events say otherwise, and the top-level members, stay as they are; rows get
/// new numbers. Throws SchemaError for columns of another length, times or durations outside what
/// a table holds, and texts that are no events.
EventTable edit_table(const EventTable& table, const RowEdits& edits,
                      const std::vector<std::string>& more_events = {});

}  // namespace traceap
