#include "traceap/table/json_text.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <vector>

#include "traceap/base/intervals.hpp"

namespace traceap {

std::string_view trim_space(std::string_view text) {
  while (!text.empty() && is_json_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_json_space(text.back())) text.remove_suffix(1);
  return text;
}

std::size_t string_end(std::string_view text, std::size_t pos) {
  for (++pos;; ++pos) {
    const void* quote =
        pos < text.size() ? std::memchr(text.data() + pos, '"', text.size() - pos) : nullptr;
    if (quote == nullptr) return std::string_view::npos;
    pos = static_cast<std::size_t>(static_cast<const char*>(quote) - text.data());
    std::size_t backslashes = 0;
    while (text[pos - 1 - backslashes] == '\\') ++backslashes;
    if (backslashes % 2 == 0) return pos + 1;
  }
}

std::size_t value_end(std::string_view text, std::size_t pos) {
  std::size_t depth = 0;
  while (pos < text.size()) {
    const char c = text[pos];
    if (c == '"') {
      pos = string_end(text, pos);
      if (pos == std::string_view::npos || depth == 0) return pos;
      continue;
    }
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') {
      if (depth == 0) return pos;  // the end of an enclosing container ends a scalar
      if (--depth == 0) return pos + 1;
    }
    if (depth == 0 && (c == ',' || is_json_space(c))) return pos;
    ++pos;
  }
  return std::string_view::npos;
}

bool is_json_number(std::string_view t) {
  std::size_t i = 0;
  if (i < t.size() && t[i] == '-') ++i;
  if (i >= t.size() || !is_digit(t[i])) return false;
  if (t[i] == '0' && i + 1 < t.size() && is_digit(t[i + 1])) return false;
  while (i < t.size() && is_digit(t[i])) ++i;
  if (i < t.size() && t[i] == '.') {
    if (++i >= t.size() || !is_digit(t[i])) return false;
    while (i < t.size() && is_digit(t[i])) ++i;
  }
  if (i < t.size() && (t[i] == 'e' || t[i] == 'E')) {
    ++i;
    if (i < t.size() && (t[i] == '+' || t[i] == '-')) ++i;
    if (i >= t.size() || !is_digit(t[i])) return false;
    while (i < t.size() && is_digit(t[i])) ++i;
  }
  return i == t.size();
}

namespace {

bool is_valid_string(std::string_view inside) {
  for (std::size_t i = 0; i < inside.size(); ++i) {
    const auto c = static_cast<unsigned char>(inside[i]);
    if (c < 0x20) return false;
    if (c != '\\') continue;
    if (++i >= inside.size()) return false;
    if (inside[i] == 'u') {
      if (i + 4 >= inside.size()) return false;
      for (std::size_t k = 1; k <= 4; ++k) {
        if (!std::isxdigit(static_cast<unsigned char>(inside[i + k]))) return false;
      }
      i += 4;
    } else if (std::string_view("\"\\/bfnrt").find(inside[i]) == std::string_view::npos) {
      return false;
    }
  }
  return true;
}

bool is_slot(char c) { return c > 0 && c < 0x20 && !is_json_space(c); }

bool ends_scalar(char c) {
  return c == ',' || c == ':' || c == '{' || c == '}' || c == '[' || c == ']' || c == '"' ||
         is_json_space(c);
}

bool is_valid_scalar(std::string_view t, Slots slots) {
  if (slots == Slots::kAllowed && t.size() == 1 && is_slot(t[0])) return true;
  return t == "true" || t == "false" || t == "null" || is_json_number(t);
}

}  // namespace

