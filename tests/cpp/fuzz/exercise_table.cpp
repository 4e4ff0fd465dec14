#include <algorithm>
#include <array>
#include <limits>

#include "exercises.hpp"
#include "traceap/base/row_groups.hpp"
#include "traceap/bindings/arg_columns.hpp"
#include "traceap/table/json_text.hpp"

namespace traceap::fuzz {
namespace {

/// Keys that some analysis asks for.
constexpr std::array<std::string_view, 16> kKeys{"External id",
                                                 "correlation",
                                                 "device",
                                                 "stream",
                                                 "Input Dims",
                                                 "Input type",
                                                 "Sequence number",
                                                 "Collective name",
                                                 "Process Group Ranks",
                                                 "In msg nelems",
                                                 "grid",
                                                 "Module Hierarchy",
                                                 "bytes",
                                                 "ts",
                                                 "name",
                                                 ""};

void check_columns(const EventTable& table) {
  const std::size_t n = table.size();
  check(table.dur_ns.size() == n && table.name.size() == n && table.category.size() == n &&
            table.kind.size() == n && table.phase.size() == n && table.flags.size() == n &&
            table.track.size() == n && table.device.size() == n && table.stream.size() == n &&
            table.correlation.size() == n && table.external_id.size() == n,
        "columns of a table have one length");
  for (Row row = 0; row < n; ++row) {
    check(table.dur_ns[row] >= 0 && table.dur_ns[row] <= kMaxTimeNs, "a duration is in bounds");
    check(table.ts_ns[row] >= -kMaxTimeNs && table.ts_ns[row] <= kMaxTimeNs, "a time is in bounds");
    check(table.name[row] < table.strings.size(), "a name is a string of the pool");
    check(table.track[row] < table.tracks.size(), "a track is one of the table");
    if (row == 0 || !(table.flags[row - 1] & kHasTime)) continue;
    check(table.ts_ns[row - 1] <= table.ts_ns[row], "rows are sorted by start");
  }
}

void check_key(const EventTable& table, std::string_view key) {
  const ArgReader reader(table, key);
  const auto integers = bindings::read_int_column(table, key, {});
  const auto texts = bindings::read_text_column(table, key);
  const auto codes = bindings::read_text_codes(table, key, {});
  for (Row row = 0; row < table.size(); ++row) {
    const auto text = reader.text(row);
    check(text.has_value() == reader.has(row), "a key that is there has a text");
    check(reader.integer(row).has_value() == (integers.valid[row] != 0), "integers of a key");
    check(text.has_value() == (texts.ids[row] != kNoString), "texts of a key");
    check(text.has_value() == (codes.codes[row] >= 0), "codes of a key");
    if (!text) continue;
    check(texts.texts[texts.ids[row]] == *text, "a text of a key");
    check(codes.texts[static_cast<StringId>(codes.codes[row])] == *text, "a code's text");
    check(is_valid_json(reader.json(row).value_or("")), "a value is JSON");
  }
}

void check_groups(const EventTable& table) {
  std::vector<std::int64_t> names(table.name.begin(), table.name.end());
  const std::vector<std::int64_t> streams = table.stream.values();
  const std::array<std::span<const std::int64_t>, 2> keys{names, streams};
  const RowGroups groups = group_rows(keys);
  check(groups.rows.size() == table.size(), "every row is in a group");
  const std::vector<double> values(table.dur_ns.begin(), table.dur_ns.end());
  for (const double value : group_quantiles(groups, values, 0.5)) check(value >= 0, "a median");
}

}  // namespace

void exercise_table(const EventTable& table, Choices& choices) {
  check_columns(table);
  for (Row row = 0; row < table.size(); ++row) {
    check(is_valid_json(event_json(table, row)), "an event's text is JSON");
    check(is_valid_json(args_json(table, row)), "the text of args is JSON");
  }
  check_key(table, choices.of(kKeys));
  check_groups(table);
}

}  // namespace traceap::fuzz
