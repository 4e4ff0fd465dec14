#pragma once
// What reading and linking could not take at face value: counted by reason, with the first place.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace traceap {

struct Diagnostic {
  std::string code;                                ///< stable name, listed in docs/errors.md
  std::uint64_t count = 0;                         ///< occurrences
  std::optional<std::uint64_t> first_byte_offset;  ///< in the decompressed text, if it has a place
  std::string message;                             ///< one sentence for a person
};

/// A small table keyed by code. Order of first `add` is kept.
class Diagnostics {
 public:
  void add(std::string_view code, std::string_view message, std::uint64_t count = 1,
           std::optional<std::uint64_t> byte_offset = std::nullopt);
  void merge(const Diagnostics& other);
  const std::vector<Diagnostic>& entries() const { return entries_; }
  std::uint64_t count(std::string_view code) const;

 private:
  std::vector<Diagnostic> entries_;
};

}  // namespace traceap
