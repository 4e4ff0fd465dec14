#include "traceap/trace/stored_table.hpp"

#include <isa-l/crc.h>

#include <algorithm>
#include <future>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>

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

void check_texts(const StoredTexts& texts, const std::string& what) {
  require(!texts.offsets.empty() && texts.offsets.front() >= 0 &&
              std::is_sorted(texts.offsets.begin(), texts.offsets.end()) &&
              static_cast<std::uint64_t>(texts.offsets.back()) <= texts.data.size(),
          what + ": offsets that rise and stay inside of the data were expected");
}

template <class T>
void check_codes(std::span<const T> codes, std::size_t size, const std::string& what) {
  T most = 0;
  for (const T code : codes) most = std::max(most, code);
  if (most >= size) {
    throw SchemaError(what + ": code " + std::to_string(most) + " of " + std::to_string(size));
  }
}

void check_lengths(const StoredTable& s) {
  const std::size_t rows = s.ts_ns.size();
  require(rows > 0, "at least one event was expected");
  require(rows < kNoRow, "more than 4294967294 events");
  const bool all_equal =
      s.dur_ns.size() == rows && s.stream.codes.size() == rows && s.correlation.size() == rows &&
      s.external_id.size() == rows && s.name.size() == rows && s.category.size() == rows &&
      s.track.size() == rows && s.template_id.size() == rows && s.device.codes.size() == rows &&
      s.kind.size() == rows && s.phase.size() == rows && s.flags.size() == rows &&
      s.values.size() == rows;
  require(all_equal, "columns of equal length were expected");
}

/// Rows without a time first, then by start, longer first.
void check_times(const StoredTable& s) {
  for (std::size_t r = 0; r < s.ts_ns.size(); ++r) {
    const std::int64_t ts = s.ts_ns[r], dur = s.dur_ns[r];
    const bool fits = ts >= -kMaxTimeNs && ts <= kMaxTimeNs && dur >= 0 && dur <= kMaxTimeNs;
    const bool timed = (s.flags[r] & kHasTime) != 0;
    if (!fits || (!timed && ts != 0)) {
      throw SchemaError("ts_ns, dur_ns: row " + std::to_string(r) + ": no possible time");
    }
    if (r == 0) continue;
    const bool before_timed = (s.flags[r - 1] & kHasTime) != 0;
    const bool in_order = timed == before_timed ? s.ts_ns[r - 1] < ts || (s.ts_ns[r - 1] == ts &&
                                                                          s.dur_ns[r - 1] >= dur)
                                                : timed;
    if (!in_order) throw SchemaError("ts_ns: row " + std::to_string(r) + ": out of order");
  }
}

void check_tracks(const StoredTable& s) {
  for (std::size_t i = 1; i < s.tracks.size(); ++i) {
    require(s.tracks[i - 1] < s.tracks[i], "tracks: distinct ones in order were expected");
  }
}

/// What a template asks of its rows.
struct TemplateNeeds {
  std::string kinds;  ///< packed values, in order
  bool only_integers = true, pid = false, tid = false;
};

TemplateNeeds needs_of(std::string_view text) {
  require(text.starts_with('{') && is_valid_json(text, Slots::kAllowed),
          "template: a JSON object with placeholders was expected");
  TemplateNeeds needs;
  for (const char c : text) {
    if (c >= 0x20 || c < 0 || is_json_space(c)) continue;
    const bool known =
        (c >= kSlotTs && c <= kSlotTid) || (c >= kSlotCorrelation && c <= kSlotNumber);
    require(known, "template: an unknown placeholder");
    needs.pid |= c == kSlotPid;
    needs.tid |= c == kSlotTid;
    if (c == kSlotInteger || c == kSlotNumber) needs.kinds.push_back(c);
    if (c == kSlotNumber) needs.only_integers = false;
  }
  return needs;
}

/// Do these bytes hold the values, and nothing else? Whoever reads them later trusts it.
bool holds_values(std::string_view bytes, const TemplateNeeds& needs) {
  if (needs.only_integers) {
    std::size_t ends = 0;
    for (const char c : bytes) ends += c >= 0 ? 1 : 0;
    return ends == needs.kinds.size() && (bytes.empty() || bytes.back() >= 0);
  }
  std::size_t at = 0;
  for (const char kind : needs.kinds) {
    if (kind == kSlotInteger) {
      while (at < bytes.size() && bytes[at] < 0) ++at;
      if (at++ >= bytes.size()) return false;
      continue;
    }
    if (at >= bytes.size()) return false;
    const std::size_t size = static_cast<std::uint8_t>(bytes[at++]);
    if (size > bytes.size() - at || !is_json_number(bytes.substr(at, size))) return false;
    at += size;
  }
  return at == bytes.size();
}

void check_values(const StoredTable& s) {
  std::vector<TemplateNeeds> needs;
  for (std::size_t id = 0; id < s.templates.size(); ++id)
    needs.push_back(needs_of(s.templates[id]));
  std::vector<std::uint8_t> numbered;  // by track: 1 pid, 2 tid
  for (const auto& [pid, tid] : s.tracks) {
    numbered.push_back(
        static_cast<std::uint8_t>((parse_int64(pid) ? 1 : 0) | (parse_int64(tid) ? 2 : 0)));
  }
  for (std::size_t r = 0; r < s.template_id.size(); ++r) {
    poll_interrupt();
    const TemplateNeeds& wanted = needs[s.template_id[r]];
    const std::uint8_t has = numbered[s.track[r]];
    const bool fits = (!wanted.pid || (has & 1) != 0) && (!wanted.tid || (has & 2) != 0) &&
                      holds_values(s.values[r], wanted);
    if (!fits) {
      throw SchemaError("values: row " + std::to_string(r) + ": not what its template asks for");
    }
  }
}

