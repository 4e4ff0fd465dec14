#pragma once
// One key of `args` for all or some rows as plain vectors, ready to leave as arrays. No Python
// here, so that it runs without the GIL.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "traceap/table/event_table.hpp"
#include "traceap/tree/event_tree.hpp"

namespace traceap::bindings {

/// Some rows, or all of a table.
using RowChoice = std::optional<std::vector<Row>>;

struct IntColumn {
  std::vector<std::int64_t> values;  ///< 0 where absent
  std::vector<std::uint8_t> valid;   ///< 0 or 1
};
IntColumn read_int_column(const EventTable& table, std::string_view key, const RowChoice& rows);

/// Distinct texts once; kNoString where the row lacks the key.
struct TextColumn {
  StringPool texts;
  std::vector<StringId> ids;
};
TextColumn read_text_column(const EventTable& table, std::string_view key);

/// The same as indices into the distinct texts, in order of first use; -1 where absent.
struct TextCodes {
  StringPool texts;
  std::vector<std::int32_t> codes;
};
TextCodes read_text_codes(const EventTable& table, std::string_view key, const RowChoice& rows);

/// launch_delay_ns of every row of tree.gpu_rows.
std::vector<std::int64_t> read_launch_delays(const EventTable& table, const EventTree& tree);

}  // namespace traceap::bindings
