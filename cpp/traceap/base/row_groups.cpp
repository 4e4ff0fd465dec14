#include "traceap/base/row_groups.hpp"

#include <algorithm>
#include <cmath>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/offsets.hpp"
#include "traceap/base/statistics.hpp"

namespace traceap {
namespace {

using Keys = std::span<const std::span<const std::int64_t>>;

constexpr std::uint32_t kFree = ~std::uint32_t{0};

/// The finaliser of splitmix64 (Steele, Lea and Flood, 2014): every bit of the input reaches every
/// bit of the output, so that dense codes spread over the table.
std::uint64_t mix(std::uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ULL;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebULL;
  return bits ^ (bits >> 31);
}

std::uint64_t hash_row(Keys keys, std::size_t row) {
  std::uint64_t hash = 0;
  for (const auto& key : keys) {
    hash = mix(hash + 0x9e3779b97f4a7c15ULL + static_cast<std::uint64_t>(key[row]));
  }
  return hash;
}

bool equal_rows(Keys keys, std::size_t a, std::size_t b) {
  return std::ranges::all_of(keys, [&](const auto& key) { return key[a] == key[b]; });
}

/// Open addressing with linear probing, at most half full. It grows with the groups, of which there
/// are far fewer than rows, so it mostly stays in the cache.
class GroupTable {
 public:
  GroupTable(Keys keys, std::vector<std::int64_t>& first)
      : keys_(keys), first_(first), slots_(256, kFree) {}

  std::uint32_t group_of(std::size_t row) {
    const std::uint64_t hash = hash_row(keys_, row);
    std::size_t slot = hash & (slots_.size() - 1);
    for (; slots_[slot] != kFree; slot = next(slot)) {
      const std::uint32_t group = slots_[slot];
      if (hashes_[group] == hash && equal_rows(keys_, static_cast<std::size_t>(first_[group]), row))
        return group;
    }
    const auto group = static_cast<std::uint32_t>(first_.size());
    slots_[slot] = group;
    first_.push_back(static_cast<std::int64_t>(row));
    hashes_.push_back(hash);
    if (2 * first_.size() > slots_.size()) grow();
    return group;
  }

 private:
  std::size_t next(std::size_t slot) const { return (slot + 1) & (slots_.size() - 1); }

  void grow() {
    slots_.assign(2 * slots_.size(), kFree);
    for (std::uint32_t group = 0; group < hashes_.size(); ++group) {
      std::size_t slot = hashes_[group] & (slots_.size() - 1);
      while (slots_[slot] != kFree) slot = next(slot);
      slots_[slot] = group;
    }
  }

  Keys keys_;
  std::vector<std::int64_t>& first_;
  std::vector<std::uint64_t> hashes_;
  std::vector<std::uint32_t> slots_;
};

/// Fills `offsets` and `rows` from `index`.
void sort_by_group(RowGroups& groups) {
  CountingSort<std::int64_t> sort(groups.size());
  for (const std::int64_t group : groups.index) sort.count(static_cast<std::size_t>(group));
  sort.start_placing();
  groups.rows.resize(groups.index.size());
  for (std::size_t row = 0; row < groups.index.size(); ++row) {
    poll_interrupt();
    const auto at = sort.place(static_cast<std::size_t>(groups.index[row]));
    groups.rows[static_cast<std::size_t>(at)] = static_cast<std::int64_t>(row);
  }
  groups.offsets = sort.take_offsets();
}

}  // namespace

RowGroups group_rows(Keys keys) {
  RowGroups groups;
  groups.index.resize(keys[0].size());
  GroupTable table(keys, groups.first);
  for (std::size_t row = 0; row < groups.index.size(); ++row) {
    poll_interrupt();
    groups.index[row] = table.group_of(row);
  }
  sort_by_group(groups);
  return groups;
}

std::vector<double> group_quantiles(const RowGroups& groups, std::span<const double> values,
                                    double q) {
  std::vector<double> sorted(values.size());
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    poll_interrupt();
    sorted[i] = values[static_cast<std::size_t>(groups.rows[i])];
  }
  std::vector<double> result(groups.size());
  for (std::size_t group = 0; group < groups.size(); ++group) {
    const auto begin = static_cast<std::size_t>(groups.offsets[group]);
    const auto end = static_cast<std::size_t>(groups.offsets[group + 1]);
    result[group] = quantile_of(std::span(sorted).subspan(begin, end - begin), q);
  }
  return result;
}

}  // namespace traceap