bool is_valid_json(std::string_view text, Slots slots) {
  enum class Expect { kValue, kValueOrClose, kKeyOrClose, kKey, kColon, kCommaOrClose, kEnd };
  std::vector<char> open;
  Expect expect = Expect::kValue;
  const auto after_value = [&] { return open.empty() ? Expect::kEnd : Expect::kCommaOrClose; };
  std::size_t i = skip_space(text, 0);
  for (; i < text.size(); i = skip_space(text, i)) {
    const char c = text[i];
    const bool value_ok = expect == Expect::kValue || expect == Expect::kValueOrClose;
    if (c == '"') {
      const std::size_t end = string_end(text, i);
      if (end == std::string_view::npos || !is_valid_string(text.substr(i + 1, end - i - 2))) {
        return false;
      }
      const bool key_ok = expect == Expect::kKey || expect == Expect::kKeyOrClose;
      if (!key_ok && !value_ok) return false;
      expect = key_ok ? Expect::kColon : after_value();
      i = end;
    } else if (c == '{' || c == '[') {
      if (!value_ok) return false;
      open.push_back(c);
      expect = c == '{' ? Expect::kKeyOrClose : Expect::kValueOrClose;
      ++i;
    } else if (c == '}' || c == ']') {
      const bool close_ok = expect == Expect::kCommaOrClose ||
                            expect == (c == '}' ? Expect::kKeyOrClose : Expect::kValueOrClose);
      if (!close_ok || open.empty() || open.back() != (c == '}' ? '{' : '[')) return false;
      open.pop_back();
      expect = after_value();
      ++i;
    } else if (c == ',') {
      if (expect != Expect::kCommaOrClose) return false;
      expect = open.back() == '{' ? Expect::kKey : Expect::kValue;
      ++i;
    } else if (c == ':') {
      if (expect != Expect::kColon) return false;
      expect = Expect::kValue;
      ++i;
    } else {
      std::size_t end = i;
      while (end < text.size() && !ends_scalar(text[end])) ++end;
      if (!value_ok || !is_valid_scalar(text.substr(i, end - i), slots)) return false;
      expect = after_value();
      i = end;
    }
  }
  return expect == Expect::kEnd;
}

std::optional<std::int64_t> parse_int64(std::string_view t) {
  const std::size_t sign = !t.empty() && t[0] == '-' ? 1 : 0;
  if (t.size() == sign || t.size() > sign + 19) return std::nullopt;
  if (t[sign] == '0' && t.size() > 1) return std::nullopt;
  std::uint64_t value = 0;
  for (std::size_t i = sign; i < t.size(); ++i) {
    if (!is_digit(t[i])) return std::nullopt;
    value = value * 10 + static_cast<unsigned>(t[i] - '0');
  }
  if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    return std::nullopt;
  return sign ? -static_cast<std::int64_t>(value) : static_cast<std::int64_t>(value);
}

namespace {

/// Digits d1 d2 ... times 10^(point - n), in ns, rounded half to even.
std::optional<std::int64_t> round_digits(const std::string& digits, std::int64_t point) {
  if (digits.empty()) return 0;
  if (point > 19) return std::nullopt;
  if (point < 0) return 0;
  std::uint64_t value = 0;
  const auto rest = static_cast<std::size_t>(point);
  for (std::size_t i = 0; i < rest; ++i) {
    const char digit = i < digits.size() ? digits[i] : '0';
    value = value * 10 + static_cast<std::uint64_t>(digit - '0');
    if (value > static_cast<std::uint64_t>(kMaxTimeNs)) return std::nullopt;
  }
  if (rest < digits.size()) {
    const bool tail = digits.find_first_not_of('0', rest + 1) != std::string::npos;
    const char first = digits[rest];
    if (first > '5' || (first == '5' && (tail || value % 2 == 1))) ++value;
  }
  return static_cast<std::int64_t>(value);
}

std::optional<std::int64_t> parse_us_slow(std::string_view t) {
  if (!is_json_number(t)) return std::nullopt;
  const bool negative = t[0] == '-';
  const std::size_t e = t.find_first_of("eE");
  const std::string_view mantissa = t.substr(negative, std::min(e, t.size()) - negative);
  std::int64_t exponent = 0;
  if (e != std::string_view::npos) {
    std::string_view text = t.substr(e + 1);
    if (text[0] == '+') text.remove_prefix(1);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), exponent);
    (void)end;
    if (error != std::errc() || exponent > 100'000 || exponent < -100'000) {
      exponent = text[0] == '-' ? -100'000 : 100'000;
    }
  }
  const std::size_t dot = std::min(mantissa.find('.'), mantissa.size());
  std::string digits(mantissa.substr(0, dot));
  if (dot < mantissa.size()) digits += mantissa.substr(dot + 1);
  const std::size_t zeros = std::min(digits.find_first_not_of('0'), digits.size());
  digits.erase(0, zeros);
  const std::int64_t point =
      static_cast<std::int64_t>(dot) - static_cast<std::int64_t>(zeros) + exponent + 3;
  const std::optional<std::int64_t> ns = round_digits(digits, point);
  return ns && negative ? -*ns : ns;
}

}  // namespace

