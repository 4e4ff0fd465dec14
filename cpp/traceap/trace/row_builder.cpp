#include "traceap/trace/row_builder.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "traceap/table/json_text.hpp"

namespace traceap {

namespace {

/// Doubles backslashes that escape nothing, and counts them.
std::string mend_escapes(std::string_view text, std::uint32_t& bad_escapes) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    out.push_back(text[i]);
    if (text[i] != '\\') continue;
    const char next = i + 1 < text.size() ? text[i + 1] : '\0';
    bool valid =
        next != '\0' && std::string_view("\"\\/bfnrt").find(next) != std::string_view::npos;
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
      ++bad_escapes;
    }
  }
  return out;
}

bool has(const Fields& f, std::uint16_t bit) { return (f.seen & bit) && !(f.bad & bit); }

void count_duration(const Fields& f, std::uint64_t offset, ReasonCounts& reasons) {
  if (f.bad & kSeenDur) {
    reasons.add(Reason::kBadDuration, offset);
  } else if (!(f.seen & kSeenDur)) {
    reasons.add(Reason::kMissingDuration, offset);
  } else if (f.dur_ns < 0) {
    reasons.add(Reason::kNegativeDuration, offset);
  }
}

/// Counts why an event can't be kept or is not complete.
bool is_kept(const Fields& f, std::uint64_t offset, ReasonCounts& reasons) {
  if (!(f.seen & kSeenPhase)) {
    reasons.add(Reason::kMissingPhase, offset);
    return false;
  }
  if (f.phase != 'M' && !has(f, kSeenTs)) {
    reasons.add((f.bad & kSeenTs) ? Reason::kBadStart : Reason::kMissingStart, offset);
    return false;
  }
  if (f.phase == 'X') {
    count_duration(f, offset, reasons);
    if (!(f.seen & kSeenName)) reasons.add(Reason::kMissingName, offset);
  }
  if (f.quoted_number) reasons.add(Reason::kNumberInQuotes, offset);
  return true;
}

/// Can the text be rebuilt from columns? Not if a key came twice, or a dur is no duration.
bool fits_columns(const Fields& f) {
  const bool odd_duration = (f.seen & kSeenDur) && (f.dur_ns < 0 || f.phase != 'X');
  return !f.duplicate && !odd_duration;
}

void append_times(const Fields& f, bool repaired, ChunkEvents& e) {
  const bool has_time = has(f, kSeenTs);
  const bool has_duration = f.phase == 'X' && has(f, kSeenDur) && f.dur_ns >= 0;
  e.ts_ns.push_back(has_time ? f.ts_ns : 0);
  e.dur_ns.push_back(has_duration ? f.dur_ns : 0);
  e.flags.push_back(static_cast<std::uint8_t>((has_time ? kHasTime : 0) |
                                              (has_duration ? kHasDuration : 0) |
                                              (repaired || f.quoted_number ? kRepaired : 0)));
}

}  // namespace

namespace {

/// track_key in a buffer that is there.
void put_track_key(std::string& key, std::string_view pid, std::string_view tid) {
  char digits[24];
  key.assign(digits, std::to_chars(digits, digits + sizeof digits, pid.size()).ptr);
  key += ':';
  key += pid;
  key += tid;
}

}  // namespace

std::string track_key(std::string_view pid, std::string_view tid) {
  std::string key;
  put_track_key(key, pid, tid);
  return key;
}

