#include "traceap/tree/id_index.hpp"

#include <algorithm>

#include "traceap/base/offsets.hpp"

namespace traceap {

namespace {

// A direct table may have this many slots per entry (4 bytes each) before sorting is the better
// deal: correlation ids of the corpus have 1 to 36 per recorded call, as not every call is
// recorded.
constexpr std::uint64_t kSlotsPerEntry = 40;
constexpr std::uint64_t kFreeSlots = 4096;

}  // namespace

IdIndex::IdIndex(std::vector<IdRow> entries) {
  if (entries.empty()) return;
  const auto [low, high] = std::minmax_element(
      entries.begin(), entries.end(), [](const IdRow& a, const IdRow& b) { return a.id < b.id; });
  first_id_ = static_cast<std::uint64_t>(low->id);
  const std::uint64_t last_slot = static_cast<std::uint64_t>(high->id) - first_id_;
  if (last_slot < kFreeSlots + kSlotsPerEntry * entries.size()) {
    build_direct(entries, last_slot + 1);
  } else {
    build_sorted(std::move(entries));
  }
}

void IdIndex::build_direct(std::span<const IdRow> entries, std::uint64_t range) {
  CountingSort by_slot(range);
  for (const IdRow& e : entries) by_slot.count(static_cast<std::uint64_t>(e.id) - first_id_);
  rows_.resize(by_slot.start_placing());
  for (const IdRow& e : entries) {
    rows_[by_slot.place(static_cast<std::uint64_t>(e.id) - first_id_)] = e.row;
  }
  offsets_ = by_slot.take_offsets();
}

void IdIndex::build_sorted(std::vector<IdRow> entries) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const IdRow& a, const IdRow& b) { return a.id < b.id; });
  ids_.reserve(entries.size());
  rows_.reserve(entries.size());
  for (const IdRow& e : entries) {
    ids_.push_back(e.id);
    rows_.push_back(e.row);
  }
}

std::span<const Row> IdIndex::find_sorted(std::int64_t id) const {
  const auto [low, high] = std::equal_range(ids_.begin(), ids_.end(), id);
  return {rows_.data() + (low - ids_.begin()), rows_.data() + (high - ids_.begin())};
}

}  // namespace traceap
