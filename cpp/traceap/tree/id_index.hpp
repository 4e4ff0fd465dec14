#pragma once
// Rows by an integer id that they carry (correlation, External id, sequence number). Profilers
// count ids up, so a table indexed by id is the fast way; scattered or hostile ids are sorted.

#include <cstdint>
#include <span>
#include <vector>

#include "traceap/base/ids.hpp"

namespace traceap {

struct IdRow {
  std::int64_t id;
  Row row;
};

class IdIndex {
 public:
  IdIndex() = default;
  /// `entries` in row order. O(n), O(n log n) if ids are scattered.
  explicit IdIndex(std::vector<IdRow> entries);

  /// Rows that carry `id`, in row order. O(1), O(log n) if ids are scattered.
  std::span<const Row> find(std::int64_t id) const {
    if (!offsets_.empty()) {
      const std::uint64_t slot = static_cast<std::uint64_t>(id) - first_id_;
      if (slot >= offsets_.size() - 1) return {};
      return {rows_.data() + offsets_[slot], rows_.data() + offsets_[slot + 1]};
    }
    return find_sorted(id);
  }
  bool empty() const { return rows_.empty(); }

 private:
  void build_direct(std::span<const IdRow> entries, std::uint64_t range);
  void build_sorted(std::vector<IdRow> entries);
  std::span<const Row> find_sorted(std::int64_t id) const;

  std::uint64_t first_id_ = 0;
  std::vector<std::uint32_t> offsets_;  ///< direct: per id - first id, into rows_
  std::vector<std::int64_t> ids_;       ///< sorted: per entry of rows_
  std::vector<Row> rows_;
};

}  // namespace traceap