bool RowBuilder::add(EventWalker& walker, std::uint64_t offset, ChunkEvents& e,
                     ReasonCounts& reasons) {
  const Fields& f = walker.fields();
  const bool whole_text = !fits_columns(f);
  const std::string_view text = whole_text ? walker.event_text() : walker.template_text();
  const EventWalker::ArgsPlace args = walker.args_place();
  const bool packs_args = !whole_text && args.end > 0 && is_one_too_many(text);
  const ParserPools::Template shape =
      packs_args ? intern_around(text, args) : intern_template(text);
  if (shape.id == kNoString) return false;
  if (!is_kept(f, offset, reasons)) return true;
  std::uint32_t in_names = 0;
  e.name.push_back(intern_name(f.name, in_names));
  e.category.push_back((f.seen & kSeenCategory) ? intern_name(f.category, in_names) : kNoString);
  const std::uint32_t bad_escapes = shape.bad_escapes + (whole_text ? 0 : in_names);
  if (bad_escapes > 0) reasons.add(Reason::kBareBackslash, offset, bad_escapes);
  append_times(f, bad_escapes > 0, e);
  e.phase.push_back(f.phase);
  e.track.push_back(intern_track(f));
  e.device.push_back(f.device);
  e.stream.push_back(f.stream);
  e.correlation.push_back(f.correlation);
  e.external_id.push_back(f.external_id);
  e.template_id.push_back(shape.id);
  if (!whole_text) {
    const auto begin = walker.packed().begin(), end = walker.packed().end();
    const auto middle = packs_args ? begin + static_cast<std::ptrdiff_t>(args.packed) : end;
    e.values.insert(e.values.end(), begin, middle);
    if (packs_args) {
      append_varint(e.values, static_cast<std::int64_t>(args.end - args.begin));
      e.values.insert(e.values.end(), text.begin() + static_cast<std::ptrdiff_t>(args.begin),
                      text.begin() + static_cast<std::ptrdiff_t>(args.end));
    }
    e.values.insert(e.values.end(), middle, end);
  }
  e.values_end.push_back(static_cast<std::uint32_t>(e.values.size()));
  return true;
}

/// Whether a template is new, while most of those before have not come again: then its arguments
/// are better packed with the event. See Note [Event templates].
bool RowBuilder::is_one_too_many(std::string_view text) {
  constexpr std::uint64_t kEventsPerTemplate = 8;
  ++events_;
  if (pools.templates.size() < free_templates_ + events_ / kEventsPerTemplate) return false;
  return pools.templates.find(text) == kNoString && is_valid_json(text, Slots::kAllowed);
}

ParserPools::Template RowBuilder::intern_around(std::string_view text,
                                                const EventWalker::ArgsPlace& args) {
  around_.assign(text.substr(0, args.begin));
  around_.push_back(kSlotArgs);
  around_ += text.substr(args.end);
  return {pools.templates.intern(around_), 0};
}

ParserPools::Template RowBuilder::intern_template(std::string_view text) {
  if (const StringId known = pools.templates.find(text); known != kNoString) return {known, 0};
  if (const StringId known = pools.broken.find(text); known != kNoString) {
    return pools.of_broken[known];
  }
  if (is_valid_json(text, Slots::kAllowed)) return {pools.templates.intern(text), 0};
  ParserPools::Template shape;
  std::uint32_t bad_escapes = 0;
  const std::string mended = mend_escapes(text, bad_escapes);
  if (is_valid_json(mended, Slots::kAllowed)) {
    shape = {pools.templates.intern(mended), bad_escapes};
  }
  pools.broken.intern(text);
  pools.of_broken.push_back(shape);
  return shape;
}

StringId RowBuilder::intern_name(std::string_view text, std::uint32_t& bad_escapes) {
  const StringId id = pools.names.intern(text);
  if (id == pools.name_bad_escapes.size()) {
    std::uint32_t count = 0;
    if (text.find('\\') != std::string_view::npos) unescape_json(text, &count);
    pools.name_bad_escapes.push_back(count);
  }
  bad_escapes += pools.name_bad_escapes[id];
  return id;
}

TrackId RowBuilder::intern_track(const Fields& f) {
  if (last_track_ != kNoTrack && f.pid == last_pid_ && f.tid == last_tid_) return last_track_;
  last_pid_ = f.pid;
  last_tid_ = f.tid;
  const bool is_escaped =
      f.pid.find('\\') != std::string_view::npos || f.tid.find('\\') != std::string_view::npos;
  if (is_escaped) {
    put_track_key(around_, unescape_json(f.pid), unescape_json(f.tid));
  } else {
    put_track_key(around_, f.pid, f.tid);
  }
  return last_track_ = pools.tracks.intern(around_);
}

}  // namespace traceap
