#include "traceap/detect/queries/names.hpp"

#include <algorithm>
#include <unordered_map>

namespace traceap {

bool is_operator_name(std::string_view name) {
  if (contains(name, "#")) return false;
  return contains(name, "::") || contains(name, "Backward");
}

std::string most_frequent_names(const EventTable& table, const std::vector<Row>& rows,
                                std::size_t top) {
  std::unordered_map<StringId, std::size_t> counts;
  for (Row r : rows) ++counts[table.name[r]];
  std::vector<std::pair<StringId, std::size_t>> ranked(counts.begin(), counts.end());
  std::sort(ranked.begin(), ranked.end(), [&](const auto& a, const auto& b) {
    if (a.second != b.second) return a.second > b.second;
    return table.strings[a.first] < table.strings[b.first];
  });
  std::string text;
  for (std::size_t i = 0; i < std::min(top, ranked.size()); ++i) {
    if (i > 0) text += ", ";
    text += table.strings[ranked[i].first].substr(0, 80);
  }
  return text;
}

}  // namespace traceap
