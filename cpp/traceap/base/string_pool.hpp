#pragma once
// Strings stored once. Ids are dense, views stay valid for the life of the pool (also when moved).

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "traceap/base/ids.hpp"

namespace traceap {

/// Texts end to end in few blocks of memory. Views stay valid for the life of the arena (also when
/// moved).
class TextArena {
 public:
  std::string_view store(std::string_view text);
  /// Takes over the blocks of another arena.
  void adopt(TextArena&& other);

 private:
  std::vector<std::unique_ptr<char[]>> blocks_;
  char* block_next_ = nullptr;
  std::size_t block_left_ = 0;
  std::size_t next_block_bytes_ = 1 << 14;
};

class StringPool {
 public:
  StringPool();

  /// Id of `text`, added when new. Amortised O(length).
  StringId intern(std::string_view text);
  /// Id of `text`, or kNoString.
  StringId find(std::string_view text) const;
  /// Adds all strings of another pool, whose text is taken over and not copied; the id here of
  /// each.
  std::vector<StringId> absorb(StringPool&& other);
  /// All strings by id, and what holds their text.
  std::pair<std::vector<std::string_view>, TextArena> take_texts() &&;
  std::string_view operator[](StringId id) const { return strings_[id]; }
  std::size_t size() const { return strings_.size(); }
  /// Bytes of all strings together.
  std::size_t text_bytes() const { return text_bytes_; }

 private:
  struct Slot {
    std::uint32_t tag;
    StringId id;
  };
  /// Id of `text` with the hash `h`, added as what `stored` returns when new.
  template <class Stored>
  StringId intern_hashed(std::string_view text, std::uint64_t h, Stored stored);
  void grow();

  std::vector<std::string_view> strings_;
  std::vector<Slot> slots_;
  TextArena texts_;
  std::size_t text_bytes_ = 0;
};

/// 64-bit hash of bytes: another one in each process, never stored in files.
std::uint64_t hash_bytes(const char* data, std::size_t size);

}  // namespace traceap