std::optional<std::int64_t> parse_us_as_ns(std::string_view t) {
  // Fast way: up to 16 digits, a point, up to 3 digits, as every profiler writes them.
  constexpr std::uint64_t kMaxUs = kMaxTimeNs / 1000 - 1;
  std::size_t i = 0;
  std::uint64_t us = 0;
  while (i < t.size() && i < 17 && is_digit(t[i]))
    us = us * 10 + static_cast<unsigned>(t[i++] - '0');
  const bool plain = i > 0 && us <= kMaxUs && i < 17 && !(t[0] == '0' && i > 1);
  if (plain && i == t.size()) return static_cast<std::int64_t>(us * 1000);
  if (plain && t[i] == '.' && t.size() - i >= 2 && t.size() - i <= 4) {
    unsigned ns = 0;
    unsigned scale = 100;
    std::size_t k = i + 1;
    for (; k < t.size() && is_digit(t[k]); ++k, scale /= 10) {
      ns += static_cast<unsigned>(t[k] - '0') * scale;
    }
    if (k == t.size()) return static_cast<std::int64_t>(us * 1000 + ns);
  }
  return parse_us_slow(t);
}

void append_ns_as_us(std::string& out, std::int64_t ns) {
  const bool negative = ns < 0;
  const std::uint64_t magnitude =
      negative ? 0 - static_cast<std::uint64_t>(ns) : static_cast<std::uint64_t>(ns);
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, magnitude / 1000);
  (void)error;
  if (negative) out.push_back('-');
  out.append(text, end);
  const auto rest = static_cast<unsigned>(magnitude % 1000);
  if (rest == 0) return;
  const char decimals[4] = {'.', static_cast<char>('0' + rest / 100),
                            static_cast<char>('0' + rest / 10 % 10),
                            static_cast<char>('0' + rest % 10)};
  out.append(decimals, rest % 10 != 0 ? 4 : rest % 100 != 0 ? 3 : 2);
}

std::size_t utf8_length(std::string_view t, std::size_t i) {
  const auto byte = [&](std::size_t k) { return static_cast<unsigned char>(t[k]); };
  const unsigned char c = byte(i);
  if (c < 0x80) return 1;
  const std::size_t n = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
  if (c < 0xc2 || c > 0xf4 || i + n > t.size()) return 0;
  for (std::size_t k = 1; k < n; ++k) {
    if ((byte(i + k) & 0xc0) != 0x80) return 0;
  }
  const unsigned char second = byte(i + 1);
  if ((c == 0xe0 && second < 0xa0) || (c == 0xed && second > 0x9f) ||
      (c == 0xf0 && second < 0x90) || (c == 0xf4 && second > 0x8f)) {
    return 0;
  }
  return n;
}

namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

