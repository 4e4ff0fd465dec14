#pragma once
// Text of whole events to columns. simdjson finds the structural characters of a chunk at once
// (stage 1), a walk over that index takes the columns out and leaves the event's template; text
// that simdjson refuses goes the tolerant way, event by event.

#include <cstdint>
#include <memory>
#include <string_view>

#include "traceap/trace/reasons.hpp"
#include "traceap/trace/row_builder.hpp"

namespace traceap {

/// Zero bytes that must follow the text handed to ChunkParser.
inline constexpr std::size_t kTextPadding = 64;

/// What the last token was that tells whether a comma is missing or too many. A comma before the
/// first object changes nothing.
enum class Behind : std::uint8_t { kOpen, kComma, kObject };

struct ChunkResult {
  ChunkEvents events;
  std::size_t consumed = 0;        ///< bytes read; fewer than given if an event goes on behind them
  bool array_closed = false;       ///< `consumed` stands behind the ']' of traceEvents
  bool resyncing = false;          ///< still looking for an event to begin with
  Behind behind = Behind::kComma;  ///< what `consumed` stands behind
  std::uint64_t objects = 0;
  ReasonCounts reasons;
};

struct ChunkTask {
  std::string_view text;                                ///< followed by kTextPadding zero bytes
  std::uint64_t base_offset = 0;                        ///< of text[0] in the whole text
  std::size_t max_event_bytes = std::size_t{16} << 20;  ///< a longer event is skipped and counted
  bool is_final = false;                                ///< nothing comes behind `text`
  Behind behind = Behind::kOpen;                        ///< what text[0] stands behind
  bool json_lines = false;                              ///< events follow each other without commas
  bool resync = false;  ///< begin at the first place that looks like an event
};

/// One per thread. Not thread-safe.
class ChunkParser {
 public:
  /// `free_templates`: see ReadOptions.
  explicit ChunkParser(std::size_t free_templates);
  ~ChunkParser();
  ChunkResult parse(const ChunkTask& task);
  ParserPools& pools();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace traceap
