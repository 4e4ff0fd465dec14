#pragma once
// Chunks of rows from several parsers to one sorted EventTable.

#include <vector>

#include "traceap/table/event_table.hpp"
#include "traceap/trace/chunk_parser.hpp"
#include "traceap/trace/container.hpp"

namespace traceap {

/// Takes chunks in file order, gives one sorted table. Columns grow in place, so that the peak is
/// the table and one column more.
class Assembler {
 public:
  explicit Assembler(EventTable& table) : table_(table) {}

  /// `parser` tells whose pools the ids of `events` belong to.
  void add(const ChunkEvents& events, std::size_t parser);
  bool empty() const { return table_.size() == 0; }
  /// Ids of the parsers' pools to the table's, then order, links of B and E, and metadata.
  /// O(n) for any sensible range of times.
  void finish(std::vector<ParserPools> pools, TopMembers metadata);

 private:
  struct Range {
    Row end;
    std::size_t parser;
  };
  void append_values(const ChunkEvents& events);
  void renumber_all(std::vector<ParserPools> pools);

  EventTable& table_;
  std::vector<Range> ranges_;
};

/// Makes every member valid JSON in UTF-8: mended where it has one sensible reading, else dropped;
/// both are counted.
void clean_metadata(TopMembers& members, Diagnostics& diagnostics);
/// deviceProperties and distributedInfo out of table.metadata.
void read_metadata(EventTable& table);
/// A number for the process of each track, without gaps; `tracks` are sorted by pid.
std::vector<std::uint32_t> number_processes(const std::vector<Track>& tracks);
/// process_name, process_labels and thread_name events to table.tracks.
void name_tracks(EventTable& table);
/// Kind, device, stream and correlation of events that XLA's profiler wrote; needs named tracks.
void classify_xla_events(EventTable& table);
/// Kind, device, stream, correlation and External id of events that Ascend's profilers wrote; needs
/// named tracks.
void classify_ascend_events(EventTable& table);
/// Kind, device and stream of MTIA's work. Note [MTIA traces]
void classify_mtia_events(EventTable& table);
/// Flags GPU events whose times can't be true as kImpossible and counts them in the diagnostics;
/// needs the final kinds, devices and streams. O(events + GPU events log GPU events).
void flag_impossible_times(EventTable& table);

}  // namespace traceap
