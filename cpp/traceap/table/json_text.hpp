#pragma once
// Small pieces of JSON text: scanning, exact numbers, escapes. Shared by reader, writer and
// ArgReader. Nothing here allocates unless it returns a string.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace traceap {

inline bool is_json_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
inline bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// First position at or after `pos` that is not white space.
inline std::size_t skip_space(std::string_view text, std::size_t pos) {
  while (pos < text.size() && is_json_space(text[pos])) ++pos;
  return pos;
}
std::string_view trim_space(std::string_view text);

/// Position just behind the string that opens at `pos`; npos when it does not end.
std::size_t string_end(std::string_view text, std::size_t pos);
/// Position just behind the value at `pos`, by bracket counting; npos when it does not end.
std::size_t value_end(std::string_view text, std::size_t pos);

/// Calls on_member(quoted key, key, value) for each member of a valid JSON object, the texts as
/// they stand.
template <class OnMember>
void for_each_member(std::string_view object, OnMember on_member) {
  std::size_t pos = skip_space(object, 0);
  if (pos >= object.size() || object[pos] != '{') return;
  pos = skip_space(object, pos + 1);
  while (pos < object.size() && object[pos] == '"') {
    const std::size_t key_end = string_end(object, pos);
    if (key_end == std::string_view::npos) return;
    const std::string_view quoted = object.substr(pos, key_end - pos);
    pos = skip_space(object, key_end);
    if (pos >= object.size() || object[pos] != ':') return;
    pos = skip_space(object, pos + 1);
    const std::size_t end = value_end(object, pos);
    if (end == std::string_view::npos) return;
    on_member(quoted, quoted.substr(1, quoted.size() - 2), object.substr(pos, end - pos));
    pos = skip_space(object, end);
    if (pos < object.size() && object[pos] == ',') pos = skip_space(object, pos + 1);
  }
}

/// Bytes below 0x20 that stand for a value (Placeholder in event_table.hpp): only in templates.
enum class Slots { kNone, kAllowed };
/// Is `text` one valid JSON value (RFC 8259)? Raw control characters in strings are invalid; UTF-8
/// is not checked here.
bool is_valid_json(std::string_view text, Slots slots = Slots::kNone);
/// Is `text` a number by the JSON grammar?
bool is_json_number(std::string_view text);

/// A plain integer that fits int64 ("-0" and "007" are none: their text would not come back).
std::optional<std::int64_t> parse_int64(std::string_view text);
/// Microseconds as decimal text, in ns: 1000 times the value, rounded half to even, without a
/// double on the way. nullopt for no number, or beyond +-2.3e18 ns (the year 2042).
std::optional<std::int64_t> parse_us_as_ns(std::string_view text);
/// ns as microseconds, without trailing zeros: "12", "12.5" or "12.345".
void append_ns_as_us(std::string& out, std::int64_t ns);

/// Inside of a JSON string to UTF-8. Bad escapes are kept as text (the bare backslash too) and
/// counted in *bad_escapes; lone surrogates become U+FFFD.
std::string unescape_json(std::string_view inside, std::uint32_t* bad_escapes = nullptr);
/// `text` as a JSON string with quotes. Bytes that are no UTF-8 become U+FFFD.
void append_json_string(std::string& out, std::string_view text);
/// `text` with bytes that are no UTF-8 replaced by U+FFFD.
std::string replace_bad_utf8(std::string_view text);
/// Length of the valid UTF-8 sequence at `pos`, 0 if there is none.
std::size_t utf8_length(std::string_view text, std::size_t pos);

/// Zig-zag LEB128, at most 10 bytes.
template <class Bytes>
void append_varint(Bytes& out, std::int64_t value) {
  auto bits = (static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63);
  while (bits >= 0x80) {
    out.push_back(static_cast<std::uint8_t>(bits | 0x80));
    bits >>= 7;
  }
  out.push_back(static_cast<std::uint8_t>(bits));
}
inline std::int64_t read_varint(const std::uint8_t*& p) {
  std::uint64_t bits = 0;
  for (unsigned shift = 0; shift < 70; shift += 7) {
    const std::uint8_t byte = *p++;
    bits |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) break;
  }
  return static_cast<std::int64_t>(bits >> 1) ^ -static_cast<std::int64_t>(bits & 1);
}

}  // namespace traceap
