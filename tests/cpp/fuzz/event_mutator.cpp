#include "event_mutator.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <optional>

#include "traceap/table/json_text.hpp"

namespace traceap::fuzz {
namespace {

constexpr std::size_t kMostEvents = 400, kMostTexts = 4;
/// Members that tell events which others they belong to.
constexpr std::array<std::string_view, 8> kIds{
    "correlation",   "External id",        "id",     "Sequence number",
    "Fwd thread id", "Record function id", "Ev Idx", "wait_on_cuda_event_record_corr_id"};

std::optional<std::int64_t> time_of(Event& event, std::string_view key) {
  const Field* field = event.find(key);
  return field ? parse_us_as_ns(field->value) : std::nullopt;
}

void set_time(Event& event, std::string_view key, std::int64_t ns) {
  if (Field* field = event.find(key)) {
    field->value.clear();
    append_ns_as_us(field->value, ns);
  }
}

std::int64_t add_wrapping(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

void move_event(Event& event, std::int64_t shift_ns) {
  if (const auto ts = time_of(event, "ts")) set_time(event, "ts", add_wrapping(*ts, shift_ns));
}

void move_ids(Event& event, std::int64_t shift) {
  for (const std::string_view key : kIds) {
    Field* field = event.find(key);
    const auto id = field ? parse_int64(field->value) : std::nullopt;
    if (id) field->value = std::to_string(add_wrapping(*id, shift));
  }
}

std::string unescape_word(std::string_view text) {
  std::string word;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      word += text[i];
    } else if (text[i + 1] == 'x' && i + 3 < text.size()) {
      word += static_cast<char>(std::stoi(std::string(text.substr(i + 2, 2)), nullptr, 16));
      i += 3;
    } else {
      word += text[++i];
    }
  }
  return word;
}

}  // namespace

Words read_words(const std::string& path) {
  Words words;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t open = line.find("=\"");
    if (line.empty() || line[0] == '#' || open == std::string::npos) continue;
    words[line.substr(0, open)].push_back(
        unescape_word(std::string_view(line).substr(open + 2, line.rfind('"') - open - 2)));
  }
  check(!words.empty(), "the dictionary has words");
  return words;
}

const std::string& EventMutator::word(std::string_view section) {
  const auto found = words_.find(section);
  check(found != words_.end(), "the dictionary has this section");
  return found->second[below(found->second.size())];
}

void EventMutator::mutate(Input& input) {
  for (std::size_t left = 1 + below(4); left > 0; --left) {
    if (one_in(8)) {
      mutate_bytes_(input.choices, 64);
      continue;
    }
    if (one_in(12)) {
      mutate_texts(input);
      continue;
    }
    std::string& text = input.texts[below(input.texts.size())];
    TraceParts parts = take_apart(text);
    if (parts.head.find('[') == std::string::npos)
      parts.head = "{\"traceEvents\":[", parts.tail = "]}";
    mutate_events(parts.events);
    text = put_together(parts);
  }
}

void EventMutator::mutate_texts(Input& input) {
  const std::size_t place = below(input.texts.size());
  std::string& text = input.texts[place];
  switch (below(4)) {
    case 0:
      if (input.texts.size() < kMostTexts) input.texts.push_back(std::string(text));
      break;
    case 1:
      if (input.texts.size() > 1) {
        input.texts.erase(input.texts.begin() + static_cast<std::ptrdiff_t>(place));
      }
      break;
    case 2:
      if (const std::size_t brace = text.find('{'); brace != std::string::npos) {
        text.insert(brace + 1, word("head") + ",");
      }
      break;
    default:
      mutate_bytes_(text, text.size() + 64);
  }
}

void EventMutator::cross(Input& input, const Input& other) {
  if (one_in(3) && input.texts.size() < kMostTexts) {
    input.texts.push_back(other.texts[below(other.texts.size())]);
    return;
  }
  std::string& text = input.texts[below(input.texts.size())];
  TraceParts parts = take_apart(text);
  const TraceParts from = take_apart(other.texts[below(other.texts.size())]);
  if (from.events.empty()) return;
  const std::size_t first = below(from.events.size());
  const std::size_t count = 1 + below(std::min<std::size_t>(from.events.size() - first, 16));
  const auto begin = from.events.begin() + static_cast<std::ptrdiff_t>(first);
  parts.events.insert(
      parts.events.begin() + static_cast<std::ptrdiff_t>(below(parts.events.size() + 1)), begin,
      begin + static_cast<std::ptrdiff_t>(count));
  text = put_together(parts);
}

void EventMutator::mutate_events(std::vector<Event>& events) {
  if (events.empty() || one_in(8)) return insert_snippet(events);
  const auto place = [&] {
    return events.begin() + static_cast<std::ptrdiff_t>(below(events.size()));
  };
  switch (below(12)) {
    case 0: {
      Event copy = any(events);
      events.insert(place(), std::move(copy));
      break;
    }
    case 1:
      events.erase(place());
      break;
    case 2:
      std::swap(any(events), any(events));
      break;
    case 3:
      shift(events);
      break;
    case 4:
      repeat(events);
      break;
    case 5:
    case 6:
      set_word(any(events));
      break;
    case 7:
      copy_from_other(events, any(events));
      break;
    default:
      mutate_field(events, any(events));
  }
}

