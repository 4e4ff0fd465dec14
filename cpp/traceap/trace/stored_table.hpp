#pragma once
// An EventTable taken apart into columns for a file, and put together again from one that nobody
// vouches for.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "traceap/table/event_table.hpp"

namespace traceap {

/// A column of integers in as few bytes as its largest needs.
using StoredIntegers = std::variant<std::span<const std::uint8_t>, std::span<const std::uint16_t>,
                                    std::span<const std::uint32_t>, std::span<const std::int64_t>>;

/// Times as they are, or steps of which the first goes from `first`.
struct StoredTimes {
  StoredIntegers values;
  std::optional<std::int64_t> first;
};
/// Ids as they are, or counted from 1 = `lowest`, where 0 is none.
struct StoredIds {
  StoredIntegers values;
  std::optional<std::int64_t> lowest;
};
/// A column of few distinct values: indices into them.
template <class T>
struct StoredCodes {
  std::span<const T> distinct;
  StoredIntegers codes;
};
/// Texts end to end.
struct StoredTexts {
  StoredIntegers sizes;
  std::span<const std::uint8_t> data;
};

/// What an EventTable is restored from; columns mean what they mean there.
struct StoredTable {
  StoredTimes starts;
  StoredIntegers dur_ns;
  StoredIds correlation, external_id;
  StoredIntegers name, track, template_id;
  StoredIntegers category;  ///< the number of strings where there is none
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
