#pragma once
// EventTable: one rank's trace as columns of equal length. Built once by trace/, then immutable.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "traceap/base/ids.hpp"
#include "traceap/base/narrow_column.hpp"
#include "traceap/base/string_pool.hpp"
#include "traceap/table/diagnostics.hpp"
#include "traceap/table/event_kind.hpp"
#include "traceap/table/json_text.hpp"

namespace traceap {

/// Bits of EventTable::flags.
enum EventFlag : std::uint8_t {
  kHasTime = 1,      ///< ts_ns was given
  kHasDuration = 2,  ///< phase X with dur, or a B that met its E: with kHasTime, *complete*
  kMatchedEnd = 4,   ///< an E that closed a B
  kRepaired = 8,     ///< the text needed a repair
  kImpossible = 16,  ///< its times can't be true (trace/impossible_times.cpp): never *complete*
};

/// What metadata events say of a process: at most kMaxNameBytes each, or empty.
struct ProcessNames {
  std::string_view name;    ///< process_name
  std::string_view labels;  ///< process_labels
};

/// What the tracks of a table point into: a trace may have as many tracks as events.
struct TrackTexts {
  TextArena texts;
  std::deque<ProcessNames> processes;
};

/// A (pid, tid) pair as written, which may be integers ("7" and 7 are the same) or words. Views are
/// of EventTable::track_texts.
struct Track {
  /// Longer names of processes and threads are cut: each of many tracks may show its own.
  static constexpr std::size_t kMaxNameBytes = 1024;

  std::string_view pid;
  std::string_view tid;
  std::string_view thread_name;           ///< metadata event thread_name, or empty
  const ProcessNames* process = nullptr;  ///< one for all tracks of a process; null if none

  std::optional<std::int64_t> pid_number() const { return parse_int64(pid); }
  std::optional<std::int64_t> tid_number() const { return parse_int64(tid); }
  std::string_view process_name() const { return process ? process->name : std::string_view(); }
  std::string_view process_labels() const { return process ? process->labels : std::string_view(); }
};

/// An event's text with the values of columns and all integers of `args` taken out.
/// Note [Event templates]: the profiler writes few distinct shapes of events, so the text that is
/// left repeats; it is interned, and an event costs one id plus its packed integers. The text of
/// an event can be rebuilt from template, columns and integers: nothing is lost. Where templates
/// don't repeat, because every event has arguments of its own, the part of the template that is
/// `args` is packed with the event's integers, so that what is interned repeats again.
struct ArgStore {
  static constexpr std::uint64_t kNoOffset = ~std::uint64_t{0};

  NarrowColumn<StringId, kNoString> template_id;         ///< per row
  NarrowColumn<std::uint64_t, kNoOffset> values_offset;  ///< per row: where it begins in `values`
  std::vector<std::uint8_t> values;  ///< what Placeholder says of the packed ones
  StringPool templates;
};

/// Where a placeholder in a template takes its text from. The bytes cannot occur in valid JSON.
enum Placeholder : char {
  kSlotTs = 1,
  kSlotDur = 2,
  kSlotName = 3,
  kSlotCategory = 4,
  kSlotPid = 5,
  kSlotTid = 6,
  kSlotCorrelation = 0x0e,
  kSlotExternalId = 0x0f,
  kSlotDevice = 0x10,
  kSlotStream = 0x11,
  // Packed in ArgStore::values, in the order of a row's text.
  kSlotInteger = 0x12,  ///< zig-zag LEB128 integer
  kSlotNumber = 0x13,   ///< one byte of length, then the text of a number
  kSlotArgs = 0x14,     ///< the template of `args`: length as an integer, text, its packed values
};

struct DeviceProperties {
  std::int64_t id = kNoId;
  std::string name;
  std::optional<std::int64_t> compute_major, compute_minor, sm_count, memory_bytes;
};

struct DistributedInfo {
  std::optional<std::int64_t> rank, world_size;
  std::string backend;
};

/// Invariants: all columns have size() entries; rows are sorted by (ts_ns, longer first), ties by
/// content and never by place in the file; events without a time come first with ts_ns 0.
struct EventTable {
  std::vector<std::int64_t> ts_ns;             ///< start, trace clock; 0 without kHasTime
  std::vector<std::int64_t> dur_ns;            ///< >= 0; 0 without kHasDuration
  std::vector<StringId> name;                  ///< in `strings`
  NarrowColumn<StringId, kNoString> category;  ///< in `strings`; kNoString if absent
  std::vector<EventKind> kind;
  std::vector<char> phase;
  std::vector<std::uint8_t> flags;                ///< EventFlag bits
  std::vector<TrackId> track;                     ///< in `tracks`
  NarrowColumn<std::int32_t, -1> device;          ///< args.device (GPU rows); -1 if absent
  NarrowColumn<std::int64_t, kNoId> stream;       ///< args.stream; kNoId if absent
  NarrowColumn<std::int64_t, kNoId> correlation;  ///< args.correlation; kNoId if absent
  NarrowColumn<std::int64_t, kNoId> external_id;  ///< args["External id"]; kNoId if absent
  ArgStore args;

