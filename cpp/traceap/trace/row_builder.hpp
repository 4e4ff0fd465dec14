#pragma once
// Events that were walked over to rows, with ids into the parser's own pools.
// See Note [Event templates] in table/event_table.hpp.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "traceap/base/string_pool.hpp"
#include "traceap/table/event_table.hpp"
#include "traceap/trace/event_walker.hpp"
#include "traceap/trace/reasons.hpp"

namespace traceap {

/// The name of a track in ParserPools::tracks: the pid's length, the pid and the tid, so that
/// tracks are told apart by what is meant, not by how it was escaped.
std::string track_key(std::string_view pid, std::string_view tid);

/// What one parser has seen, over all its chunks. Strings are JSON text as written.
struct ParserPools {
  StringPool names;      ///< names and categories, without quotes, escapes as written
  StringPool tracks;     ///< track_key
  StringPool templates;  ///< templates as valid JSON
  StringPool broken;     ///< those met that are no valid JSON as they stand
  struct Template {
    StringId id = kNoString;  ///< in `templates`; kNoString: no valid reading as it stands
    std::uint32_t bad_escapes = 0;
  };
  std::vector<Template> of_broken;              ///< by id in `broken`
  std::vector<std::uint32_t> name_bad_escapes;  ///< by id in `names`
};

/// Columns of one chunk in file order; the same meaning as in EventTable.
struct ChunkEvents {
  std::vector<std::int64_t> ts_ns, dur_ns, stream, correlation, external_id;
  std::vector<StringId> name, category, template_id;
  std::vector<TrackId> track;
  std::vector<std::int32_t> device;
  std::vector<std::uint32_t> values_end;  ///< end of the row's packed values in `values`
  std::vector<char> phase;
  std::vector<std::uint8_t> flags;
  std::vector<std::uint8_t> values;

  std::size_t size() const { return ts_ns.size(); }
};

class RowBuilder {
 public:
  /// `free_templates`: see ReadOptions.
  explicit RowBuilder(std::size_t free_templates) : free_templates_(free_templates) {}

  ParserPools pools;

  /// Adds the event that `walker` stands on, or counts why it is none. False if its text is not
  /// valid JSON in a place that the walk did not look at; then nothing is added or counted.
  bool add(EventWalker& walker, std::uint64_t offset, ChunkEvents& events, ReasonCounts& reasons);

 private:
  ParserPools::Template intern_template(std::string_view text);
  bool is_one_too_many(std::string_view text);
  ParserPools::Template intern_around(std::string_view text, const EventWalker::ArgsPlace& args);
  StringId intern_name(std::string_view text, std::uint32_t& bad_escapes);
  TrackId intern_track(const Fields& fields);

  std::size_t free_templates_;
  std::uint64_t events_ = 0;
  std::string around_;
  std::string last_pid_, last_tid_;
  TrackId last_track_ = kNoTrack;
};

}  // namespace traceap
