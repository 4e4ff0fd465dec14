#include "traceap/trace/chunk_parser.hpp"

#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <optional>

#include "traceap/base/error.hpp"
#include "traceap/table/json_text.hpp"
#include "traceap/trace/repair.hpp"

namespace traceap {

namespace {

/// simdjson's stage 1 over one piece of text: positions of all structural characters.
class StructuralIndex {
 public:
  /// False if the text has no strict reading (open string, control character, bad UTF-8).
  bool build(std::string_view text) {
    reserve(text.size());
    const auto error = parser_->stage1(reinterpret_cast<const std::uint8_t*>(text.data()),
                                       text.size(), simdjson::stage1_mode::regular);
    if (error == simdjson::EMPTY) parser_->n_structural_indexes = 0;
    return error == simdjson::SUCCESS || error == simdjson::EMPTY;
  }
  const std::uint32_t* positions() const { return parser_->structural_indexes.get(); }
  std::uint32_t size() const { return parser_->n_structural_indexes; }

 private:
  void reserve(std::size_t bytes) {
    if (bytes >= std::numeric_limits<std::uint32_t>::max()) throw Error("chunk above 4 GiB");
    if (parser_ && parser_->capacity() >= bytes) return;
    const std::size_t capacity = std::max<std::size_t>(bytes + bytes / 4, 4096);
    const auto error = simdjson::get_active_implementation()->create_dom_parser_implementation(
        capacity, 1, parser_);
    if (error != simdjson::SUCCESS) throw std::bad_alloc();
  }
  std::unique_ptr<simdjson::internal::dom_parser_implementation> parser_;
};

enum class Walk { kEvent, kIncomplete, kBroken };

/// Keys of an event that have a column, as bits of Fields::seen.
enum Seen : std::uint16_t {
  kSeenPhase = 1, kSeenCategory = 2, kSeenName = 4, kSeenPid = 8, kSeenTid = 16, kSeenTs = 32,
  kSeenDur = 64, kSeenArgs = 128, kSeenCorrelation = 256, kSeenExternalId = 512,
  kSeenDevice = 1024, kSeenStream = 2048
};

struct Fields {
  std::int64_t ts_ns = 0, dur_ns = 0;
  std::int64_t correlation = kNoId, external_id = kNoId, stream = kNoId;
  std::string_view name, category, pid, tid;
  std::int32_t device = -1;
  std::uint16_t seen = 0;
  std::uint16_t bad = 0;      ///< keys whose value has no reading
  char phase = 0;
  bool duplicate = false;     ///< a key came twice: the last value counts, the text is kept whole
};

}  // namespace

class ChunkParser::Impl {
 public:
  ChunkResult parse(const ChunkTask& task);
  ParserPools pools;

 private:
  // A walk stands on tokens: positions of structural characters in text_.
  char at(std::uint32_t token) const { return text_[idx_[token]]; }
  std::string_view scalar(std::uint32_t token) const;
  bool key(std::uint32_t token, std::string_view& out) const;
  std::uint32_t skip(std::uint32_t token) const;

  Walk walk_event(std::uint32_t& token);
  Walk walk_args(std::uint32_t& token);
  bool member(std::string_view key, std::uint32_t value);
  void argument(std::string_view key, std::uint32_t value);

  void begin_event(const char* start);
  void slot(std::string_view value, char kind);
  void take_integer(std::string_view text, std::int64_t value);
  void take_number(std::string_view text);
  void take_time(std::uint32_t value, std::uint16_t bit, std::int64_t& out, char kind);
  void take_text(std::uint32_t value, std::uint16_t bit, std::string_view& out, char kind);
  void take_track_part(std::uint32_t value, std::uint16_t bit, std::string_view& out, char kind);
  bool take_id(std::uint32_t value, std::uint16_t bit, std::int64_t& out, char kind);
  void take_device(std::uint32_t value);
  void take_other(std::uint32_t value);
  void mark(std::uint16_t bit);

  bool finish_event(std::uint64_t offset);
  bool is_kept(std::uint64_t offset);
  ParserPools::Template intern_template(std::string_view text, std::uint64_t offset);
  StringId intern_name(std::string_view text, std::uint64_t offset);
  TrackId intern_track();
  void append_row(ParserPools::Template shape, std::uint64_t offset);

