#pragma once
// A hash map from 64-bit keys that are hashes themselves: open addressing in one block of memory.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace traceap {

/// A hash of two numbers, every bit of which depends on both. Not symmetric; different for any two
/// pairs of numbers below 2^31.
constexpr std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  // Spread first: of two small numbers an exclusive or would be that of many other pairs too.
  hash = hash * 0x9e3779b97f4a7c15ULL + value;
  hash = (hash ^ (hash >> 32)) * 0xff51afd7ed558ccdULL;
  hash = (hash ^ (hash >> 32)) * 0xc4ceb9fe1a85ec53ULL;
  return hash ^ (hash >> 29);
}

/// Values by key. Keys must be spread out (mix); entries stay, none is removed.
template <typename Value>
class FlatMap {
 public:
  /// The value of a key; a new one is Value{}.
  Value& operator[](std::uint64_t key) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    Slot& slot = slots_[place(key)];
    if (!slot.used) {
      slot.used = true;
      slot.key = key;
      ++size_;
    }
    return slot.value;
  }
  /// nullptr: there is none.
  const Value* find(std::uint64_t key) const {
    if (slots_.empty()) return nullptr;
    const Slot& slot = slots_[place(key)];
    return slot.used ? &slot.value : nullptr;
  }
  Value* find(std::uint64_t key) { return const_cast<Value*>(std::as_const(*this).find(key)); }
  std::size_t size() const { return size_; }

  /// visit(key, value) of all, in no order.
  template <typename Visit>
  void for_each(Visit visit) {
    for (Slot& slot : slots_) {
      if (slot.used) visit(slot.key, slot.value);
    }
  }

 private:
  struct Slot {
    std::uint64_t key = 0;
    Value value{};
    bool used = false;
  };
  std::size_t place(std::uint64_t key) const {
    std::size_t at = key & (slots_.size() - 1);
    while (slots_[at].used && slots_[at].key != key) at = (at + 1) & (slots_.size() - 1);
    return at;
  }
  void grow() {
    constexpr std::size_t kFirst = 64;
    std::vector<Slot> old(slots_.empty() ? kFirst : 2 * slots_.size());
    old.swap(slots_);
    for (Slot& slot : old) {
      if (slot.used) slots_[place(slot.key)] = std::move(slot);
    }
  }

  std::vector<Slot> slots_;  // a power of two, at most half of them used
  std::size_t size_ = 0;
};

}  // namespace traceap
