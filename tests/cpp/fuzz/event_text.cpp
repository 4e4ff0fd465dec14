#include "event_text.hpp"

#include <algorithm>

#include "traceap/table/json_text.hpp"

namespace traceap::fuzz {
namespace {

constexpr auto kNone = std::string_view::npos;

/// Members of the object that begins at `pos`; false where it is none.
bool read_fields(std::string_view text, std::vector<Field>& fields) {
  if (!text.starts_with('{') || !text.ends_with('}')) return false;
  std::size_t pos = skip_space(text, 1);
  while (pos + 1 < text.size()) {
    const std::size_t key_end = text[pos] == '"' ? string_end(text, pos) : kNone;
    if (key_end == kNone) return false;
    const std::size_t colon = skip_space(text, key_end);
    if (colon >= text.size() || text[colon] != ':') return false;
    const std::size_t begin = skip_space(text, colon + 1), end = value_end(text, begin);
    if (end == kNone || end >= text.size()) return false;
    fields.push_back({std::string(text.substr(pos + 1, key_end - pos - 2)),
                      std::string(text.substr(begin, end - begin))});
    pos = skip_space(text, end);
    if (pos < text.size() && text[pos] == ',') pos = skip_space(text, pos + 1);
  }
  return true;
}

void write_fields(std::string& out, const std::vector<Field>& fields) {
  for (const Field& field : fields) {
    if (&field != &fields.front()) out += ',';
    ((out += '"') += field.key) += "\":";
    out += field.value;
  }
}

/// Where the events begin: behind the '[' of "traceEvents", else behind the first one.
std::size_t find_events(std::string_view text) {
  const std::size_t key = text.find("\"traceEvents\"");
  const std::size_t open = text.find('[', key == kNone ? 0 : key);
  return open == kNone ? kNone : open + 1;
}

}  // namespace

Field* Event::find(std::string_view key) {
  for (std::vector<Field>* list : {&fields, &args}) {
    const auto found = std::find_if(list->begin(), list->end(),
                                    [&](const Field& field) { return field.key == key; });
    if (found != list->end()) return &*found;
  }
  return nullptr;
}

Event read_event(std::string_view object) {
  Event event;
  if (!read_fields(object, event.fields)) return {{}, {}, std::string(object)};
  const auto args = std::find_if(event.fields.begin(), event.fields.end(),
                                 [](const Field& field) { return field.key == "args"; });
  if (args == event.fields.end() || !read_fields(args->value, event.args)) {
    event.args.clear();
    return event;
  }
  event.fields.erase(args);
  return event;
}

TraceParts take_apart(std::string_view text) {
  TraceParts parts;
  std::size_t pos = find_events(text);
  if (pos == kNone) return {std::string(text), {}, {}};
  parts.head = text.substr(0, pos);
  for (;;) {
    const std::size_t begin = skip_space(text, pos);
    const std::size_t end =
        begin < text.size() && text[begin] == '{' ? value_end(text, begin) : kNone;
    if (end == kNone) break;
    parts.events.push_back(read_event(text.substr(begin, end - begin)));
    pos = skip_space(text, end);
    if (pos < text.size() && text[pos] == ',') ++pos;
  }
  parts.tail = text.substr(std::min(pos, text.size()));
  return parts;
}

std::string put_together(const TraceParts& parts) {
  std::string text = parts.head;
  for (const Event& event : parts.events) {
    if (&event != &parts.events.front()) text += ",\n";
    if (!event.damaged.empty()) {
      text += event.damaged;
      continue;
    }
    write_fields(text += '{', event.fields);
    if (!event.args.empty()) {
      text += event.fields.empty() ? "\"args\":{" : ",\"args\":{";
      write_fields(text, event.args);
      text += '}';
    }
    text += '}';
  }
  return text += parts.tail;
}

}  // namespace traceap::fuzz
