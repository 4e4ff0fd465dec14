#include "traceap/base/string_pool.hpp"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <numeric>
#include <system_error>

namespace traceap {

namespace {

__extension__ typedef unsigned __int128 Wide;

inline std::uint64_t load64(const char* p) {
  std::uint64_t v;
  std::memcpy(&v, p, 8);
  return v;
}

inline std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  const auto product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

/// Drawn anew by every process, so that nobody can write a trace whose strings collide. Nothing may
/// depend on the order of hashes. Not by std::random_device: that of a static libstdc++ may ask for
/// a newer C library than anything else here does.
std::uint64_t draw_secret() {
  std::uint64_t secret = 0;
  if (getentropy(&secret, sizeof secret) != 0) {
    throw std::system_error(errno, std::generic_category(), "getentropy");
  }
  return secret | 1;
}
const std::uint64_t kP0 = draw_secret();
const std::uint64_t kP1 = draw_secret();
const std::uint64_t kP2 = draw_secret();

std::uint64_t load_tail(const char* p, std::size_t n) {
  std::uint64_t v = 0;
  if (n > 0) std::memcpy(&v, p, n);
  return v;
}

constexpr std::size_t kMaxBlockBytes = 1 << 20;

}  // namespace

// Multiply-fold hash in the manner of wyhash (public domain design): two lanes of 16 bytes a round,
// so that the multiplications overlap.
std::uint64_t hash_bytes(const char* data, std::size_t size) {
  std::uint64_t h = kP0 ^ size;
  std::size_t left = size;
  if (left > 32) {
    std::uint64_t lane = h;
    for (; left > 32; data += 32, left -= 32) {
      h = mix(load64(data) ^ kP1, load64(data + 8) ^ h);
      lane = mix(load64(data + 16) ^ kP2, load64(data + 24) ^ lane);
    }
    h ^= lane;
  }
  if (left > 16) {
    h = mix(load64(data) ^ kP1, load64(data + 8) ^ h);
    data += 16;
    left -= 16;
  }
  const std::uint64_t a = left >= 8 ? load64(data) : load_tail(data, left);
  const std::uint64_t b = left > 8 ? load_tail(data + 8, left - 8) : 0;
  return mix(a ^ kP1 ^ size, mix(b ^ kP0, h));
}

StringPool::StringPool() : slots_(64, Slot{0, kNoString}) {}

std::string_view TextArena::store(std::string_view text) {
  if (text.size() > block_left_) {
    const std::size_t bytes = std::max(text.size(), next_block_bytes_);
    blocks_.push_back(std::make_unique_for_overwrite<char[]>(bytes));
    block_next_ = blocks_.back().get();
    block_left_ = bytes;
    next_block_bytes_ = std::min(next_block_bytes_ * 2, kMaxBlockBytes);
  }
  if (!text.empty()) std::memcpy(block_next_, text.data(), text.size());
  const std::string_view stored(block_next_, text.size());
  block_next_ += text.size();
  block_left_ -= text.size();
  return stored;
}

void TextArena::adopt(TextArena&& other) {
  blocks_.insert(blocks_.end(), std::make_move_iterator(other.blocks_.begin()),
                 std::make_move_iterator(other.blocks_.end()));
  other = TextArena();
}

void StringPool::grow() {
  std::vector<Slot> old(slots_.size() * 2, Slot{0, kNoString});
  old.swap(slots_);
  const std::size_t mask = slots_.size() - 1;
  for (StringId id = 0; id < strings_.size(); ++id) {
    const std::uint64_t h = hash_bytes(strings_[id].data(), strings_[id].size());
    std::size_t i = h & mask;
    while (slots_[i].id != kNoString) i = (i + 1) & mask;
    slots_[i] = Slot{static_cast<std::uint32_t>(h >> 32), id};
  }
}

template <class Stored>
StringId StringPool::intern_hashed(std::string_view text, std::uint64_t h, Stored stored) {
  const auto tag = static_cast<std::uint32_t>(h >> 32);
  const std::size_t mask = slots_.size() - 1;
  std::size_t i = h & mask;
  for (; slots_[i].id != kNoString; i = (i + 1) & mask) {
    if (slots_[i].tag == tag && strings_[slots_[i].id] == text) return slots_[i].id;
  }
  const auto id = static_cast<StringId>(strings_.size());
  strings_.push_back(stored());
  text_bytes_ += text.size();
  slots_[i] = Slot{tag, id};
  if (strings_.size() * 2 > slots_.size()) grow();
  return id;
}

StringId StringPool::intern(std::string_view text) {
  return intern_hashed(text, hash_bytes(text.data(), text.size()),
                       [&] { return texts_.store(text); });
}

std::vector<StringId> StringPool::absorb(StringPool&& other) {
  StringPool taken = std::move(other);
  other = StringPool();
  std::vector<StringId> ids(taken.size());
  if (size() == 0) {
    std::iota(ids.begin(), ids.end(), 0);
    *this = std::move(taken);
    return ids;
  }
  taken.slots_ = {};
  const std::size_t known = size();
  for (StringId id = 0; id < taken.size(); ++id) {
    const std::string_view text = taken[id];
    ids[id] = intern_hashed(text, hash_bytes(text.data(), text.size()), [&] { return text; });
  }
  if (size() > known) texts_.adopt(std::move(taken.texts_));
  return ids;
}

std::pair<std::vector<std::string_view>, TextArena> StringPool::take_texts() && {
  slots_ = {};
  return {std::move(strings_), std::move(texts_)};
}

StringId StringPool::find(std::string_view text) const {
  const std::uint64_t h = hash_bytes(text.data(), text.size());
  const auto tag = static_cast<std::uint32_t>(h >> 32);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t i = h & mask; slots_[i].id != kNoString; i = (i + 1) & mask) {
    if (slots_[i].tag == tag && strings_[slots_[i].id] == text) return slots_[i].id;
  }
  return kNoString;
}

}  // namespace traceap
