#include "traceap/trace/stored_table.hpp"

#include <isa-l/crc.h>

#include <algorithm>
#include <future>
#include <memory>
#include <optional>
#include <type_traits>

#include "traceap/base/error.hpp"
#include "traceap/base/interrupt.hpp"
#include "traceap/base/intervals.hpp"
#include "traceap/table/json_text.hpp"
#include "traceap/trace/assemble.hpp"

namespace traceap {
namespace {

void require(bool holds, const std::string& what) {
  if (!holds) throw SchemaError(what);
}

std::size_t size_of(const StoredIntegers& column) {
  return std::visit([](auto values) { return values.size(); }, column);
}

/// The numbers as T; nothing outside of [0, most] may be among them.
template <class T>
std::vector<T> widened(const StoredIntegers& column, std::uint64_t most, const std::string& what) {
  return std::visit(
      [&](auto values) {
        using Value = typename decltype(values)::value_type;
        std::vector<T> wide(values.size());
        Value highest = 0;
        bool negative = false;
        for (std::size_t i = 0; i < values.size(); ++i) {
          highest = std::max(highest, values[i]);
          if constexpr (std::is_signed_v<Value>) negative |= values[i] < 0;
          wide[i] = static_cast<T>(values[i]);
        }
        if (negative || static_cast<std::uint64_t>(highest) > most) {
          throw SchemaError(what + ": a number beyond " + std::to_string(most) + " or below 0");
        }
        return wide;
      },
      column);
}

std::vector<std::uint32_t> codes_of(const StoredIntegers& column, std::size_t size,
                                    const std::string& what) {
  require(size > 0, what + ": there is nothing that codes could stand for");
  return widened<std::uint32_t>(column, size - 1, what);
}

/// Where texts begin, and behind the last of them the end of the data.
std::vector<std::uint64_t> offsets_of(const StoredTexts& texts, const std::string& what) {
  std::vector<std::uint64_t> offsets{0};
  offsets.reserve(size_of(texts.sizes) + 1);
  std::uint64_t end = 0;
  std::visit(
      [&](auto sizes) {
        for (const auto size : sizes) {
          end += static_cast<std::uint64_t>(size);
          require(static_cast<std::uint64_t>(size) <= texts.data.size() && end <= texts.data.size(),
                  what + ": sizes within the data were expected");
          offsets.push_back(end);
        }
      },
      texts.sizes);
  return offsets;
}

std::vector<std::string_view> texts_of(const StoredTexts& texts, const std::string& what) {
  const std::vector<std::uint64_t> offsets = offsets_of(texts, what);
  const auto* data = reinterpret_cast<const char*>(texts.data.data());
  std::vector<std::string_view> found;
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    found.emplace_back(data + offsets[i], offsets[i + 1] - offsets[i]);
  }
  return found;
}

void check_lengths(const StoredTable& s) {
  const std::size_t rows = size_of(s.starts.values);
  require(rows > 0, "at least one event was expected");
  require(rows < kNoRow, "more than 4294967294 events");
  for (const StoredIntegers* column :
       {&s.dur_ns, &s.correlation.values, &s.external_id.values, &s.name, &s.track, &s.template_id,
        &s.category, &s.device.codes, &s.stream.codes, &s.values.sizes}) {
    require(size_of(*column) == rows, "columns of equal length were expected");
  }
  for (const auto& column : {s.kind, s.phase, s.flags}) {
    require(column.size() == rows, "columns of equal length were expected");
  }
}

/// Rows without a time first, then by start, longer first.
void check_times(const EventTable& t) {
  for (Row r = 0; r < t.size(); ++r) {
    const std::int64_t ts = t.ts_ns[r];
    const bool timed = (t.flags[r] & kHasTime) != 0;
    if (ts < -kMaxTimeNs || ts > kMaxTimeNs || (!timed && ts != 0)) {
      throw SchemaError("ts_ns: row " + std::to_string(r) + ": no possible time");
    }
    if (r == 0) continue;
    const bool before_timed = (t.flags[r - 1] & kHasTime) != 0;
    const bool in_order =
        timed == before_timed
            ? t.ts_ns[r - 1] < ts || (t.ts_ns[r - 1] == ts && t.dur_ns[r - 1] >= t.dur_ns[r])
            : timed;
    if (!in_order) throw SchemaError("ts_ns: row " + std::to_string(r) + ": out of order");
  }
}

void check_tracks(const StoredTable& s) {
  for (std::size_t i = 1; i < s.tracks.size(); ++i) {
    require(s.tracks[i - 1] < s.tracks[i], "tracks: distinct ones in order were expected");
  }
}

constexpr std::size_t kLongestVarint = 10;  ///< bytes of a packed integer

/// What a template asks of its rows.
struct TemplateNeeds {
  std::string kinds;  ///< packed values, in order
  bool only_integers = true, pid = false, tid = false;
};

/// Of an event's template, or (without a place for another one) of its packed arguments.
TemplateNeeds needs_of(std::string_view text, bool may_pack_args = true) {
  require(text.starts_with('{') && is_valid_json(text, Slots::kAllowed),
          "template: a JSON object with placeholders was expected");
  TemplateNeeds needs;
  for (const char c : text) {
    if (c >= 0x20 || c < 0 || is_json_space(c)) continue;
    const bool known = (c >= kSlotTs && c <= kSlotTid) || (c >= kSlotCorrelation && c <= kSlotArgs);
    require(known && (c != kSlotArgs || may_pack_args), "template: an unknown placeholder");
    if (c == kSlotArgs) may_pack_args = false;
    needs.pid |= c == kSlotPid;
    needs.tid |= c == kSlotTid;
    if (c >= kSlotInteger) needs.kinds.push_back(c);
    if (c > kSlotInteger) needs.only_integers = false;
  }
  return needs;
}

/// Goes over the values that stand first in `bytes`; false where they are not there.
bool take_values(std::string_view& bytes, const TemplateNeeds& needs, std::uint8_t has) {
  if ((needs.pid && (has & 1) == 0) || (needs.tid && (has & 2) == 0)) return false;
  const auto take = [&](std::size_t size) {
    const std::string_view taken = bytes.substr(0, size);
    bytes.remove_prefix(taken.size());
    return taken;
  };
  for (const char kind : needs.kinds) {
    if (kind == kSlotNumber) {
      const std::size_t size = bytes.empty() ? 0 : static_cast<std::uint8_t>(take(1)[0]);
      if (size > bytes.size() || !is_json_number(take(size))) return false;
      continue;
    }
    const auto* p = reinterpret_cast<const std::uint8_t*>(bytes.data());
    std::size_t last = 0;
    while (last < bytes.size() && bytes[last] < 0) ++last;
    if (last >= std::min(bytes.size(), kLongestVarint)) return false;
    take(last + 1);
    if (kind == kSlotInteger) continue;
    const auto size = static_cast<std::uint64_t>(read_varint(p));
    if (size > bytes.size() || !take_values(bytes, needs_of(take(size), false), has)) return false;
  }
  return true;
}

/// Do these bytes hold the values, and nothing else? Whoever reads them later trusts it.
bool holds_values(std::string_view bytes, const TemplateNeeds& needs, std::uint8_t has) {
  if (!needs.only_integers) return take_values(bytes, needs, has) && bytes.empty();
  if ((needs.pid && (has & 1) == 0) || (needs.tid && (has & 2) == 0)) return false;
  std::size_t ends = 0;  // one that is too long reads as several, within the bytes
  for (const char c : bytes) ends += c >= 0 ? 1 : 0;
  return ends == needs.kinds.size() && (bytes.empty() || bytes.back() >= 0);
}

void check_values(const EventTable& t, const std::vector<std::string_view>& templates,
                  const std::vector<std::uint32_t>& template_of) {
  std::vector<TemplateNeeds> needs;
  for (const std::string_view text : templates) needs.push_back(needs_of(text));
  std::vector<std::uint8_t> numbered;  // by track: 1 pid, 2 tid
  for (const Track& track : t.tracks) {
    numbered.push_back(
        static_cast<std::uint8_t>((track.pid_number() ? 1 : 0) | (track.tid_number() ? 2 : 0)));
  }
  const auto* data = reinterpret_cast<const char*>(t.args.values.data());
  for (Row r = 0; r < t.size(); ++r) {
    poll_interrupt();
    const std::size_t begin = t.args.values_offset[r];
    const std::size_t end = r + 1 < t.size() ? t.args.values_offset[r + 1] : t.args.values.size();
    if (!holds_values({data + begin, end - begin}, needs[template_of[r]], numbered[t.track[r]])) {
      throw SchemaError("values: row " + std::to_string(r) + ": not what its template asks for");
    }
  }
}

/// The ids that texts get in a pool.
std::vector<StringId> intern_all(const std::vector<std::string_view>& texts, StringPool& pool) {
  std::vector<StringId> ids;
  ids.reserve(texts.size() + 1);
  for (const std::string_view text : texts) {
    poll_interrupt();
    ids.push_back(pool.intern(text));
  }
  return ids;
}

/// Replaces places of texts by their ids, which differ only where a text comes twice.
void renumber(std::vector<std::uint32_t>& codes, const std::vector<StringId>& ids) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] == i) continue;
    for (std::uint32_t& code : codes) code = ids[code];
    return;
  }
}

