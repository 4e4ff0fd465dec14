#pragma once
// An EventTable taken apart into columns for a file, and put together again from one that nobody
// vouches for.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "traceap/table/event_table.hpp"

namespace traceap {

/// Texts end to end: text i is data[offsets[i], offsets[i + 1]).
struct StoredTexts {
  std::span<const std::int64_t> offsets;
  std::span<const std::uint8_t> data;

  std::size_t size() const { return offsets.empty() ? 0 : offsets.size() - 1; }
  std::string_view operator[](std::size_t i) const {
    return {reinterpret_cast<const char*>(data.data()) + offsets[i],
            static_cast<std::size_t>(offsets[i + 1] - offsets[i])};
  }
};

/// A column of few distinct values: indices into them.
template <class T>
struct StoredCodes {
  std::span<const T> distinct;
  std::span<const std::uint32_t> codes;
};

/// What an EventTable is restored from; columns mean what they mean there.
struct StoredTable {
  std::span<const std::int64_t> ts_ns, dur_ns, correlation, external_id;
  std::span<const std::uint32_t> name, track, template_id;
  std::span<const std::uint32_t> category;  ///< strings.size() where there is none
  StoredCodes<std::int32_t> device;
  StoredCodes<std::int64_t> stream;
  std::span<const std::uint8_t> kind, phase, flags;
  StoredTexts values;                                         ///< packed values of each row
  StoredTexts strings, templates;                             ///< by id
  std::vector<std::pair<std::string, std::string>> tracks;    ///< (pid, tid)
  std::vector<std::pair<std::string, std::string>> metadata;  ///< (key, JSON text)
  std::vector<Diagnostic> diagnostics;
  std::string path;
  std::uint64_t total_objects = 0, text_bytes = 0;
};

/// The table that these columns were taken from: nothing is parsed again. Two threads if wanted.
/// Throws SchemaError where the columns can't be those of a table.
EventTable restore_table(const StoredTable& stored, unsigned threads = 0);

/// CRC-32 (that of gzip) of some bytes: finds damage, proves nothing about who wrote them.
std::uint32_t checksum(std::span<const std::uint8_t> bytes);

struct PackedRows {
  std::vector<std::int64_t> offsets;  ///< rows + 1
  std::vector<std::uint8_t> data;
};
/// The packed values of all rows, in their order.
PackedRows pack_rows(const EventTable& table);

}  // namespace traceap
