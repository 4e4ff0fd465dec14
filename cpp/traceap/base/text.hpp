#pragma once
// Small questions about names: which words they hold, whatever their case. ASCII only.

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>

namespace traceap {

using Words = std::initializer_list<std::string_view>;

constexpr char to_lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}
inline std::string to_lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = to_lower(c);
  return lower;
}

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}
inline bool contains_any(std::string_view text, Words parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](std::string_view part) { return contains(text, part); });
}
/// Does `text` hold `part` (lower case) in any case?
inline bool contains_any_case(std::string_view text, std::string_view part_lower) {
  const auto same = [](char a, char b) { return to_lower(a) == b; };
  return std::search(text.begin(), text.end(), part_lower.begin(), part_lower.end(), same) !=
         text.end();
}

inline bool is_any(std::string_view text, Words words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}
inline bool starts_with_any(std::string_view text, Words prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](std::string_view prefix) { return text.starts_with(prefix); });
}

}  // namespace traceap
