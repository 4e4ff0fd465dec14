#pragma once
// simdjson's stage 1: where the structural characters of a text are. The only place, with
// metadata.cpp, that knows simdjson.

#include <cstdint>
#include <memory>
#include <string_view>

namespace traceap {

class StructuralIndex {
 public:
  StructuralIndex();
  ~StructuralIndex();

  /// False if the text has no strict reading (open string, control character, bad UTF-8).
  bool build(std::string_view text);
  /// Positions of { } [ ] : , and of the first character of strings and scalars. Behind the last
  /// one stands the length of the text.
  const std::uint32_t* positions() const { return positions_; }
  std::uint32_t size() const { return size_; }

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
  const std::uint32_t* positions_ = nullptr;
  std::uint32_t size_ = 0;
};

}  // namespace traceap
