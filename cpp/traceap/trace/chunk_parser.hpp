#pragma once
// Text of whole events to columns, with ids into the parser's own pools. simdjson finds the
// structural characters of a chunk at once (stage 1); a walk over that index takes the columns out
// and leaves the event's template. See Note [Event templates] in table/event_table.hpp.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "traceap/base/string_pool.hpp"
#include "traceap/table/event_table.hpp"
#include "traceap/trace/reasons.hpp"

namespace traceap {

/// Zero bytes that must follow the text handed to ChunkParser.
inline constexpr std::size_t kTextPadding = 64;
/// Between pid and tid in ParserPools::tracks; cannot occur in JSON text.
inline constexpr char kTrackSeparator = '\x1f';

/// What one parser has seen, over all its chunks. Strings are JSON text as written.
struct ParserPools {
  StringPool names;       ///< names and categories, without quotes, escapes as written
  StringPool tracks;      ///< pid + kTrackSeparator + tid
  StringPool raw;         ///< templates as met
  StringPool templates;   ///< templates as valid JSON
  struct Template {
    StringId id = kNoString;   ///< in `templates`; kNoString: no valid reading as it stands
    bool repaired = false;
  };
  std::vector<Template> of_raw;        ///< by id in `raw`
  std::vector<bool> name_repaired;     ///< by id in `names`
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

struct ChunkResult {
  ChunkEvents events;
  std::size_t consumed = 0;     ///< bytes read; fewer than given if an event goes on behind them
  bool array_closed = false;    ///< `consumed` stands behind the ']' of traceEvents
  bool resyncing = false;       ///< still looking for an event to begin with
  std::uint64_t objects = 0;
  ReasonCounts reasons;
};

struct ChunkTask {
  std::string_view text;         ///< followed by kTextPadding zero bytes
  std::uint64_t base_offset = 0; ///< of text[0] in the whole text
  std::size_t max_event_bytes = std::size_t{64} << 20;  ///< a longer event is skipped and counted
  bool is_final = false;         ///< nothing comes behind `text`
  bool json_lines = false;       ///< events follow each other without commas
  bool resync = false;           ///< begin at the first place that looks like an event
};

/// One per thread. Not thread-safe.
class ChunkParser {
 public:
  ChunkParser();
  ~ChunkParser();
  ChunkResult parse(const ChunkTask& task);
  const ParserPools& pools() const;
  ParserPools& pools();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace traceap