void append_utf8(std::string& out, std::uint32_t code) {
  if (code < 0x80) {
    out.push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    out.push_back(static_cast<char>(0xc0 | (code >> 6)));
    out.push_back(static_cast<char>(0x80 | (code & 0x3f)));
  } else if (code < 0x10000) {
    out.push_back(static_cast<char>(0xe0 | (code >> 12)));
    out.push_back(static_cast<char>(0x80 | ((code >> 6) & 0x3f)));
    out.push_back(static_cast<char>(0x80 | (code & 0x3f)));
  } else {
    out.push_back(static_cast<char>(0xf0 | (code >> 18)));
    out.push_back(static_cast<char>(0x80 | ((code >> 12) & 0x3f)));
    out.push_back(static_cast<char>(0x80 | ((code >> 6) & 0x3f)));
    out.push_back(static_cast<char>(0x80 | (code & 0x3f)));
  }
}

std::optional<std::uint32_t> hex4(std::string_view t, std::size_t i) {
  if (i + 4 > t.size()) return std::nullopt;
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(t.data() + i, t.data() + i + 4, value, 16);
  if (error != std::errc() || end != t.data() + i + 4) return std::nullopt;
  return value;
}

/// Handles \uXXXX at `i` (the 'u'); returns the position behind it, or `i` if it is no escape.
std::size_t append_unicode_escape(std::string& out, std::string_view t, std::size_t i) {
  const std::optional<std::uint32_t> high = hex4(t, i + 1);
  if (!high) return i;
  if (*high < 0xd800 || *high > 0xdfff) {
    append_utf8(out, *high);
    return i + 5;
  }
  const bool pair = *high < 0xdc00 && t.substr(std::min(i + 5, t.size()), 2) == "\\u";
  const std::optional<std::uint32_t> low = pair ? hex4(t, i + 7) : std::nullopt;
  if (low && *low >= 0xdc00 && *low <= 0xdfff) {
    append_utf8(out, 0x10000 + ((*high - 0xd800) << 10) + (*low - 0xdc00));
    return i + 11;
  }
  out += kReplacement;
  return i + 5;
}

}  // namespace

std::string unescape_json(std::string_view t, std::uint32_t* bad_escapes) {
  std::string out;
  out.reserve(t.size());
  for (std::size_t i = 0; i < t.size(); ++i) {
    if (t[i] != '\\') {
      out.push_back(t[i]);
      continue;
    }
    constexpr std::string_view kFrom = "\"\\/bfnrt";
    constexpr std::string_view kTo = "\"\\/\b\f\n\r\t";
    const std::size_t code = i + 1 < t.size() ? kFrom.find(t[i + 1]) : std::string_view::npos;
    if (code != std::string_view::npos) {
      out.push_back(kTo[code]);
      ++i;
      continue;
    }
    if (i + 1 < t.size() && t[i + 1] == 'u') {
      const std::size_t behind = append_unicode_escape(out, t, i + 1);
      if (behind != i + 1) {
        i = behind - 1;
        continue;
      }
    }
    out.push_back('\\');
    if (bad_escapes != nullptr) ++*bad_escapes;
  }
  return out;
}

std::string replace_bad_utf8(std::string_view t) {
  std::string out;
  out.reserve(t.size());
  for (std::size_t i = 0; i < t.size();) {
    const std::size_t n = utf8_length(t, i);
    out += n > 0 ? t.substr(i, n) : kReplacement;
    i += std::max<std::size_t>(n, 1);
  }
  return out;
}

void append_json_string(std::string& out, std::string_view t) {
  constexpr char kHex[] = "0123456789abcdef";
  out.push_back('"');
  for (std::size_t i = 0; i < t.size();) {
    const auto c = static_cast<unsigned char>(t[i]);
    if (c >= 0x80) {
      const std::size_t n = utf8_length(t, i);
      out += n > 0 ? t.substr(i, n) : kReplacement;
      i += std::max<std::size_t>(n, 1);
      continue;
    }
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(static_cast<char>(c));
    } else if (c < 0x20) {
      out += "\\u00";
      out.push_back(kHex[c >> 4]);
      out.push_back(kHex[c & 15]);
    } else {
      out.push_back(static_cast<char>(c));
    }
    ++i;
  }
  out.push_back('"');
}

}  // namespace traceap
