#pragma once
// Columns through the Arrow C stream interface, without an Arrow library. The two structs are the
// ABI of https://arrow.apache.org/docs/format/CStreamInterface.html.
//
// Invariants: a batch never changes once it is exported; every struct handed out shares ownership
// of all batches, so a consumer may release them in any order, on any thread, without the GIL.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

extern "C" {
struct ArrowSchema {
  const char* format;
  const char* name;
  const char* metadata;
  std::int64_t flags;
  std::int64_t n_children;
  ArrowSchema** children;
  ArrowSchema* dictionary;
  void (*release)(ArrowSchema*);
  void* private_data;
};

struct ArrowArray {
  std::int64_t length;
  std::int64_t null_count;
  std::int64_t offset;
  std::int64_t n_buffers;
  std::int64_t n_children;
  const void** buffers;
  ArrowArray** children;
  ArrowArray* dictionary;
  void (*release)(ArrowArray*);
  void* private_data;
};

struct ArrowArrayStream {
  int (*get_schema)(ArrowArrayStream*, ArrowSchema*);
  int (*get_next)(ArrowArrayStream*, ArrowArray*);
  const char* (*get_last_error)(ArrowArrayStream*);
  void (*release)(ArrowArrayStream*);
  void* private_data;
};
}

namespace traceap::bindings {

/// Texts of a dictionary as Arrow's large_utf8: valid UTF-8 whatever came out of the file.
struct ArrowTexts {
  std::vector<std::int64_t> offsets{0};
  std::string data;

  void add(std::string_view text);
  std::int64_t size() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
};

struct ArrowColumn {
  std::string name;
  std::string format;  ///< of the values, or of the indices into `dictionary`
  const void* values = nullptr;
  std::shared_ptr<const void> owner;   ///< keeps `values` alive
  std::vector<std::uint8_t> validity;  ///< bitmap; empty: no nulls
  std::int64_t null_count = 0;
  std::shared_ptr<const ArrowTexts> dictionary;  ///< null: a plain column
};

struct ArrowBatch {
  std::int64_t length = 0;
  std::vector<ArrowColumn> columns;
};
/// One batch at least, all with the same columns.
using ArrowBatches = std::shared_ptr<const std::vector<ArrowBatch>>;

/// Fills the bitmap of a column from "is row i valid?".
template <typename IsValid>
void set_validity(ArrowColumn& column, std::size_t length, IsValid is_valid) {
  column.validity.assign((length + 7) / 8, 0);
  for (std::size_t i = 0; i < length; ++i) {
    if (is_valid(i)) {
      column.validity[i / 8] |= static_cast<std::uint8_t>(1U << (i % 8));
    } else {
      ++column.null_count;
    }
  }
  if (column.null_count == 0) column.validity.clear();
}

/// A fresh stream over the batches.
void export_stream(ArrowBatches batches, ArrowArrayStream* out);
/// The schema of the batches alone.
void export_schema(const ArrowBatches& batches, ArrowSchema* out);

}  // namespace traceap::bindings
