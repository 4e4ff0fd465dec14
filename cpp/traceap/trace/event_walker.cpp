#include "traceap/trace/event_walker.hpp"

#include <cstring>
#include <limits>
#include <optional>

#include "traceap/table/event_table.hpp"
#include "traceap/table/json_text.hpp"

namespace traceap {

namespace {

constexpr std::uint32_t kBrokenToken = std::numeric_limits<std::uint32_t>::max();

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20; }
bool begins_value(char c) { return c != ',' && c != '}' && c != ']' && c != ':' && !is_control(c); }

}  // namespace

/// Text of the scalar (or string, with quotes) at `token`: up to the next one, white space off.
inline std::string_view EventWalker::scalar(std::uint32_t token) const {
  const std::uint32_t begin = idx_[token];
  std::uint32_t end = idx_[token + 1];
  while (end > begin + 1 && is_json_space(text_[end - 1])) --end;
  return {text_ + begin, end - begin};
}

inline bool EventWalker::key(std::uint32_t token, std::string_view& out) const {
  const std::string_view quoted = scalar(token);
  if (quoted.size() < 2 || quoted.front() != '"' || quoted.back() != '"') return false;
  out = quoted.substr(1, quoted.size() - 2);
  return true;
}

/// Token behind the value at `token`; beyond the last one if the value does not end; kBrokenToken
/// where a control character stands for a value: in a template it would pass for a slot.
inline std::uint32_t EventWalker::skip(std::uint32_t token) const {
  if (at(token) != '{' && at(token) != '[') return token + 1;
  std::uint32_t depth = 0;
  for (; token < tokens_; ++token) {
    const char c = at(token);
    if (is_control(c)) return kBrokenToken;
    if (c == '{' || c == '[') ++depth;
    if ((c == '}' || c == ']') && --depth == 0) return token + 1;
  }
  return tokens_;
}

void EventWalker::point_at(std::string_view text, const StructuralIndex& index) {
  text_ = text.data();
  idx_ = index.positions();
  tokens_ = index.size();
  if (template_capacity_ < text.size() + 1) {
    template_capacity_ = text.size() + text.size() / 4 + 1;
    template_ = std::make_unique_for_overwrite<char[]>(template_capacity_);
  }
}

void EventWalker::begin_event(const char* start) {
  fields_ = Fields{};
  packed_.clear();
  args_ = {};
  template_size_ = 0;
  copied_ = event_begin_ = start;
}

/// Where a token that was not copied yet will stand in the template.
inline std::size_t EventWalker::in_template(std::uint32_t token) const {
  return template_size_ + static_cast<std::size_t>(text_ + idx_[token] - copied_);
}

/// Replaces `value` in the template by a slot.
inline void EventWalker::slot(std::string_view value, char kind) {
  const auto before = static_cast<std::size_t>(value.data() - copied_);
  std::memcpy(template_.get() + template_size_, copied_, before);
  template_size_ += before;
  template_[template_size_++] = kind;
  copied_ = value.data() + value.size();
}

inline void EventWalker::mark(std::uint16_t bit) {
  if (fields_.seen & bit) fields_.duplicate = true;
  fields_.seen |= bit;
}

inline void EventWalker::take_integer(std::string_view text, std::int64_t value) {
  append_varint(packed_, value);
  slot(text, kSlotInteger);
}

inline void EventWalker::take_number(std::string_view text) {
  if (text.size() > 255) return;
  packed_.push_back(static_cast<std::uint8_t>(text.size()));
  packed_.insert(packed_.end(), text.begin(), text.end());
  slot(text, kSlotNumber);
}

namespace {

bool looks_like_number(std::string_view text) { return is_digit(text[0]) || text[0] == '-'; }

std::string_view without_quotes(std::string_view text) {
  if (text.size() < 2 || text.front() != '"' || text.back() != '"') return text;
  return trim_space(text.substr(1, text.size() - 2));
}

}  // namespace

void EventWalker::take_time(std::uint32_t value, std::uint16_t bit, std::int64_t& out, char kind) {
  mark(bit);
  const std::string_view text = scalar(value);
  const std::string_view number = without_quotes(text);
  const std::optional<std::int64_t> ns = parse_us_as_ns(number);
  if (!ns) {
    // null is a missing value, everything else one that has no reading.
    if (text == "null")
      fields_.seen &= static_cast<std::uint16_t>(~bit);
    else
      fields_.bad |= bit;
    return;
  }
  fields_.bad &= static_cast<std::uint16_t>(~bit);
  out = *ns;
  if (number.size() != text.size()) fields_.quoted_number = true;
  slot(text, kind);
}

void EventWalker::take_text(std::uint32_t value, std::uint16_t bit, std::string_view& out,
                            char kind) {
  mark(bit);
  if (key(value, out)) return slot(scalar(value), kind);
  const char c = at(value);
  if (c == '{' || c == '[') return;  // kept in the template; the column stays empty
  out = scalar(value);
  if (out == "null") fields_.seen &= static_cast<std::uint16_t>(~bit);
}

void EventWalker::take_track_part(std::uint32_t value, std::uint16_t bit, std::string_view& out,
                                  char kind) {
  mark(bit);
  const char c = at(value);
  if (c == '{' || c == '[') return;
  out = scalar(value);
  if (c == '"') {
    out = without_quotes(out);
  } else if (parse_int64(out)) {
    slot(out, kind);
  }
}

