#include "traceap/bindings/arg_columns.hpp"

namespace traceap::bindings {

IntColumn read_int_column(const EventTable& table, std::string_view key) {
  const ArgReader reader(table, key);
  IntColumn column{std::vector<std::int64_t>(table.size(), 0),
                   std::vector<std::uint8_t>(table.size(), 0)};
  for (Row row = 0; row < table.size(); ++row) {
    const auto value = reader.integer(row);
    if (!value) continue;
    column.values[row] = *value;
    column.valid[row] = 1;
  }
  return column;
}

TextColumn read_text_column(const EventTable& table, std::string_view key) {
  const ArgReader reader(table, key);
  TextColumn column{StringPool(), std::vector<StringId>(table.size(), kNoString)};
  for (Row row = 0; row < table.size(); ++row) {
    if (const auto text = reader.text(row)) column.ids[row] = column.texts.intern(*text);
  }
  return column;
}

namespace {

std::int32_t text_code(const ArgReader& reader, Row row, TextCodes& column) {
  const auto text = reader.text(row);
  return text ? static_cast<std::int32_t>(column.texts.intern(*text)) : -1;
}

}  // namespace

TextCodes read_text_codes(const EventTable& table, std::string_view key) {
  const ArgReader reader(table, key);
  TextCodes column{StringPool(), std::vector<std::int32_t>(table.size())};
  for (Row row = 0; row < table.size(); ++row) column.codes[row] = text_code(reader, row, column);
  return column;
}

TextCodes read_text_codes(const EventTable& table, std::string_view key,
                          std::span<const Row> rows) {
  const ArgReader reader(table, key);
  TextCodes column{StringPool(), {}};
  column.codes.reserve(rows.size());
  for (const Row row : rows) column.codes.push_back(text_code(reader, row, column));
  return column;
}

std::vector<std::int64_t> read_launch_delays(const EventTable& table, const EventTree& tree) {
  std::vector<std::int64_t> delays;
  delays.reserve(tree.gpu_rows.size());
  for (Row row : tree.gpu_rows) delays.push_back(launch_delay_ns(table, tree, row));
  return delays;
}

}  // namespace traceap::bindings