void EventMutator::mutate_field(std::vector<Event>& events, Event& event) {
  const std::size_t count = event.fields.size() + event.args.size();
  if (count == 0) return mutate_bytes_(event.damaged, event.damaged.size() + 16);
  const std::size_t place = below(count);
  const bool in_args = place >= event.fields.size();
  std::vector<Field>& list = in_args ? event.args : event.fields;
  const std::size_t at = in_args ? place - event.fields.size() : place;
  switch (below(10)) {
    case 0:
      list.erase(list.begin() + static_cast<std::ptrdiff_t>(at));
      break;
    case 1:
      list.push_back({word("key"), word(one_in(2) ? "number" : "text")});
      break;
    case 2:
      event.args.push_back(list[at]);
      break;
    case 3:
      list[at].key = word("key");
      break;
    default:
      mutate_value(events, list[at]);
  }
}

void EventMutator::mutate_value(std::vector<Event>& events, Field& field) {
  const bool is_number = !field.value.empty() && is_json_number(field.value);
  if (is_number && !one_in(8)) return mutate_number(events, field);
  switch (below(4)) {
    case 0:
      field.value = word("text");
      break;
    case 1:
      field.value = word("number");
      break;
    case 2:
      field.value = '"' + field.value + '"';
      break;
    default:
      mutate_bytes_(field.value, field.value.size() + 16);
  }
}

void EventMutator::mutate_number(std::vector<Event>& events, Field& field) {
  const auto ns = parse_us_as_ns(field.value);
  const auto set = [&](std::int64_t value) {
    field.value.clear();
    append_ns_as_us(field.value, value);
  };
  Event& other = any(events);
  switch (below(8)) {
    case 0:
      field.value = word("number");
      break;
    case 1:
      if (const Field* same = other.find(field.key)) field.value = same->value;
      break;
    case 2:  // touches the other event, or overlaps with it
      if (const auto ts = time_of(other, "ts")) {
        set(add_wrapping(*ts, one_in(2) ? time_of(other, "dur").value_or(0) : 0));
      }
      break;
    case 3:
      if (ns) set(add_wrapping(*ns, *ns));
      break;
    case 4:
      if (ns) set(*ns / 2);
      break;
    case 5:
      if (ns) set(*ns == std::numeric_limits<std::int64_t>::min() ? 0 : -*ns);
      break;
    default: {
      static constexpr std::array<std::int64_t, 7> kSteps{1,       10,        1'000,        20'000,
                                                          300'000, 1'000'000, 1'000'000'000};
      const std::int64_t step = kSteps[below(kSteps.size())];
      if (ns) set(add_wrapping(*ns, one_in(2) ? step : -step));
    }
  }
}

void EventMutator::set_word(Event& event) {
  static constexpr std::array<std::string_view, 4> kKeys{"name", "name", "cat", "ph"};
  const std::string key(kKeys[below(kKeys.size())]);
  const std::string value = '"' + word(key) + '"';
  if (Field* field = event.find(key)) {
    field->value = value;
  } else {
    event.fields.push_back({key, value});
  }
}

void EventMutator::copy_from_other(const std::vector<Event>& events, Event& event) {
  const Event& other = events[below(events.size())];
  if (other.args.empty() || one_in(4)) {
    if (one_in(2)) event.args = other.args;
    return;
  }
  const Field& field = other.args[below(other.args.size())];
  if (Field* same = event.find(field.key)) {
    same->value = field.value;
  } else {
    event.args.push_back(field);
  }
}

void EventMutator::shift(std::vector<Event>& events) {
  static constexpr std::array<std::int64_t, 6> kShifts{-1'000,  1'000,     50'000,
                                                       -50'000, 1'000'000, 1'000'000'000};
  const std::int64_t by = kShifts[below(kShifts.size())];
  const std::size_t first = below(events.size());
  const std::size_t last = one_in(2) ? events.size() : first + 1 + below(events.size() - first);
  for (std::size_t i = first; i < last; ++i) move_event(events[i], by);
}

/// Some events once more, later and with ids of their own: what steps and loops look like.
void EventMutator::repeat(std::vector<Event>& events) {
  const std::size_t first = below(events.size());
  const std::size_t count = 1 + below(std::min<std::size_t>(events.size() - first, 12));
  const std::size_t times = 1 + below(one_in(4) ? 20 : 3);
  static constexpr std::array<std::int64_t, 4> kPeriods{1'000, 100'000, 1'000'000, 100'000'000};
  const std::int64_t period = kPeriods[below(kPeriods.size())];
  const std::int64_t ids = one_in(4) ? 0 : static_cast<std::int64_t>(1000 + below(1000));
  for (std::size_t n = 1; n <= times && events.size() + count <= kMostEvents; ++n) {
    for (std::size_t i = 0; i < count; ++i) {
      Event copy = events[first + i];
      move_event(copy, static_cast<std::int64_t>(n) * period);
      move_ids(copy, static_cast<std::int64_t>(n) * ids);
      events.push_back(std::move(copy));
    }
  }
}

/// Events that belong together, near an event that is there.
void EventMutator::insert_snippet(std::vector<Event>& events) {
  std::vector<Event> added = take_apart("[" + word("events") + "]").events;
  const std::int64_t near = events.empty() ? 0 : time_of(any(events), "ts").value_or(0) - 1'000'000;
  const auto ids = static_cast<std::int64_t>(below(5000));
  for (Event& event : added) {
    move_event(event, near);
    move_ids(event, ids);
  }
  const std::size_t place = below(events.size() + 1);
  events.insert(events.begin() + static_cast<std::ptrdiff_t>(place), added.begin(), added.end());
}

}  // namespace traceap::fuzz
