#include "traceap/trace/assemble.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "traceap/base/error.hpp"
#include "traceap/base/interrupt.hpp"
#include "traceap/base/intervals.hpp"
#include "traceap/table/json_text.hpp"

namespace traceap {

namespace {

/// Ids of one parser's pools in the table's.
struct IdMaps {
  std::vector<StringId> names, templates;
  std::vector<TrackId> tracks;
};

Track track_of(std::string_view key) {
  const std::size_t digits = key.find(':');
  const auto size = static_cast<std::size_t>(*parse_int64(key.substr(0, digits)));
  Track track;
  track.pid = key.substr(digits + 1, size);
  track.tid = key.substr(digits + 1 + size);
  return track;
}

/// Puts tracks[order[i]] at i, in place: there may be as many tracks as events.
void put_in_order(std::vector<Track>& tracks, std::vector<TrackId> order) {
  for (TrackId start = 0; start < order.size(); ++start) {
    const Track first = tracks[start];
    TrackId place = start;
    for (; order[place] != start; place = std::exchange(order[place], place)) {
      tracks[place] = tracks[order[place]];
    }
    tracks[place] = first;
    order[place] = place;
  }
}

/// Numbers tracks by name, so that the order of events in the file does not show.
void take_tracks(StringPool pool, EventTable& table, std::vector<IdMaps>& maps) {
  std::vector<Track>& tracks = table.tracks;
  table.track_texts = std::make_shared<TrackTexts>();
  {
    auto [keys, texts] = std::move(pool).take_texts();
    table.track_texts->texts = std::move(texts);
    tracks.reserve(keys.size());
    for (const std::string_view key : keys) tracks.push_back(track_of(key));
  }
  std::vector<TrackId> order(tracks.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](TrackId a, TrackId b) {
    return tracks[a].pid != tracks[b].pid ? tracks[a].pid < tracks[b].pid
                                          : tracks[a].tid < tracks[b].tid;
  });
  std::vector<TrackId> number(order.size());
  for (TrackId place = 0; place < order.size(); ++place) number[order[place]] = place;
  put_in_order(tracks, std::move(order));
  for (IdMaps& map : maps) {
    for (TrackId& id : map.tracks) id = number[id];
  }
}

/// Ids here of names, which a parser leaves as they are written.
std::vector<StringId> take_names(StringPool from, StringPool& strings) {
  const auto is_escaped = [&](StringId id) {
    return from[id].find('\\') != std::string_view::npos;
  };
  StringId escaped = 0;
  while (escaped < from.size() && !is_escaped(escaped)) ++escaped;
  if (escaped == from.size()) return strings.absorb(std::move(from));
  std::vector<StringId> ids;
  for (StringId id = 0; id < from.size(); ++id) {
    ids.push_back(strings.intern(is_escaped(id) ? unescape_json(from[id]) : from[id]));
  }
  return ids;
}

/// Takes the pools over, one after the other: their texts are never there twice.
std::vector<IdMaps> merge_pools(std::vector<ParserPools> pools, EventTable& table) {
  std::vector<IdMaps> maps(pools.size());
  StringPool tracks;
  for (std::size_t p = 0; p < pools.size(); ++p) {
    poll_interrupt_now();
    ParserPools from = std::exchange(pools[p], ParserPools());
    maps[p].templates = table.args.templates.absorb(std::move(from.templates));
    maps[p].names = take_names(std::move(from.names), table.strings);
    maps[p].tracks = tracks.absorb(std::move(from.tracks));
  }
  take_tracks(std::move(tracks), table, maps);
  return maps;
}

/// Replaces ids of [begin, end) by what `map` gives for them; kNoString stays.
void renumber(NarrowColumn<StringId, kNoString>& column, Row begin, Row end,
              const std::vector<std::uint32_t>& map) {
  for (Row r = begin; r < end; ++r) {
    poll_interrupt();
    if (column[r] != kNoString) column.set(r, map[column[r]]);
  }
}
void renumber(std::vector<std::uint32_t>& column, Row begin, Row end,
              const std::vector<std::uint32_t>& map) {
  for (Row r = begin; r < end; ++r) {
    poll_interrupt();
    if (column[r] != kNoString) column[r] = map[column[r]];
  }
}

void classify(EventTable& t) {
  std::vector<EventKind> of_category(t.strings.size(), EventKind::kOther);
  std::vector<bool> known(t.strings.size());
  t.kind.resize(t.size());
  for (Row r = 0; r < t.size(); ++r) {
    poll_interrupt();
    const bool slice = t.phase[r] == 'X' || t.phase[r] == 'B' || t.phase[r] == 'E';
    const StringId c = t.category[r];
    if (!slice || c == kNoString) {
      t.kind[r] = classify_event(t.phase[r], c == kNoString ? std::string_view() : t.strings[c]);
      continue;
    }
    if (!known[c]) {
      of_category[c] = classify_event('X', t.strings[c]);
      known[c] = true;
    }
    t.kind[r] = of_category[c];
  }
}

// --- order --------------------------------------------------------------------------------------

/// Key of a row: rows without a time first, then by start.
class TimeKeys {
 public:
  explicit TimeKeys(const EventTable& t) : table_(t) {
    std::int64_t lowest = std::numeric_limits<std::int64_t>::max(), highest = 0;
    bool any = false;
    for (Row r = 0; r < t.size(); ++r) {
      poll_interrupt();
      if (!(t.flags[r] & kHasTime)) continue;
      lowest = std::min(lowest, t.ts_ns[r]);
      highest = any ? std::max(highest, t.ts_ns[r]) : t.ts_ns[r];
      any = true;
    }
    lowest_ = any ? lowest : 0;
    range_ = any ? static_cast<std::uint64_t>(highest) - static_cast<std::uint64_t>(lowest) + 1 : 0;
  }
  std::uint64_t operator[](Row r) const {
    if (!(table_.flags[r] & kHasTime)) return 0;
    return static_cast<std::uint64_t>(table_.ts_ns[r]) - static_cast<std::uint64_t>(lowest_) + 1;
  }
  std::uint64_t range() const { return range_; }

