#include "traceap/bindings/arg_columns.hpp"

#include "traceap/base/interrupt.hpp"

namespace traceap::bindings {

namespace {

/// Calls `read(i, row)` for all rows, or for the i-th of the given ones.
template <class Read>
void for_rows(const EventTable& table, const RowChoice& rows, Read&& read) {
  if (rows) {
    for (std::size_t i = 0; i < rows->size(); ++i) read(i, (*rows)[i]);
  } else {
    for (Row row = 0; row < table.size(); ++row) read(row, row);
  }
}

std::size_t count_of(const EventTable& table, const RowChoice& rows) {
  return rows ? rows->size() : table.size();
}

}  // namespace

IntColumn read_int_column(const EventTable& table, std::string_view key, const RowChoice& rows) {
  const ArgReader reader(table, key);
  const std::size_t count = count_of(table, rows);
  IntColumn column{std::vector<std::int64_t>(count, 0), std::vector<std::uint8_t>(count, 0)};
  for_rows(table, rows, [&](std::size_t i, Row row) {
    const auto value = reader.integer(row);
    if (!value) return;
    column.values[i] = *value;
    column.valid[i] = 1;
  });
  return column;
}

TextColumn read_text_column(const EventTable& table, std::string_view key) {
  const ArgReader reader(table, key);
  TextColumn column{StringPool(), std::vector<StringId>(table.size(), kNoString)};
  for (Row row = 0; row < table.size(); ++row) {
    poll_interrupt();
    if (const auto text = reader.text(row)) column.ids[row] = column.texts.intern(*text);
  }
  return column;
}

namespace {

/// Codes of one key's texts. A text is built once for each template and the packed bytes that fill
/// it, which repeat far more often than they differ.
class TextCoder {
 public:
  TextCoder(const EventTable& table, std::string_view key)
      : template_id_(table.args.template_id),
        reader_(table, key),
        constant_(table.args.templates.size(), kUnknown) {}

  std::int32_t code(Row row) {
    const auto packed = reader_.packed(row);
    if (!packed) return code_of_text(row);
    if (packed->empty()) {
      std::int32_t& known = constant_[template_id_[row]];
      if (known == kUnknown) known = code_of_text(row);
      return known;
    }
    const StringId id = template_id_[row];
    source_.assign(reinterpret_cast<const char*>(&id), sizeof id);
    source_ += *packed;
    const StringId source = sources_.intern(source_);
    if (source == codes_.size()) codes_.push_back(code_of_text(row));
    return codes_[source];
  }
  StringPool take_texts() { return std::move(texts_); }

 private:
  static constexpr std::int32_t kUnknown = -2;

  std::int32_t code_of_text(Row row) {
    const auto text = reader_.text(row);
    return text ? static_cast<std::int32_t>(texts_.intern(*text)) : -1;
  }

  const NarrowColumn<StringId, kNoString>& template_id_;
  ArgReader reader_;
  std::vector<std::int32_t> constant_;  ///< by template: code of a value without slots
  StringPool texts_, sources_;
  std::string source_;
  std::vector<std::int32_t> codes_;  ///< by source
};

}  // namespace

TextCodes read_text_codes(const EventTable& table, std::string_view key, const RowChoice& rows) {
  TextCoder coder(table, key);
  std::vector<std::int32_t> codes(count_of(table, rows));
  for_rows(table, rows, [&](std::size_t i, Row row) { codes[i] = coder.code(row); });
  return {coder.take_texts(), std::move(codes)};
}

std::vector<std::int64_t> read_launch_delays(const EventTable& table, const EventTree& tree) {
  std::vector<std::int64_t> delays;
  delays.reserve(tree.gpu_rows.size());
  for (Row row : tree.gpu_rows) delays.push_back(launch_delay_ns(table, tree, row));
  return delays;
}

}  // namespace traceap::bindings
