#pragma once
// Lists of integers in JSON text, as "Input Dims" and "Process Group Ranks" have them.

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

#include "traceap/table/json_text.hpp"

namespace traceap {

/// Walks over text such as "[[8, 1024], [-1], []]" and calls, in its order, `visit.open()` and
/// `visit.close()` for brackets and `visit.number(value)` for integers, nullopt for one that leaves
/// 64 bits. Passes over everything else: profilers cut long lists short by "...".
template <typename Visitor>
void walk_int_lists(std::string_view text, Visitor&& visit) {
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at != end;) {
    if (*at == '[') visit.open();
    if (*at == ']') visit.close();
    const bool negative = *at == '-' && at + 1 != end && is_digit(at[1]);
    if (!negative && !is_digit(*at)) {
      ++at;
      continue;
    }
    std::int64_t value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    visit.number(error == std::errc() ? std::optional(value) : std::nullopt);
    at = next;
  }
}

}  // namespace traceap
