#include "traceap/table/event_table.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "traceap/table/json_text.hpp"

namespace traceap {

namespace {

bool is_packed(char slot) {
  return slot == kSlotInteger || slot == kSlotNumber || slot == kSlotArgs;
}

void append_integer(std::string& out, std::int64_t value) {
  char text[24];
  out.append(text, std::to_chars(text, text + sizeof text, value).ptr);
}

std::string_view read_packed_text(const std::uint8_t*& p) {
  const std::size_t size = *p++;
  const auto* text = reinterpret_cast<const char*>(p);
  p += size;
  return {text, size};
}

/// The template of a row's arguments; their packed values follow.
std::string_view read_packed_args(const std::uint8_t*& p) {
  const auto size = static_cast<std::size_t>(read_varint(p));
  const auto* text = reinterpret_cast<const char*>(p);
  p += size;
  return {text, size};
}

void append_column(std::string& out, const EventTable& t, Row row, char slot) {
  switch (slot) {
    case kSlotTs:
      return append_ns_as_us(out, t.ts_ns[row]);
    case kSlotDur:
      return append_ns_as_us(out, t.dur_ns[row]);
    case kSlotName:
      return append_json_string(out, t.name_of(row));
    case kSlotCategory:
      return append_json_string(out, t.category_of(row));
    case kSlotPid:
      return append_integer(out, *t.tracks[t.track[row]].pid_number());
    case kSlotTid:
      return append_integer(out, *t.tracks[t.track[row]].tid_number());
    case kSlotCorrelation:
      return append_integer(out, t.correlation[row]);
    case kSlotExternalId:
      return append_integer(out, t.external_id[row]);
    case kSlotDevice:
      return append_integer(out, t.device[row]);
    case kSlotStream:
      return append_integer(out, t.stream[row]);
    default:
      break;
  }
}

bool is_slot(char c) { return c > 0 && c < 0x20 && !is_json_space(c); }

/// Appends template[begin, end) with slots filled; `p` stands at the row's next packed value.
void append_filled(std::string& out, const EventTable& t, Row row, std::string_view text,
                   const std::uint8_t*& p) {
  for (const char c : text) {
    if (!is_slot(c)) {
      out.push_back(c);
    } else if (c == kSlotInteger) {
      append_integer(out, read_varint(p));
    } else if (c == kSlotNumber) {
      out += read_packed_text(p);
    } else if (c == kSlotArgs) {
      append_filled(out, t, row, read_packed_args(p), p);
    } else {
      append_column(out, t, row, c);
    }
  }
}

const std::uint8_t* packed_begin(const EventTable& t, Row row) {
  return t.args.values.data() + t.args.values_offset[row];
}

/// Goes behind the packed values that fill a text, or the kinds of its slots alone.
void skip_packed(const std::uint8_t*& p, std::string_view text) {
  for (const char c : text) {
    if (c == kSlotInteger) {
      while (*p++ >= 0x80) {
      }
    } else if (c == kSlotNumber) {
      read_packed_text(p);
    } else if (c == kSlotArgs) {
      skip_packed(p, read_packed_args(p));
    }
  }
}

std::string packed_kinds(std::string_view text) {
  std::string kinds;
  for (const char c : text) {
    if (is_packed(c)) kinds.push_back(c);
  }
  return kinds;
}

struct Span {
  std::size_t begin = 0, end = 0;
  bool found = false;
};

bool key_equals(std::string_view raw, std::string_view key) {
  if (raw.find('\\') == std::string_view::npos) return raw == key;
  return unescape_json(raw) == key;
}

/// Most texts do not even mention a key (unless an escape hides it): no need to parse them.
bool may_mention(std::string_view text, std::string_view key) {
  return text.find(key) != std::string_view::npos || text.find('\\') != std::string_view::npos;
}

/// The value of `key` in the object that opens at `pos` of a valid text; the last one wins.
Span find_member(std::string_view text, std::size_t pos, std::string_view key) {
  Span found;
  if (pos >= text.size() || text[pos] != '{') return found;
  pos = skip_space(text, pos + 1);
  while (pos < text.size() && text[pos] == '"') {
    const std::size_t key_end = string_end(text, pos);
    const std::string_view raw_key = text.substr(pos + 1, key_end - pos - 2);
    const std::size_t value = skip_space(text, skip_space(text, key_end) + 1);
    const std::size_t end = value_end(text, value);
    if (end == std::string_view::npos) return found;
    if (key_equals(raw_key, key)) found = {value, end, true};
    pos = skip_space(text, end);
    if (pos >= text.size() || text[pos] != ',') break;
    pos = skip_space(text, pos + 1);
  }
  return found;
}

}  // namespace

PackedValues::PackedValues(const EventTable& table)
    : table_(&table), of_template_(table.args.templates.size(), kNoString) {}

std::span<const std::uint8_t> PackedValues::operator[](Row row) const {
  const StringId id = table_->args.template_id[row];
  StringId& kinds = of_template_[id];
  if (kinds == kNoString) kinds = kinds_.intern(packed_kinds(table_->args.templates[id]));
  const std::uint8_t* begin = packed_begin(*table_, row);
  const std::uint8_t* end = begin;
  skip_packed(end, kinds_[kinds]);
  return {begin, end};
}

std::string event_json(const EventTable& table, Row row) {
  std::string out;
  const std::uint8_t* p = packed_begin(table, row);
  append_filled(out, table, row, table.args.templates[table.args.template_id[row]], p);
  return out;
}

std::string args_json(const EventTable& table, Row row) {
  const std::string_view text = table.args.templates[table.args.template_id[row]];
  const Span args = find_member(text, 0, "args");
  if (!args.found) return "{}";
  const std::uint8_t* p = packed_begin(table, row);
  skip_packed(p, packed_kinds(text.substr(0, args.begin)));
  std::string out;
  append_filled(out, table, row, text.substr(args.begin, args.end - args.begin), p);
  return out;
}

WholeTemplate whole_template(const EventTable& table, Row row) {
  WholeTemplate whole{std::string(table.args.templates[table.args.template_id[row]]), {}};
  const std::uint8_t* p = packed_begin(table, row);
  const auto take = [&](std::string_view text) {
    const std::uint8_t* const begin = p;
    skip_packed(p, text);
    whole.packed.append(begin, p);
  };
  const std::size_t slot = whole.text.find(static_cast<char>(kSlotArgs));
  if (slot == std::string::npos) {
    take(whole.text);
    return whole;
  }
  take(std::string_view(whole.text).substr(0, slot));
  const std::string_view args = read_packed_args(p);
  take(args);
  take(std::string_view(whole.text).substr(slot + 1));
  whole.text.replace(slot, 1, args);
  return whole;
}

namespace {

constexpr std::uint32_t kUnknown = 0, kAbsent = 1, kFirstPlace = 2;
constexpr char kArgsSlot = kSlotArgs;

}  // namespace

ArgReader::ArgReader(const EventTable& table, std::string_view key)
    : table_(&table), key_(key), of_template_(table.args.templates.size(), kUnknown) {}

const ArgReader::Place* ArgReader::place(Row row) const {
  const StringId id = table_->args.template_id[row];
  std::uint32_t& code = of_template_[id];
  if (code == kUnknown) code = find_place(id);
  return code == kAbsent ? nullptr : &places_[code - kFirstPlace];
}

std::uint32_t ArgReader::find_place(StringId template_id) const {
  const std::string_view text = table_->args.templates[template_id];
  const bool packs_args = text.find(static_cast<char>(kSlotArgs)) != std::string_view::npos;
  if (!packs_args && !may_mention(text, key_)) return kAbsent;
  const Span args = find_member(text, 0, "args");
  Span value;
  const bool is_args = args.found && text.substr(args.begin, args.end - args.begin) ==
                                         std::string_view(&kArgsSlot, 1);
  if (args.found) value = is_args ? args : find_member(text, args.begin, key_);
  if (!value.found) return kAbsent;
  const std::string_view found = text.substr(value.begin, value.end - value.begin);
  const bool has_columns =
      std::ranges::any_of(found, [](char c) { return is_slot(c) && !is_packed(c); });
  places_.push_back({static_cast<std::uint32_t>(value.begin),
                     static_cast<std::uint32_t>(found.size()),
                     kinds_.intern(packed_kinds(text.substr(0, value.begin))),
                     kinds_.intern(packed_kinds(found)), has_columns, is_args});
  return static_cast<std::uint32_t>(places_.size() - 1) + kFirstPlace;
}

std::optional<ArgReader::Value> ArgReader::value(Row row) const {
  const Place* at = place(row);
  if (at == nullptr) return std::nullopt;
  const std::uint8_t* p = packed_begin(*table_, row);
  skip_packed(p, kinds_[at->skip]);
  if (!at->is_args) {
    const StringId id = table_->args.template_id[row];
    return Value{table_->args.templates[id].substr(at->begin, at->size), p};
  }
  const std::string_view args = read_packed_args(p);
  const Span found = may_mention(args, key_) ? find_member(args, 0, key_) : Span{};
  if (!found.found) return std::nullopt;
  skip_packed(p, args.substr(0, found.begin));
  return Value{args.substr(found.begin, found.end - found.begin), p};
}

bool ArgReader::has(Row row) const {
  const Place* at = place(row);
  return at != nullptr && (!at->is_args || value(row).has_value());
}

std::optional<std::string_view> ArgReader::packed(Row row) const {
  const Place* at = place(row);
  if (at == nullptr || at->has_columns || at->is_args) return std::nullopt;
  const std::string_view fill = kinds_[at->fill];
  if (fill.empty()) return std::string_view();
  const std::uint8_t* begin = packed_begin(*table_, row);
  skip_packed(begin, kinds_[at->skip]);
  const std::uint8_t* end = begin;
  skip_packed(end, fill);
  return std::string_view(reinterpret_cast<const char*>(begin),
                          static_cast<std::size_t>(end - begin));
}

std::optional<std::string> ArgReader::json(Row row) const {
  std::optional<Value> found = value(row);
  if (!found) return std::nullopt;
  std::string out;
  append_filled(out, *table_, row, found->text, found->packed);
  return out;
}

std::optional<std::int64_t> ArgReader::integer(Row row) const {
  std::optional<Value> found = value(row);
  if (!found) return std::nullopt;
  if (found->text.size() == 1) {
    switch (found->text[0]) {
      case kSlotInteger:
        return read_varint(found->packed);
      case kSlotCorrelation:
        return table_->correlation[row];
      case kSlotExternalId:
        return table_->external_id[row];
      case kSlotDevice:
        return table_->device[row];
      case kSlotStream:
        return table_->stream[row];
      default:
        break;
    }
  }
  const std::optional<std::string> whole = text(row);
  if (const auto exact = parse_int64(trim_space(*whole))) return exact;
  const std::optional<double> real = number(row);
  if (!real || std::abs(*real) > 9e15 || *real != std::floor(*real)) return std::nullopt;
  return static_cast<std::int64_t>(*real);
}

std::optional<double> ArgReader::number(Row row) const {
  const std::optional<std::string> whole = text(row);
  if (!whole) return std::nullopt;
  const std::string_view digits = trim_space(*whole);
  double real = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), real);
  if (error != std::errc() || end != digits.data() + digits.size() || !std::isfinite(real)) {
    return std::nullopt;
  }
  return real;
}

std::optional<std::string> ArgReader::text(Row row) const {
  std::optional<std::string> whole = json(row);
  if (!whole || whole->empty() || whole->front() != '"') return whole;
  return unescape_json(std::string_view(*whole).substr(1, whole->size() - 2));
}

}  // namespace traceap