 private:
  const EventTable& table_;
  std::int64_t lowest_ = 0;
  std::uint64_t range_ = 0;
};

/// Stable radix sort, 11 bits a pass, as many passes as the range of times needs.
std::vector<Row> order_by_time(const EventTable& t, const TimeKeys& key) {
  constexpr unsigned kBits = 11;
  std::vector<Row> order(t.size());
  for (Row r = 0; r < t.size(); ++r) order[r] = r;
  bool sorted = true;
  for (Row r = 1; r < t.size() && sorted; ++r) sorted = key[r - 1] <= key[r];
  if (sorted) return order;
  std::vector<Row> next(t.size());
  for (unsigned shift = 0; shift < 64 && (key.range() >> shift) != 0; shift += kBits) {
    std::array<std::uint32_t, (1U << kBits) + 1> begin{};
    constexpr std::uint64_t kMask = (1U << kBits) - 1;
    poll_interrupt_now();
    for (const Row r : order) ++begin[((key[r] >> shift) & kMask) + 1];
    for (std::size_t b = 1; b < begin.size(); ++b) begin[b] += begin[b - 1];
    for (const Row r : order) next[begin[(key[r] >> shift) & kMask]++] = r;
    order.swap(next);
  }
  return order;
}

/// What of two ranges over the same time encloses the other: annotations enclose frames, frames
/// operators, operators runtime calls, and these driver calls.
int nesting_rank(EventKind kind) {
  switch (kind) {
    case EventKind::kUserAnnotation:
      return 0;
    case EventKind::kPythonFunction:
      return 1;
    case EventKind::kCpuOp:
      return 2;
    case EventKind::kRuntime:
      return 3;
    case EventKind::kDriver:
      return 4;
    default:
      return 5 + static_cast<int>(kind);
  }
}

/// Characters of a JSON text but for the white space between its tokens.
class PlainText {
 public:
  explicit PlainText(std::string_view text) : text_(text) {}
  /// The next one, or -1 at the end.
  int next() {
    while (!in_string_ && pos_ < text_.size() && is_json_space(text_[pos_])) ++pos_;
    if (pos_ >= text_.size()) return -1;
    const char c = text_[pos_++];
    if (c == '"' && !escaped_) in_string_ = !in_string_;
    escaped_ = c == '\\' && in_string_ && !escaped_;
    return static_cast<unsigned char>(c);
  }

