#include <array>
#include <map>
#include <optional>

#include "traceap/bindings/arrow.hpp"

namespace traceap::bindings {
namespace {

using Table = std::shared_ptr<const EventTable>;
using Texts = std::shared_ptr<const ArrowTexts>;

template <typename T>
ArrowColumn plain(const Table& table, const char* name, const char* format,
                  const std::vector<T>& values) {
  ArrowColumn column;
  column.name = name;
  column.format = format;
  column.values = values.data();
  column.owner = table;
  return column;
}

/// The same, null where the value is `absent`.
template <typename T>
ArrowColumn nullable(const Table& table, const char* name, const char* format,
                     const std::vector<T>& values, T absent) {
  ArrowColumn column = plain(table, name, format, values);
  set_validity(column, values.size(), [&](std::size_t i) { return values[i] != absent; });
  return column;
}

template <typename T>
ArrowColumn owned(const char* name, const char* format, std::vector<T>&& values) {
  const auto kept = std::make_shared<const std::vector<T>>(std::move(values));
  ArrowColumn column;
  column.name = name;
  column.format = format;
  column.values = kept->data();
  column.owner = kept;
  return column;
}

Texts texts_of(const StringPool& strings) {
  auto texts = std::make_shared<ArrowTexts>();
  texts->data.reserve(strings.text_bytes());
  texts->offsets.reserve(strings.size() + 1);
  for (StringId id = 0; id < strings.size(); ++id) texts->add(strings[id]);
  return texts;
}

/// Indices are written as int32 although ids are unsigned: consumers (pandas among them) refuse
/// unsigned dictionary indices, and no trace has 2^31 distinct names.
ArrowColumn name_column(const Table& table, const Texts& texts) {
  ArrowColumn column = plain(table, "name", "i", table->name);
  column.dictionary = texts;
  return column;
}

ArrowColumn category_column(const Table& table, const Texts& texts) {
  ArrowColumn column = nullable(table, "category", "i", table->category, kNoString);
  column.dictionary = texts;
  return column;
}

ArrowColumn kind_column(const Table& table) {
  ArrowColumn column = plain(table, "kind", "c", table->kind);
  auto texts = std::make_shared<ArrowTexts>();
  for (int kind = 0; kind < kEventKindCount; ++kind) {
    texts->add(kind_name(static_cast<EventKind>(kind)));
  }
  column.dictionary = texts;
  return column;
}

/// Phases are letters of the file, any byte: mapped to the letters that occur.
ArrowColumn phase_column(const EventTable& table) {
  std::array<std::int16_t, 256> code_of;
  code_of.fill(-1);
  auto texts = std::make_shared<ArrowTexts>();
  std::vector<std::int16_t> codes;
  codes.reserve(table.phase.size());
  for (char phase : table.phase) {
    std::int16_t& code = code_of[static_cast<unsigned char>(phase)];
    if (code < 0) {
      code = static_cast<std::int16_t>(texts->size());
      texts->add({&phase, 1});
    }
    codes.push_back(code);
  }
  ArrowColumn column = owned("phase", "s", std::move(codes));
  column.dictionary = texts;
  return column;
}

/// pid or tid: several tracks share a pid, and a dictionary must not repeat its texts.
ArrowColumn track_text_column(const EventTable& table, const char* name,
                              std::string Track::*member) {
  std::map<std::string_view, std::int32_t> code_of;
  std::vector<std::int32_t> track_codes;
  auto texts = std::make_shared<ArrowTexts>();
  for (const Track& track : table.tracks) {
    const auto next = static_cast<std::int32_t>(texts->size());
    const auto [entry, is_new] = code_of.emplace(track.*member, next);
    if (is_new) texts->add(track.*member);
    track_codes.push_back(entry->second);
  }
  std::vector<std::int32_t> codes;
  codes.reserve(table.track.size());
  for (TrackId track : table.track) codes.push_back(track_codes[track]);
  ArrowColumn column = owned(name, "i", std::move(codes));
  column.dictionary = texts;
  return column;
}

ArrowColumn rank_column(std::size_t length, std::optional<std::int64_t> rank) {
  ArrowColumn column = owned("rank", "l", std::vector<std::int64_t>(length, rank.value_or(0)));
  if (!rank) set_validity(column, length, [](std::size_t) { return false; });
  return column;
}

}  // namespace

ArrowBatch make_event_batch(const Table& table, bool with_rank, std::optional<std::int64_t> rank) {
  const EventTable& t = *table;
  const Texts texts = texts_of(t.strings);
  ArrowBatch batch;
  batch.length = t.size();
  if (with_rank) batch.columns.push_back(rank_column(t.size(), rank));
  batch.columns.push_back(plain(table, "ts_ns", "l", t.ts_ns));
  batch.columns.push_back(plain(table, "dur_ns", "l", t.dur_ns));
  batch.columns.push_back(name_column(table, texts));
  batch.columns.push_back(category_column(table, texts));
  batch.columns.push_back(kind_column(table));
  batch.columns.push_back(phase_column(t));
  batch.columns.push_back(plain(table, "flags", "C", t.flags));
  batch.columns.push_back(plain(table, "track", "I", t.track));
  batch.columns.push_back(track_text_column(t, "pid", &Track::pid));
  batch.columns.push_back(track_text_column(t, "tid", &Track::tid));
  batch.columns.push_back(nullable(table, "device", "i", t.device, std::int32_t{-1}));
  batch.columns.push_back(nullable(table, "stream", "l", t.stream, kNoId));
  batch.columns.push_back(nullable(table, "correlation", "l", t.correlation, kNoId));
  batch.columns.push_back(nullable(table, "external_id", "l", t.external_id, kNoId));
  return batch;
}

}  // namespace traceap::bindings