  void point_at(std::string_view text, const StructuralIndex& index);
  bool parse_strict(const ChunkTask& task, std::size_t& pos);
  void parse_tolerant(const ChunkTask& task, std::size_t pos);
  bool repair_one(const ChunkTask& task, std::size_t& pos);
  bool read_object(const ChunkTask& task, std::uint32_t& token, std::size_t& pos);
  void meet_object(const ChunkTask& task, std::uint64_t offset);
  void meet_comma(std::uint64_t offset);
  void meet_close(std::uint64_t offset, std::size_t pos);

  StructuralIndex chunk_index_, event_index_;
  const char* text_ = nullptr;
  const std::uint32_t* idx_ = nullptr;
  std::uint32_t tokens_ = 0;

  Fields fields_;
  bool quoted_number_ = false;
  const char* copied_ = nullptr;         ///< text before it is in template_ already
  const char* event_begin_ = nullptr;
  const char* event_end_ = nullptr;
  std::unique_ptr<char[]> template_;
  std::size_t template_capacity_ = 0, template_size_ = 0;
  std::vector<std::uint8_t> packed_;
  std::string track_key_, last_track_key_, repaired_;
  TrackId last_track_ = kNoTrack;
  std::string_view last_pid_, last_tid_;
  ChunkResult result_;
  bool comma_ = true;      ///< an object may come: behind '[', ',' or at a chunk's begin
  std::size_t max_event_bytes_ = 0;
  bool stopped_ = false;   ///< the chunk ends inside an event
};

// --- tokens -------------------------------------------------------------------------------------

/// Text of the scalar (or string, with quotes) at `token`: up to the next one, white space off.
inline std::string_view ChunkParser::Impl::scalar(std::uint32_t token) const {
  const std::uint32_t begin = idx_[token];
  std::uint32_t end = idx_[token + 1];
  while (end > begin + 1 && is_json_space(text_[end - 1])) --end;
  return {text_ + begin, end - begin};
}

inline bool ChunkParser::Impl::key(std::uint32_t token, std::string_view& out) const {
  const std::string_view quoted = scalar(token);
  if (quoted.size() < 2 || quoted.front() != '"' || quoted.back() != '"') return false;
  out = quoted.substr(1, quoted.size() - 2);
  return true;
}

/// Token behind the value at `token`; beyond the last one if the value does not end.
inline std::uint32_t ChunkParser::Impl::skip(std::uint32_t token) const {
  if (at(token) != '{' && at(token) != '[') return token + 1;
  std::uint32_t depth = 0;
  for (; token < tokens_; ++token) {
    const char c = at(token);
    if (c == '{' || c == '[') ++depth;
    if ((c == '}' || c == ']') && --depth == 0) return token + 1;
  }
  return tokens_;
}

void ChunkParser::Impl::point_at(std::string_view text, const StructuralIndex& index) {
  text_ = text.data();
  idx_ = index.positions();
  tokens_ = index.size();
  if (template_capacity_ < text.size() + 1) {
    template_capacity_ = text.size() + text.size() / 4 + 1;
    template_ = std::make_unique_for_overwrite<char[]>(template_capacity_);
  }
}

// --- one event ----------------------------------------------------------------------------------

void ChunkParser::Impl::begin_event(const char* start) {
  fields_ = Fields{};
  quoted_number_ = false;
  packed_.clear();
  template_size_ = 0;
  copied_ = event_begin_ = start;
}

/// Replaces `value` in the template by a slot.
inline void ChunkParser::Impl::slot(std::string_view value, char kind) {
  const auto before = static_cast<std::size_t>(value.data() - copied_);
  std::memcpy(template_.get() + template_size_, copied_, before);
  template_size_ += before;
  template_[template_size_++] = kind;
  copied_ = value.data() + value.size();
}

inline void ChunkParser::Impl::mark(std::uint16_t bit) {
  if (fields_.seen & bit) fields_.duplicate = true;
  fields_.seen |= bit;
}

inline void ChunkParser::Impl::take_integer(std::string_view text, std::int64_t value) {
  append_varint(packed_, value);
  slot(text, kSlotInteger);
}

inline void ChunkParser::Impl::take_number(std::string_view text) {
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

void ChunkParser::Impl::take_time(std::uint32_t value, std::uint16_t bit, std::int64_t& out,
                                  char kind) {
  mark(bit);
  const std::string_view text = scalar(value);
  const std::string_view number = without_quotes(text);
  const std::optional<std::int64_t> ns = parse_us_as_ns(number);
  if (!ns) {
    // null is a missing value, everything else one that has no reading.
    if (text == "null") fields_.seen &= static_cast<std::uint16_t>(~bit);
    else fields_.bad |= bit;
    return;
  }
  fields_.bad &= static_cast<std::uint16_t>(~bit);
  out = *ns;
  if (number.size() != text.size()) quoted_number_ = true;
  slot(text, kind);
}

void ChunkParser::Impl::take_text(std::uint32_t value, std::uint16_t bit, std::string_view& out,
                                  char kind) {
  mark(bit);
  if (key(value, out)) return slot(scalar(value), kind);
  const char c = at(value);
  if (c == '{' || c == '[') return;  // kept in the template; the column stays empty
  out = scalar(value);
  if (out == "null") fields_.seen &= static_cast<std::uint16_t>(~bit);
}

void ChunkParser::Impl::take_track_part(std::uint32_t value, std::uint16_t bit,
                                        std::string_view& out, char kind) {
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

bool ChunkParser::Impl::take_id(std::uint32_t value, std::uint16_t bit, std::int64_t& out,
                                char kind) {
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
    quoted_number_ = true;
  }
  return true;  // words and null stay in the template
}

void ChunkParser::Impl::take_device(std::uint32_t value) {
  const std::optional<std::int64_t> number = parse_int64(scalar(value));
  if (!number || *number < 0 || *number > std::numeric_limits<std::int32_t>::max()) {
    return take_other(value);
  }
  mark(kSeenDevice);
  fields_.device = static_cast<std::int32_t>(*number);
  slot(scalar(value), kSlotDevice);
}

/// Integers are packed; other numbers go along as text; everything else stays in the template.
inline void ChunkParser::Impl::take_other(std::uint32_t value) {
  const char c = at(value);
  if (!is_digit(c) && c != '-') return;
  const std::string_view text = scalar(value);
  if (const std::optional<std::int64_t> number = parse_int64(text)) return take_integer(text, *number);
  if (is_json_number(text)) take_number(text);
}

/// A member of the event itself.
bool ChunkParser::Impl::member(std::string_view key, std::uint32_t value) {
  switch (key.size()) {
    case 2:
      if (key == "ph") {
        mark(kSeenPhase);
        const std::string_view text = without_quotes(scalar(value));
        fields_.phase = text.size() == 1 ? text[0] : '?';
        return true;
      }
      if (key == "ts") return take_time(value, kSeenTs, fields_.ts_ns, kSlotTs), true;
      if (key == "id" && at(value) == '"') return take_number(scalar(value)), true;
      break;
    case 3:
      if (key == "cat") return take_text(value, kSeenCategory, fields_.category, kSlotCategory), true;
      if (key == "pid") return take_track_part(value, kSeenPid, fields_.pid, kSlotPid), true;
      if (key == "tid") return take_track_part(value, kSeenTid, fields_.tid, kSlotTid), true;
      if (key == "dur") return take_time(value, kSeenDur, fields_.dur_ns, kSlotDur), true;
      break;
    case 4:
      if (key == "name") return take_text(value, kSeenName, fields_.name, kSlotName), true;
      break;
    default:
      break;
  }
  take_other(value);
  return true;
}

/// A member of `args`.
void ChunkParser::Impl::argument(std::string_view key, std::uint32_t value) {
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
Walk ChunkParser::Impl::walk_args(std::uint32_t& token) {
  ++token;
  if (token < tokens_ && at(token) == '}') return ++token, Walk::kEvent;
  for (;;) {
    if (token + 2 >= tokens_) return Walk::kIncomplete;
    std::string_view name;
    if (at(token + 1) != ':' || !key(token, name)) return Walk::kBroken;
    const std::uint32_t value = token + 2;
    const char c = at(value);
    if (c == ',' || c == '}' || c == ']' || c == ':') return Walk::kBroken;
    if (c == '{' || c == '[') {
      token = skip(value);
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
Walk ChunkParser::Impl::walk_event(std::uint32_t& token) {
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
    if (c == ',' || c == '}' || c == ']' || c == ':') return Walk::kBroken;
    if (c == '{' && name == "args") {
      mark(kSeenArgs);
      token = value;
      const Walk walk = walk_args(token);
      if (walk != Walk::kEvent) return walk;
    } else {
      member(name, value);
      token = skip(value);
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

// --- from fields to a row -----------------------------------------------------------------------

/// Counts why an event can't be kept or is not complete.
bool ChunkParser::Impl::is_kept(std::uint64_t offset) {
  Fields& f = fields_;
  const auto has = [&](std::uint16_t bit) { return (f.seen & bit) && !(f.bad & bit); };
  if (!(f.seen & kSeenPhase)) return result_.reasons.add(Reason::kMissingPhase, offset), false;
  if (f.phase != 'M' && !has(kSeenTs)) {
    const bool bad = (f.bad & kSeenTs) != 0;
    result_.reasons.add(bad ? Reason::kBadStart : Reason::kMissingStart, offset);
    return false;
  }
  if (f.phase == 'X') {
    if (f.bad & kSeenDur) {
      result_.reasons.add(Reason::kBadDuration, offset);
    } else if (!(f.seen & kSeenDur)) {
      result_.reasons.add(Reason::kMissingDuration, offset);
    } else if (f.dur_ns < 0) {
      result_.reasons.add(Reason::kNegativeDuration, offset);
    }
    if (!(f.seen & kSeenName)) result_.reasons.add(Reason::kMissingName, offset);
  }
  if (quoted_number_) result_.reasons.add(Reason::kNumberInQuotes, offset);
  return true;
}

/// False when the event's text is not valid JSON in a place that the walk did not look at.
bool ChunkParser::Impl::finish_event(std::uint64_t offset) {
  const auto event_bytes = static_cast<std::size_t>(event_end_ - event_begin_);
  if (event_bytes > max_event_bytes_) {
    ++result_.objects;
    result_.reasons.add(Reason::kEventTooLong, offset);
    return true;
  }
  ParserPools::Template shape;
  // A dur that is no duration has no column to come back from.
  const bool odd_duration =
      (fields_.seen & kSeenDur) && (fields_.dur_ns < 0 || fields_.phase != 'X');
  if (fields_.duplicate || odd_duration) {
    // The text as it stands, without slots.
    packed_.clear();
    shape = intern_template({event_begin_, event_bytes}, offset);
  } else {
    const auto rest = static_cast<std::size_t>(event_end_ - copied_);
    std::memcpy(template_.get() + template_size_, copied_, rest);
    shape = intern_template({template_.get(), template_size_ + rest}, offset);
  }
  if (shape.id == kNoString) return false;
  ++result_.objects;
  if (is_kept(offset)) append_row(shape, offset);
  return true;
}

namespace {

/// Doubles backslashes that escape nothing.
std::string mend_escapes(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    out.push_back(text[i]);
    if (text[i] != '\\') continue;
    const char next = i + 1 < text.size() ? text[i + 1] : '\0';
    bool valid = next != '\0' && std::string_view("\"\\/bfnrt").find(next) != std::string_view::npos;
    if (next == 'u' && i + 5 < text.size()) {
      valid = std::all_of(text.begin() + static_cast<std::ptrdiff_t>(i) + 2,
                          text.begin() + static_cast<std::ptrdiff_t>(i) + 6,
                          [](unsigned char c) { return std::isxdigit(c); });
    }
    if (valid) {
      out.push_back(next);
      ++i;
    } else {
      out.push_back('\\');
    }
  }
  return out;
}

}  // namespace

ParserPools::Template ChunkParser::Impl::intern_template(std::string_view text,
                                                         std::uint64_t offset) {
  const StringId raw = pools.raw.intern(text);
  if (raw == pools.of_raw.size()) {
    ParserPools::Template shape;
    if (is_valid_json(text)) {
      shape.id = pools.templates.intern(text);
    } else if (const std::string mended = mend_escapes(text); is_valid_json(mended)) {
      shape = {pools.templates.intern(mended), true};
    }
    pools.of_raw.push_back(shape);
  }
  const ParserPools::Template shape = pools.of_raw[raw];
  if (shape.repaired) result_.reasons.add(Reason::kBareBackslash, offset);
  return shape;
}

StringId ChunkParser::Impl::intern_name(std::string_view text, std::uint64_t offset) {
  const StringId id = pools.names.intern(text);
  if (id == pools.name_repaired.size()) {
    bool repaired = false;
    if (text.find('\\') != std::string_view::npos) unescape_json(text, &repaired);
    pools.name_repaired.push_back(repaired);
  }
  if (pools.name_repaired[id]) result_.reasons.add(Reason::kBareBackslash, offset);
  return id;
}

TrackId ChunkParser::Impl::intern_track() {
  if (last_track_ != kNoTrack && fields_.pid == last_pid_ && fields_.tid == last_tid_) {
    return last_track_;
  }
  track_key_.assign(fields_.pid);
  track_key_.push_back(kTrackSeparator);
  track_key_ += fields_.tid;
  last_track_ = pools.tracks.intern(track_key_);
  const std::string_view stored = pools.tracks[last_track_];
  last_pid_ = stored.substr(0, fields_.pid.size());
  last_tid_ = stored.substr(fields_.pid.size() + 1);
  return last_track_;
}

void ChunkParser::Impl::append_row(ParserPools::Template shape, std::uint64_t offset) {
  ChunkEvents& e = result_.events;
  const Fields& f = fields_;
  const bool has_time = (f.seen & kSeenTs) && !(f.bad & kSeenTs);
  const bool has_duration =
      f.phase == 'X' && (f.seen & kSeenDur) && !(f.bad & kSeenDur) && f.dur_ns >= 0;
  e.ts_ns.push_back(has_time ? f.ts_ns : 0);
  e.dur_ns.push_back(has_duration ? f.dur_ns : 0);
  e.flags.push_back(static_cast<std::uint8_t>((has_time ? kHasTime : 0) |
                                              (has_duration ? kHasDuration : 0) |
                                              (shape.repaired || quoted_number_ ? kRepaired : 0)));
  e.phase.push_back(f.phase);
  e.name.push_back(intern_name(f.name, offset));
  e.category.push_back((f.seen & kSeenCategory) ? intern_name(f.category, offset) : kNoString);
  e.track.push_back(intern_track());
  e.device.push_back(f.device);
  e.stream.push_back(f.stream);
  e.correlation.push_back(f.correlation);
  e.external_id.push_back(f.external_id);
  e.template_id.push_back(shape.id);
  e.values.insert(e.values.end(), packed_.begin(), packed_.end());
  e.values_end.push_back(static_cast<std::uint32_t>(e.values.size()));
}

// --- one chunk ----------------------------------------------------------------------------------

/// Reads with the chunk's structural index. True when all is read; else `pos` is where the
/// tolerant way has to go on.
bool ChunkParser::Impl::parse_strict(const ChunkTask& task, std::size_t& pos) {
  if (!chunk_index_.build(task.text)) return false;
  point_at(task.text, chunk_index_);
  std::uint32_t token = 0;
  while (token < tokens_) {
    pos = idx_[token];
    switch (at(token)) {
      case '{':
        if (!read_object(task, token, pos)) return false;
        if (stopped_) return true;
        break;
      case ',':
        meet_comma(task.base_offset + pos);
        ++token;
        break;
      case ']':
        meet_close(task.base_offset + pos, pos);
        return true;
      default:
        return false;
    }
  }
  result_.consumed = task.text.size();
  return true;
}

/// The object at `token`; `pos` is its place. False: go on in the tolerant way at `pos`.
bool ChunkParser::Impl::read_object(const ChunkTask& task, std::uint32_t& token, std::size_t& pos) {
  const std::uint64_t offset = task.base_offset + pos;
  const Walk walk = walk_event(token);
  if (walk == Walk::kBroken || (walk == Walk::kIncomplete && task.is_final)) return false;
  if (walk == Walk::kIncomplete) {
    stopped_ = true;
    result_.consumed = pos;
    return true;
  }
  if (!finish_event(offset)) {
    // Well-formed for the walk, but not inside a nested value: mend this event alone.
    std::size_t end = pos;
    if (!repair_one(task, end)) {
      stopped_ = true;
      result_.consumed = pos;
      return true;
    }
    point_at(task.text, chunk_index_);
    if (end != static_cast<std::size_t>(idx_[token - 1]) + 1) return pos = end, false;
  }
  meet_object(task, offset);
  return true;
}

inline void ChunkParser::Impl::meet_object(const ChunkTask& task, std::uint64_t offset) {
  if (!comma_ && !task.json_lines) result_.reasons.add(Reason::kMissingComma, offset);
  comma_ = false;
}

inline void ChunkParser::Impl::meet_comma(std::uint64_t offset) {
  if (comma_) result_.reasons.add(Reason::kExtraComma, offset);
  comma_ = true;
}

void ChunkParser::Impl::meet_close(std::uint64_t offset, std::size_t pos) {
  if (comma_ && pos > 0 && result_.objects > 0) result_.reasons.add(Reason::kExtraComma, offset);
  result_.array_closed = true;
  result_.consumed = pos + 1;
}

/// Mends and reads the event at `pos`; false when more text is needed.
bool ChunkParser::Impl::repair_one(const ChunkTask& task, std::size_t& pos) {
  const std::uint64_t offset = task.base_offset + pos;
  const RepairResult repaired =
      repair_event(task.text, pos, task.is_final, task.base_offset, repaired_, result_.reasons);
  if (repaired.status == RepairStatus::kNeedMore) return false;
  pos = repaired.end;
  if (repaired.status == RepairStatus::kSkipped) {
    ++result_.objects;
    return true;
  }
  const std::size_t size = repaired_.size();
  repaired_.append(kTextPadding, '\0');
  const std::string_view text(repaired_.data(), size);
  std::uint32_t token = 0;
  bool read = false;
  if (event_index_.build(text)) {
    point_at(text, event_index_);
    read = walk_event(token) == Walk::kEvent && finish_event(offset);
  }
  if (!read) {
    ++result_.objects;
    result_.reasons.add(Reason::kUnreadableEvent, offset);
  }
  return true;
}

/// Event by event from `pos`: for text that simdjson refuses as a whole.
void ChunkParser::Impl::parse_tolerant(const ChunkTask& task, std::size_t pos) {
  const std::string_view text = task.text;
  for (;;) {
    pos = skip_space(text, pos);
    if (pos >= text.size()) break;
    const char c = text[pos];
    if (c == '{') {
      const std::uint64_t offset = task.base_offset + pos;
      if (!repair_one(task, pos)) {
        result_.consumed = pos;
        return;
      }
      meet_object(task, offset);
    } else if (c == ',') {
      meet_comma(task.base_offset + pos);
      ++pos;
    } else if (c == ']') {
      return meet_close(task.base_offset + pos, pos);
    } else {
      const std::size_t next = find_event_start(text, pos + 1);
      const std::size_t close = text.find(']', pos + 1);
      if (std::min(next, close) >= text.size() && !task.is_final) {
        result_.consumed = pos;
        return;
      }
      result_.reasons.add(Reason::kNotAnObject, task.base_offset + pos);
      pos = c == '[' ? next : std::min({next, close, text.size()});
    }
  }
  result_.consumed = text.size();
}

ChunkResult ChunkParser::Impl::parse(const ChunkTask& task) {
  result_ = ChunkResult{};
  comma_ = true;
  stopped_ = false;
  max_event_bytes_ = task.max_event_bytes;
  ChunkTask rest = task;
  std::size_t skipped = 0;
  if (task.resync) {
    skipped = find_event_start(task.text, 0);
    if (skipped == task.text.size() && !task.is_final) {
      result_.resyncing = true;
      result_.consumed = skipped;
      return std::move(result_);
    }
    rest.text.remove_prefix(skipped);
    rest.base_offset += skipped;
  }
  const std::size_t expected = rest.text.size() / 300;
  result_.events.ts_ns.reserve(expected);
  std::size_t pos = 0;
  if (!parse_strict(rest, pos)) parse_tolerant(rest, pos);
  result_.consumed += skipped;
  return std::move(result_);
}

ChunkParser::ChunkParser() : impl_(std::make_unique<Impl>()) {}
ChunkParser::~ChunkParser() = default;
ChunkResult ChunkParser::parse(const ChunkTask& task) { return impl_->parse(task); }
const ParserPools& ChunkParser::pools() const { return impl_->pools; }
ParserPools& ChunkParser::pools() { return impl_->pools; }

}  // namespace traceap