 private:
  std::string_view text_;
  std::size_t pos_ = 0;
  bool in_string_ = false, escaped_ = false;
};

/// Below, equal to or above 0, whatever the layout of the texts is.
int compare_plain(std::string_view a, std::string_view b) {
  PlainText first(a), second(b);
  for (;;) {
    const int x = first.next(), y = second.next();
    if (x != y || x < 0) return x - y;
  }
}

/// Order of rows that start together: by content, so that the order in the file does not matter,
/// but for metadata of one thing: there the last in the file is what counts.
class ContentOrder {
 public:
  explicit ContentOrder(const EventTable& t) : t_(t) {}
  bool operator()(Row a, Row b) const {
    if (t_.dur_ns[a] != t_.dur_ns[b]) return t_.dur_ns[a] > t_.dur_ns[b];
    if (t_.kind[a] != t_.kind[b]) return nesting_rank(t_.kind[a]) < nesting_rank(t_.kind[b]);
    // The op that began first has the smaller External id, so it is the outer one.
    if (t_.external_id[a] != t_.external_id[b]) return t_.external_id[a] < t_.external_id[b];
    if (t_.correlation[a] != t_.correlation[b]) return t_.correlation[a] < t_.correlation[b];
    if (t_.phase[a] != t_.phase[b]) return t_.phase[a] < t_.phase[b];
    if (t_.stream[a] != t_.stream[b]) return t_.stream[a] < t_.stream[b];
    if (t_.device[a] != t_.device[b]) return t_.device[a] < t_.device[b];
    if (t_.name[a] != t_.name[b]) return t_.name_of(a) < t_.name_of(b);
    // One without a category and one whose category is no text, or an empty one, go by the rest.
    if (const int order = t_.category_of(a).compare(t_.category_of(b))) return order < 0;
    if (t_.track[a] != t_.track[b]) return t_.track[a] < t_.track[b];  // sorted by name
    if (t_.kind[a] == EventKind::kMetadata) return a < b;  // rows are in file order here
    return by_text(a, b);
  }

 private:
  /// Without layout first, which an event that was mended with its neighbours has lost.
  bool by_text(Row a, Row b) const {
    const StringId x = t_.args.template_id[a], y = t_.args.template_id[b];
    const std::string_view text_x = t_.args.templates[x], text_y = t_.args.templates[y];
    if (packs_args(text_x) || packs_args(text_y)) {
      const WholeTemplate whole_x = whole_template(t_, a), whole_y = whole_template(t_, b);
      return is_less(whole_x.text, whole_x.packed, whole_y.text, whole_y.packed);
    }
    return x == y ? packed(a) < packed(b) : is_less(text_x, packed(a), text_y, packed(b));
  }
  static bool packs_args(std::string_view text) {
    return text.find(static_cast<char>(kSlotArgs)) != std::string_view::npos;
  }
  static bool is_less(std::string_view text_x, std::string_view packed_x, std::string_view text_y,
                      std::string_view packed_y) {
    const int order = compare_plain(text_x, text_y);
    if (order != 0) return order < 0;
    const int of_values = packed_x.compare(packed_y);
    return of_values != 0 ? of_values < 0 : text_x < text_y;
  }
  /// Packed values of a row; rows still stand in file order here.
  std::string_view packed(Row r) const {
    const std::uint64_t begin = t_.args.values_offset[r];
    const std::uint64_t end =
        r + 1 < t_.size() ? t_.args.values_offset[r + 1] : t_.args.values.size();
    return {reinterpret_cast<const char*>(t_.args.values.data()) + begin, end - begin};
  }
  const EventTable& t_;
};

void order_ties(const EventTable& t, const TimeKeys& key, std::vector<Row>& order) {
  const ContentOrder less(t);
  for (std::size_t begin = 0; begin < order.size();) {
    poll_interrupt();
    std::size_t end = begin + 1;
    while (end < order.size() && key[order[end]] == key[order[begin]]) ++end;
    if (end - begin > 1) {
      std::sort(order.begin() + static_cast<std::ptrdiff_t>(begin),
                order.begin() + static_cast<std::ptrdiff_t>(end), less);
    }
    begin = end;
  }
}

template <class T>
void permute(std::vector<T>& column, const std::vector<Row>& order) {
  std::vector<T> sorted(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) sorted[i] = column[order[i]];
  column.swap(sorted);
}

template <class T, T kAbsent>
void permute(NarrowColumn<T, kAbsent>& column, const std::vector<Row>& order) {
  column = column.pick(order);
}

void permute_columns(EventTable& t, const std::vector<Row>& order) {
  const auto each = [&](auto&... columns) {
    ((poll_interrupt_now(), permute(columns, order)), ...);
  };
  each(t.ts_ns, t.dur_ns, t.name, t.category, t.kind, t.phase, t.flags, t.track, t.device, t.stream,
       t.correlation, t.external_id, t.args.template_id, t.args.values_offset);
}

// --- B and E ------------------------------------------------------------------------------------

/// Matches B with E per track, innermost first; an E with a name closes the innermost of that name.
class BeginEndMatcher {
 public:
  explicit BeginEndMatcher(EventTable& t) : t_(t), open_(t.tracks.size()) {}