/// A narrow column of few distinct values: these are widened once, and not row by row.
template <class T, T kAbsent>
void restore_codes(std::span<const T> distinct, std::span<const std::uint32_t> codes,
                   NarrowColumn<T, kAbsent>& column) {
  NarrowColumn<T, kAbsent> values;
  values.append(distinct);
  column = values.pick(codes);
}

void restore_starts(const StoredTable& s, EventTable& t) {
  std::visit(
      [&](auto values) {
        t.ts_ns.resize(values.size());
        auto sum = static_cast<std::uint64_t>(s.starts.first.value_or(0));  // may wrap, is checked
        for (std::size_t r = 0; r < values.size(); ++r) {
          const auto value = static_cast<std::uint64_t>(values[r]);
          sum = s.starts.first ? sum + value : value;
          const bool untimed = s.starts.first && (s.flags[r] & kHasTime) == 0;
          t.ts_ns[r] = untimed ? 0 : static_cast<std::int64_t>(sum);
        }
      },
      s.starts.values);
}

void restore_values(const StoredTexts& values, ArgStore& args) {
  const std::vector<std::uint64_t> offsets = offsets_of(values, "values");
  args.values.assign(values.data.begin(),
                     values.data.begin() + static_cast<std::ptrdiff_t>(offsets.back()));
  args.values_offset.append({offsets.begin(), offsets.end() - 1});
}