bool EventWalker::take_id(std::uint32_t value, std::uint16_t bit, std::int64_t& out, char kind) {
  const std::string_view text = scalar(value);
  if (looks_like_number(text)) {
    const std::optional<std::int64_t> number = parse_int64(text);
    if (!number) return false;
    mark(bit);
    out = *number;
    slot(text, kind);
    return true;
  }
  const std::optional<std::int64_t> number = parse_int64(without_quotes(text));
  if (number && text.front() == '"') {
    mark(bit);
    out = *number;
    fields_.quoted_number = true;
  }
  return true;  // words and null stay in the template
}

void EventWalker::take_device(std::uint32_t value) {
  const std::optional<std::int64_t> number = parse_int64(scalar(value));
  if (!number || *number < 0 || *number > std::numeric_limits<std::int32_t>::max()) {
    return take_other(value);
  }
  mark(kSeenDevice);
  fields_.device = static_cast<std::int32_t>(*number);
  slot(scalar(value), kSlotDevice);
}

/// Integers are packed; other numbers go along as text; everything else stays in the template.
inline void EventWalker::take_other(std::uint32_t value) {
  const char c = at(value);
  if (!is_digit(c) && c != '-') return;
  const std::string_view text = scalar(value);
  if (const std::optional<std::int64_t> number = parse_int64(text))
    return take_integer(text, *number);
  if (is_json_number(text)) take_number(text);
}

void EventWalker::take_phase(std::uint32_t value) {
  mark(kSeenPhase);
  const std::string_view text = without_quotes(scalar(value));
  fields_.phase = text.size() == 1 ? text[0] : '?';
}

/// A member of the event itself.
void EventWalker::member(std::string_view key, std::uint32_t value) {
  switch (key.size()) {
    case 2:
      if (key == "ph") return take_phase(value);
      if (key == "ts") return take_time(value, kSeenTs, fields_.ts_ns, kSlotTs);
      if (key == "id" && at(value) == '"') return take_number(scalar(value));
      break;
    case 3:
      if (key == "cat") return take_text(value, kSeenCategory, fields_.category, kSlotCategory);
      if (key == "pid") return take_track_part(value, kSeenPid, fields_.pid, kSlotPid);
      if (key == "tid") return take_track_part(value, kSeenTid, fields_.tid, kSlotTid);
      if (key == "dur") return take_time(value, kSeenDur, fields_.dur_ns, kSlotDur);
      break;
    case 4:
      if (key == "name") return take_text(value, kSeenName, fields_.name, kSlotName);
      break;
    default:
      break;
  }
  take_other(value);
}

/// A member of `args`.
void EventWalker::argument(std::string_view key, std::uint32_t value) {
  bool done = false;
  switch (key.size()) {
    case 6:
      if (key == "device") return take_device(value);
      if (key == "stream") done = take_id(value, kSeenStream, fields_.stream, kSlotStream);
      break;
    case 11:
      if (key == "correlation") {
        done = take_id(value, kSeenCorrelation, fields_.correlation, kSlotCorrelation);
      } else if (key == "External id" || key == "external id" || key == "External Id") {
        done = take_id(value, kSeenExternalId, fields_.external_id, kSlotExternalId);
      }
      break;
    default:
      break;
  }
  if (!done) take_other(value);
}

/// From the '{' of args to the token behind its '}'.
Walk EventWalker::walk_args(std::uint32_t& token) {
  ++token;
  if (token < tokens_ && at(token) == '}') return ++token, Walk::kEvent;
  for (;;) {
    if (token + 2 >= tokens_) return Walk::kIncomplete;
    std::string_view name;
    if (at(token + 1) != ':' || !key(token, name)) return Walk::kBroken;
    const std::uint32_t value = token + 2;
    const char c = at(value);
    if (!begins_value(c)) return Walk::kBroken;
    if (c == '{' || c == '[') {
      token = skip(value);
      if (token == kBrokenToken) return Walk::kBroken;
    } else {
      argument(name, value);
      token = value + 1;
    }
    if (token >= tokens_) return Walk::kIncomplete;
    const char behind = at(token++);
    if (behind == '}') return Walk::kEvent;
    if (behind != ',') return Walk::kBroken;
  }
}

/// From the '{' of an event to the token behind its '}'.
Walk EventWalker::walk(std::uint32_t& token) {
  begin_event(text_ + idx_[token]);
  ++token;
  if (token < tokens_ && at(token) == '}') {
    event_end_ = text_ + idx_[token] + 1;
    return ++token, Walk::kEvent;
  }
  for (;;) {
    if (token + 2 >= tokens_) return Walk::kIncomplete;
    std::string_view name;
    if (at(token + 1) != ':' || !key(token, name)) return Walk::kBroken;
    const std::uint32_t value = token + 2;
    const char c = at(value);
    if (!begins_value(c)) return Walk::kBroken;
    if (c == '{' && name == "args") {
      mark(kSeenArgs);
      token = value;
      args_ = {in_template(value), 0, packed_.size()};
      const Walk walk = walk_args(token);
      if (walk != Walk::kEvent) return walk;
      args_.end = in_template(token - 1) + 1;
    } else {
      member(name, value);
      token = skip(value);
      if (token == kBrokenToken) return Walk::kBroken;
    }
    if (token >= tokens_) return Walk::kIncomplete;
    const char behind = at(token);
    if (behind == '}') {
      event_end_ = text_ + idx_[token] + 1;
      return ++token, Walk::kEvent;
    }
    if (behind != ',') return Walk::kBroken;
    ++token;
  }
}

std::string_view EventWalker::template_text() {
  const auto rest = static_cast<std::size_t>(event_end_ - copied_);
  std::memcpy(template_.get() + template_size_, copied_, rest);
  return {template_.get(), template_size_ + rest};
}

}  // namespace traceap