  /// Rows that start together, in content order (B before E).
  void add(Row r) {
    if (t_.phase[r] == 'B') {
      open_[t_.track[r]].push_back(r);
    } else if (t_.phase[r] == 'E' && !close(r)) {
      ++unmatched_ends_;
    }
  }
  void finish() {
    std::uint64_t unmatched = 0;
    for (const std::vector<Row>& stack : open_) unmatched += stack.size();
    t_.diagnostics.add("unmatched_begin", "a B event without its E was kept, but is not complete",
                       unmatched);
    t_.diagnostics.add("unmatched_end", "an E event without its B was kept, but is not complete",
                       unmatched_ends_);
  }

 private:
  bool close(Row end) {
    std::vector<Row>& stack = open_[t_.track[end]];
    // Crossed ranges are rare and shallow; the bound keeps hostile input linear.
    const std::size_t lowest = stack.size() > kMaxCrossed ? stack.size() - kMaxCrossed : 0;
    std::size_t at = stack.size();
    while (at > lowest && !t_.name_of(end).empty() && t_.name[stack[at - 1]] != t_.name[end]) --at;
    if (at == lowest) return false;
    const Row begin = stack[at - 1];
    if (t_.ts_ns[end] - t_.ts_ns[begin] > kMaxTimeNs) return false;  // no event takes so long
    stack.erase(stack.begin() + static_cast<std::ptrdiff_t>(at) - 1);
    t_.dur_ns[begin] = t_.ts_ns[end] - t_.ts_ns[begin];
    t_.flags[begin] |= kHasDuration;
    t_.flags[end] |= kMatchedEnd;
    return true;
  }

  static constexpr std::size_t kMaxCrossed = 64;
  EventTable& t_;
  std::vector<std::vector<Row>> open_;
  std::uint64_t unmatched_ends_ = 0;
};

void match_begin_end(EventTable& t, const TimeKeys& key, std::vector<Row>& order) {
  const auto is_bracket = [&](Row r) { return t.phase[r] == 'B' || t.phase[r] == 'E'; };
  if (std::none_of(order.begin(), order.end(), is_bracket)) return;
  order_ties(t, key, order);
  BeginEndMatcher matcher(t);
  for (const Row r : order) {
    poll_interrupt();
    if (t.flags[r] & kHasTime) matcher.add(r);
  }
  matcher.finish();
}

}  // namespace

namespace {

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

template <class T, T kAbsent>
void append(NarrowColumn<T, kAbsent>& to, const std::vector<T>& from) {
  to.append(from);
}

}  // namespace

void Assembler::add(const ChunkEvents& events, std::size_t parser) {
  if (events.size() == 0) return;
  EventTable& t = table_;
  if (t.ts_ns.size() + events.size() >= kNoRow) {
    throw Error(t.path + ": more than 4294967294 events in one file");
  }
  append(t.ts_ns, events.ts_ns);
  append(t.dur_ns, events.dur_ns);
  append(t.name, events.name);
  append(t.category, events.category);
  append(t.phase, events.phase);
  append(t.flags, events.flags);
  append(t.track, events.track);
  append(t.device, events.device);
  append(t.stream, events.stream);
  append(t.correlation, events.correlation);
  append(t.external_id, events.external_id);
  append(t.args.template_id, events.template_id);
  append_values(events);
  ranges_.push_back({t.size(), parser});
}

void Assembler::append_values(const ChunkEvents& events) {
  ArgStore& args = table_.args;
  std::vector<std::uint64_t> begins;
  begins.reserve(events.size());
  begins.push_back(args.values.size());
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    begins.push_back(args.values.size() + events.values_end[i]);
  }
  append(args.values_offset, begins);
  append(args.values, events.values);
}

void Assembler::renumber_all(std::vector<ParserPools> pools) {
  EventTable& t = table_;
  const std::vector<IdMaps> maps = merge_pools(std::move(pools), t);
  Row begin = 0;
  for (const auto& [end, parser] : ranges_) {
    poll_interrupt_now();
    renumber(t.name, begin, end, maps[parser].names);
    renumber(t.category, begin, end, maps[parser].names);
    renumber(t.track, begin, end, maps[parser].tracks);
    renumber(t.args.template_id, begin, end, maps[parser].templates);
    begin = end;
  }
}

void Assembler::finish(std::vector<ParserPools> pools, TopMembers metadata) {
  EventTable& t = table_;
  renumber_all(std::move(pools));
  classify(t);
  {
    const TimeKeys key(t);
    std::vector<Row> order = order_by_time(t, key);
    match_begin_end(t, key, order);
    order_ties(t, key, order);
    permute_columns(t, order);
  }
  t.metadata = std::move(metadata);
  clean_metadata(t.metadata, t.diagnostics);
  read_metadata(t);
  name_tracks(t);
  classify_xla_events(t);
  classify_ascend_events(t);
  classify_mtia_events(t);
  flag_impossible_times(t);
}

}  // namespace traceap
