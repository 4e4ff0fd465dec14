#pragma once
// What an input of a target is: one or several texts, and bytes that choose what is asked of them.
//
//   text [ "\n\x1e\n" text ]* [ "\n\x1f\n" choices ]
//
// A trace file as it stands is an input: one text, no choices.

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace traceap::fuzz {

struct Input {
  std::vector<std::string> texts;
  std::string choices;
};

/// Any bytes are an input, with one text at least.
Input split_input(std::string_view bytes);
std::string join_input(const Input& input);

/// Ends the run, which keeps the input, unless `holds`.
inline void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

/// Decisions, byte by byte from the front; all are 0 once the bytes are used up.
class Choices {
 public:
  explicit Choices(std::string_view bytes) : bytes_(bytes) {}

  std::uint8_t byte();
  bool flag() { return (byte() & 1) != 0; }
  /// In [0, bound), of which there must be a number.
  std::size_t below(std::size_t bound);
  /// Small most of the time, now and then any of 64 bits.
  std::int64_t number();
  template <typename T, std::size_t n>
  const T& of(const std::array<T, n>& values) {
    return values[below(n)];
  }

 private:
  std::string_view bytes_;
};

}  // namespace traceap::fuzz