void restore_ids(const StoredIds& ids, NarrowColumn<std::int64_t, kNoId>& column) {
  std::visit(
      [&](auto values) {
        std::vector<std::int64_t> wide(values.size());
        const std::uint64_t before = static_cast<std::uint64_t>(ids.lowest.value_or(1)) - 1;
        for (std::size_t r = 0; r < values.size(); ++r) {
          const auto value = static_cast<std::uint64_t>(values[r]);
          const bool absent = ids.lowest && value == 0;
          wide[r] = absent ? kNoId : static_cast<std::int64_t>(value + before);
        }
        column.append(wide);
      },
      ids.values);
}

void restore_tracks(const StoredTable& s, EventTable& t) {
  t.track_texts = std::make_shared<TrackTexts>();
  for (const auto& [pid, tid] : s.tracks) {
    Track& track = t.tracks.emplace_back();
    track.pid = t.track_texts->texts.store(pid);
    track.tid = t.track_texts->texts.store(tid);
  }
}

void restore_kinds(const StoredTable& s, EventTable& t) {
  t.phase.assign(s.phase.begin(), s.phase.end());
  t.flags.assign(s.flags.begin(), s.flags.end());
  t.kind.resize(s.kind.size());
  for (std::size_t r = 0; r < s.kind.size(); ++r) {
    require(s.kind[r] < kEventKindCount, "kind: an unknown one");
    t.kind[r] = static_cast<EventKind>(s.kind[r]);
  }
}

void restore_names(const StoredTable& s, EventTable& t) {
  std::vector<StringId> ids = intern_all(texts_of(s.strings, "name"), t.strings);
  t.name = codes_of(s.name, ids.size(), "name");
  renumber(t.name, ids);
  ids.push_back(kNoString);
  restore_codes<StringId, kNoString>(ids, codes_of(s.category, ids.size(), "category"), t.category);
}

}  // namespace

EventTable restore_table(const StoredTable& s, unsigned threads) {
  check_lengths(s);
  check_tracks(s);
  EventTable t;
  restore_kinds(s, t);
  restore_starts(s, t);
  t.dur_ns = widened<std::int64_t>(s.dur_ns, kMaxTimeNs, "dur_ns");
  check_times(t);
  restore_tracks(s, t);
  t.track = codes_of(s.track, t.tracks.size(), "track");
  restore_values(s.values, t.args);
  const std::vector<std::string_view> templates = texts_of(s.templates, "template");
  std::vector<std::uint32_t> template_of = codes_of(s.template_id, templates.size(), "template");
  // Where there is one thread only, they are checked when the rest is done.
  std::future<void> checked = std::async(threads == 1 ? std::launch::deferred : std::launch::async,
                                         [&] { check_values(t, templates, template_of); });
  restore_names(s, t);
  restore_codes(s.device.distinct, codes_of(s.device.codes, s.device.distinct.size(), "device"),
                t.device);
  restore_codes(s.stream.distinct, codes_of(s.stream.codes, s.stream.distinct.size(), "stream"),
                t.stream);
  restore_ids(s.correlation, t.correlation);
  restore_ids(s.external_id, t.external_id);
  checked.get();
  const std::vector<StringId> shapes = intern_all(templates, t.args.templates);
  restore_codes<StringId, kNoString>(shapes, template_of, t.args.template_id);
  name_tracks(t);
  t.metadata = s.metadata;
  clean_metadata(t.metadata, t.diagnostics);
  read_metadata(t);
  t.diagnostics = Diagnostics();  // what reading the text found says all of it
  for (const Diagnostic& found : s.diagnostics) {
    t.diagnostics.add(found.code, found.message, found.count, found.first_byte_offset);
  }
  t.path = s.path;
  t.total_objects = s.total_objects;
  t.text_bytes = s.text_bytes;
  return t;
}

std::uint32_t checksum(std::span<const std::uint8_t> bytes) {
  return crc32_gzip_refl(0, bytes.data(), bytes.size());
}

PackedRows pack_rows(const EventTable& table) {
  PackedRows rows;
  const PackedValues packed(table);
  rows.offsets.reserve(std::size_t{table.size()} + 1);
  rows.offsets.push_back(0);
  rows.data.reserve(table.args.values.size());
  for (Row r = 0; r < table.size(); ++r) {
    poll_interrupt();
    const std::span<const std::uint8_t> values = packed[r];
    rows.data.insert(rows.data.end(), values.begin(), values.end());
    rows.offsets.push_back(static_cast<std::int64_t>(rows.data.size()));
  }
  return rows;
}

}  // namespace traceap
