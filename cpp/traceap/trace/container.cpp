#include "traceap/trace/container.hpp"

#include <algorithm>

#include "traceap/table/json_text.hpp"
#include "traceap/trace/repair.hpp"

namespace traceap {

namespace {

constexpr auto kNone = std::string_view::npos;

/// A value that ends exactly where the text at hand does may go on behind it.
bool may_go_on(std::string_view text, std::size_t end, bool is_final) {
  return !is_final && (end == kNone || end >= text.size());
}

}  // namespace

ContainerResult read_members(std::string_view text, std::size_t pos, bool is_final,
                             MemberList& members) {
  for (;;) {
    pos = skip_space(text, pos);
    if (pos >= text.size()) return {ContainerStatus::kNeedMore, pos};
    if (text[pos] == ',') {
      ++pos;
      continue;
    }
    if (text[pos] == '}') return {ContainerStatus::kEnd, pos + 1};
    if (text[pos] != '"') return {ContainerStatus::kBroken, pos};
    const auto need_more = ContainerResult{ContainerStatus::kNeedMore, pos};
    const std::size_t key_end = string_end(text, pos);
    if (key_end == kNone) return need_more;
    const std::size_t colon = skip_space(text, key_end);
    const std::size_t value = skip_space(text, colon + 1);
    if (value >= text.size()) return need_more;
    if (text[colon] != ':') return {ContainerStatus::kBroken, pos};
    const std::string key = unescape_json(text.substr(pos + 1, key_end - pos - 2));
    if (key == "traceEvents" && text[value] == '[') return {ContainerStatus::kEvents, value + 1};
    const std::size_t end = value_end(text, value);
    if (may_go_on(text, end, is_final)) return need_more;
    if (end == kNone || end == value) return {ContainerStatus::kBroken, pos};
    members.add(key, text.substr(value, end - value));
    pos = end;
  }
}

ContainerResult read_head(std::string_view text, bool is_final, MemberList& members) {
  members.clear();
  std::size_t pos = text.starts_with("\xef\xbb\xbf") ? 3 : 0;
  pos = skip_space(text, pos);
  if (pos >= text.size()) return {ContainerStatus::kNeedMore, pos};
  if (text[pos] == '[') return {ContainerStatus::kBareArray, pos + 1};
  if (text[pos] != '{') return {ContainerStatus::kBroken, pos};
  const std::size_t begin = pos;
  ContainerResult result = read_members(text, pos + 1, is_final, members);
  const bool more_may_come = result.status == ContainerStatus::kNeedMore && !is_final;
  if (result.status == ContainerStatus::kEvents || more_may_come) return result;
  const auto is_phase = [](const auto& member) { return member.first == "ph"; };
  if (std::ranges::any_of(members.members(), is_phase)) {
    members.clear();
    return {ContainerStatus::kJsonLines, begin};
  }
  if (result.status == ContainerStatus::kEnd) {
    // A first line of metadata, then lines of events?
    const std::size_t next = skip_space(text, result.pos);
    if (next >= text.size() && !is_final) return {ContainerStatus::kNeedMore, begin};
    if (next < text.size() && text[next] == '{') return {ContainerStatus::kJsonLines, next};
  }
  return result;
}

std::size_t find_trace_events(std::string_view text) {
  constexpr std::string_view kKey = "\"traceEvents\"";
  for (std::size_t pos = text.find(kKey); pos != kNone; pos = text.find(kKey, pos + 1)) {
    const std::size_t colon = skip_space(text, pos + kKey.size());
    if (colon >= text.size() || text[colon] != ':') continue;
    const std::size_t open = skip_space(text, colon + 1);
    if (open < text.size() && text[open] == '[') return open + 1;
  }
  return kNone;
}

}  // namespace traceap
