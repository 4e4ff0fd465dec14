#pragma once
// Chunks of rows from several parsers to one sorted EventTable.

#include <vector>

#include "traceap/table/event_table.hpp"
#include "traceap/trace/chunk_parser.hpp"
#include "traceap/trace/container.hpp"

namespace traceap {

struct ParsedChunk {
  ChunkEvents events;
  std::size_t parser;  ///< whose pools the ids belong to
};

/// Fills columns, strings, tracks and metadata of `table`. Chunks are in file order and are freed
/// on the way: the peak is the table plus two columns. O(n) for any sensible range of times.
void assemble(std::vector<ParsedChunk> chunks, const std::vector<const ParserPools*>& pools,
              TopMembers metadata, EventTable& table);

/// deviceProperties and distributedInfo out of table.metadata.
void read_metadata(EventTable& table);
/// process_name, process_labels and thread_name events to table.tracks.
void name_tracks(EventTable& table);

}  // namespace traceap