  StringPool strings;  ///< names and categories, unescaped UTF-8
  std::vector<Track> tracks;
  std::shared_ptr<TrackTexts> track_texts;  ///< of `tracks`
  /// Top-level members other than traceEvents: (key, JSON text), in file order.
  std::vector<std::pair<std::string, std::string>> metadata;
  std::vector<DeviceProperties> devices;
  DistributedInfo distributed;
  std::string path;
  std::uint64_t total_objects = 0;  ///< objects met in traceEvents, kept or not
  std::uint64_t text_bytes = 0;     ///< decompressed size
  Diagnostics diagnostics;

  Row size() const { return static_cast<Row>(ts_ns.size()); }
  std::int64_t end_ns(Row r) const { return ts_ns[r] + dur_ns[r]; }
  std::string_view name_of(Row r) const { return strings[name[r]]; }
  std::string_view category_of(Row r) const {
    return category[r] == kNoString ? std::string_view() : strings[category[r]];
  }
  bool is_complete(Row r) const {
    return (flags[r] & (kHasTime | kHasDuration | kImpossible)) == (kHasTime | kHasDuration);
  }
  bool is_gpu_event(Row r) const { return is_gpu(kind[r]) && is_complete(r); }
};

/// JSON text of the whole event, rebuilt. Valid JSON, equal in value to what was read.
std::string event_json(const EventTable& table, Row row);
/// JSON text of its `args` object ("{}" if it has none).
std::string args_json(const EventTable& table, Row row);

/// A row's template with nothing left out, and the packed values of its slots: equal for equal
/// events, however each of them is stored.
struct WholeTemplate {
  std::string text, packed;
};
WholeTemplate whole_template(const EventTable& table, Row row);

/// The packed values of whole rows; which a template has is found once. Not thread-safe.
class PackedValues {
 public:
  explicit PackedValues(const EventTable& table);
  std::span<const std::uint8_t> operator[](Row row) const;

 private:
  const EventTable* table_;
  mutable std::vector<StringId> of_template_;  ///< index in kinds_; kNoString: not known
  mutable StringPool kinds_;  ///< few: a trace may have as many templates as events
};

/// Reads one key of `args` for many rows: the key's place is found once per template, or in each
/// row whose arguments are packed with it.
/// The hot keys device, stream, correlation and External id are found too. Not thread-safe.
class ArgReader {
 public:
  ArgReader(const EventTable& table, std::string_view key);

  /// The value as an integer (numbers in quotes too), if the row has one.
  std::optional<std::int64_t> integer(Row row) const;
  /// The value as a double, if it is a number.
  std::optional<double> number(Row row) const;
  /// The value as text: a string unescaped, everything else as its JSON text.
  std::optional<std::string> text(Row row) const;
  /// The value's JSON text.
  std::optional<std::string> json(Row row) const;
  /// Does the row have the key at all? O(1) after the first row of a template.
  bool has(Row row) const;
  /// What a value is made of besides its template: rows of one template with equal packed bytes
  /// have equal values. nullopt where columns or the row's own text are part of it too, or the row
  /// lacks the key.
  std::optional<std::string_view> packed(Row row) const;

 private:
  /// Where a template has the value, or, if it is kSlotArgs, the object to look into. Small: a
  /// trace may have as many templates as events.
  struct Place {
    std::uint32_t begin, size;  ///< of the value's text within the template
    StringId skip;              ///< kinds of the packed values before it, in kinds_
    StringId fill;              ///< kinds of the packed values in it
    bool has_columns;           ///< a slot in it stands for a column
    bool is_args;               ///< it is the slot of the arguments
  };
  /// A value's text with slots, and where the packed values that fill them begin.
  struct Value {
    std::string_view text;
    const std::uint8_t* packed;
  };
  /// nullptr where the template lacks the key. Valid until the next call.
  const Place* place(Row row) const;
  std::uint32_t find_place(StringId template_id) const;
  std::optional<Value> value(Row row) const;

  const EventTable* table_;
  std::string key_;
  mutable std::vector<std::uint32_t> of_template_;  ///< kUnknown, kAbsent, or index in places_ + 2
  mutable std::vector<Place> places_;
  mutable StringPool kinds_;
};

}  // namespace traceap
