#pragma once
// Bytes to EventTable. Reading never refuses a usable file and says what it lost (DESIGN 2).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "traceap/table/event_table.hpp"

namespace traceap {

struct ReadOptions {
  unsigned threads = 0;  ///< parsing threads; 0 = as many as there are cores
  /// Decompressed text handed to a parser at once: small enough to stay in its cache.
  std::size_t chunk_bytes = std::size_t{1} << 20;
  std::size_t max_event_bytes = std::size_t{16} << 20;  ///< a longer event is skipped and counted
  /// Templates that each thread interns even if hardly any of them comes again.
  /// See Note [Event templates].
  std::size_t free_templates = 1024;
  /// Called now and then with (compressed bytes read, compressed bytes in all).
  std::function<void(std::uint64_t, std::uint64_t)> progress;
};

/// Reads a trace file: JSON, gzip (several members too) or zstd, told apart by content.
/// Throws ParseError if there is not a single event, or the file can't be read.
EventTable read_trace(const std::string& path, const ReadOptions& options = {});
/// The same from bytes in memory; `name` stands for the path in messages.
EventTable read_trace_bytes(std::string_view bytes, const std::string& name,
                            const ReadOptions& options = {});

}  // namespace traceap
