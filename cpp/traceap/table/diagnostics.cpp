#include "traceap/table/diagnostics.hpp"

#include <algorithm>

namespace traceap {

void Diagnostics::add(std::string_view code, std::string_view message, std::uint64_t count,
                      std::optional<std::uint64_t> byte_offset) {
  if (count == 0) return;
  for (Diagnostic& entry : entries_) {
    if (entry.code != code) continue;
    entry.count += count;
    if (byte_offset) {
      entry.first_byte_offset =
          std::min(*byte_offset, entry.first_byte_offset.value_or(*byte_offset));
    }
    return;
  }
  entries_.push_back({std::string(code), count, byte_offset, std::string(message)});
}

void Diagnostics::merge(const Diagnostics& other) {
  for (const Diagnostic& d : other.entries_) add(d.code, d.message, d.count, d.first_byte_offset);
}

std::uint64_t Diagnostics::count(std::string_view code) const {
  for (const Diagnostic& entry : entries_) {
    if (entry.code == code) return entry.count;
  }
  return 0;
}

}  // namespace traceap