/// All but the packed values.
void check_columns(const StoredTable& s) {
  check_lengths(s);
  check_texts(s.values, "values");
  check_texts(s.strings, "name");
  check_texts(s.templates, "template");
  require(s.values.offsets.back() - s.values.offsets.front() <=
              std::numeric_limits<std::uint32_t>::max(),
          "values: more than 4 GiB");
  check_codes(s.name, s.strings.size(), "name");
  check_codes(s.category, s.strings.size() + 1, "category");
  check_codes(s.device.codes, s.device.distinct.size(), "device");
  check_codes(s.stream.codes, s.stream.distinct.size(), "stream");
  check_codes(s.track, s.tracks.size(), "track");
  check_codes(s.template_id, s.templates.size(), "template");
  check_codes<std::uint8_t>(s.kind, kEventKindCount, "kind");
  check_times(s);
  check_tracks(s);
}

/// The ids that texts get in a pool, or nothing where they are their places.
std::vector<StringId> intern_all(const StoredTexts& texts, StringPool& pool) {
  std::vector<StringId> ids(texts.size());
  bool same = true;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    poll_interrupt();
    ids[i] = pool.intern(texts[i]);
    same &= ids[i] == i;
  }
  return same ? std::vector<StringId>() : ids;
}

std::vector<StringId> renumbered(std::span<const std::uint32_t> codes,
                                 const std::vector<StringId>& ids) {
  std::vector<StringId> column(codes.begin(), codes.end());
  if (ids.empty()) return column;
  for (StringId& code : column) code = ids[code];
  return column;
}

/// A narrow column of few distinct values: these are widened once, and not row by row.
template <class T, T kAbsent>
void restore_codes(std::span<const T> distinct, std::span<const std::uint32_t> codes,
                   NarrowColumn<T, kAbsent>& column) {
  NarrowColumn<T, kAbsent> values;
  values.append(distinct);
  column = values.pick(codes);
}

/// The ids of `size` texts and, if wanted, that of none behind them.
std::vector<StringId> all_ids(const std::vector<StringId>& ids, std::size_t size, bool with_none) {
  std::vector<StringId> all = ids;
  if (all.empty()) {
    all.resize(size);
    std::iota(all.begin(), all.end(), 0);
  }
  if (with_none) all.push_back(kNoString);
  return all;
}

template <class T>
std::vector<T> to_vector(std::span<const T> values) {
  return {values.begin(), values.end()};
}

void restore_values(const StoredTexts& values, ArgStore& args) {
  const std::int64_t first = values.offsets.front();
  args.values_offset.resize(values.size());
  for (std::size_t r = 0; r < values.size(); ++r) {
    args.values_offset[r] = static_cast<std::uint32_t>(values.offsets[r] - first);
  }
  args.values.assign(values.data.begin() + first, values.data.begin() + values.offsets.back());
}

void restore_tracks(const StoredTable& s, EventTable& t) {
  t.track_texts = std::make_shared<TrackTexts>();
  for (const auto& [pid, tid] : s.tracks) {
    Track& track = t.tracks.emplace_back();
    track.pid = t.track_texts->texts.store(pid);
    track.tid = t.track_texts->texts.store(tid);
  }
  name_tracks(t);
}

}  // namespace

EventTable restore_table(const StoredTable& s, unsigned threads) {
  check_columns(s);
  // Where there is one thread only, they are checked when the rest is done.
  std::future<void> checked = std::async(threads == 1 ? std::launch::deferred : std::launch::async,
                                         [&s] { check_values(s); });
  EventTable t;
  t.ts_ns = to_vector(s.ts_ns);
  t.dur_ns = to_vector(s.dur_ns);
  const std::vector<StringId> ids = intern_all(s.strings, t.strings);
  t.name = renumbered(s.name, ids);
  restore_codes<StringId, kNoString>(all_ids(ids, s.strings.size(), true), s.category, t.category);
  const std::vector<StringId> shapes = intern_all(s.templates, t.args.templates);
  restore_codes<StringId, kNoString>(all_ids(shapes, s.templates.size(), false), s.template_id,
                                     t.args.template_id);
  t.kind.resize(s.kind.size());
  std::transform(s.kind.begin(), s.kind.end(), t.kind.begin(),
                 [](std::uint8_t kind) { return static_cast<EventKind>(kind); });
  t.phase.assign(s.phase.begin(), s.phase.end());
  t.flags = to_vector(s.flags);
  t.track = to_vector(s.track);
  restore_codes(s.device.distinct, s.device.codes, t.device);
  restore_codes(s.stream.distinct, s.stream.codes, t.stream);
  t.correlation.append(s.correlation);
  t.external_id.append(s.external_id);
  restore_values(s.values, t.args);
  checked.get();
  restore_tracks(s, t);
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
