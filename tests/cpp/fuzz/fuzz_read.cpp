// Any bytes either are refused with ParseError or give a table that
//   1. does not depend on where the text is cut into chunks, nor on what is interned of it,
//   2. survives being written and read again, can be split where it says that ranks were merged,
//   and
//   3. is the same from the text packed by gzip or zstd; where the packed bytes are damaged, what
//   is
//      left of it depends on them alone.

#include <optional>

#include "../trace/packed.hpp"
#include "input.hpp"
#include "traceap/base/error.hpp"
#include "traceap/trace/merge.hpp"
#include "traceap/trace/read.hpp"
#include "traceap/trace/write.hpp"

namespace traceap::fuzz {
namespace {

constexpr std::size_t kOneChunk = std::size_t{1} << 20;

std::optional<EventTable> load(std::string_view text, std::size_t chunk_bytes) {
  ReadOptions options;
  options.threads = 1;
  options.chunk_bytes = chunk_bytes;
  options.max_event_bytes = 1 << 16;
  if (chunk_bytes != kOneChunk) options.free_templates = chunk_bytes % 3;
  try {
    return read_trace_bytes(text, "fuzz", options);
  } catch (const ParseError&) {
    return std::nullopt;
  }
}

std::string diagnostics(const EventTable& table) {
  std::string out;
  for (const Diagnostic& d : table.diagnostics.entries()) {
    out += d.code + " " + std::to_string(d.count) + " " +
           std::to_string(d.first_byte_offset.value_or(0)) + "\n";
  }
  return out;
}

void require_equal(const std::string& a, const std::string& b, const char* what) {
  if (a == b) return;
  std::fprintf(stderr, "%s differ:\n--- one\n%s\n--- other\n%s\n", what, a.c_str(), b.c_str());
  std::abort();
}

/// What was read in two ways is the same, or both were refused.
void require_same(const std::optional<EventTable>& a, const std::optional<EventTable>& b,
                  const char* what) {
  if (a.has_value() != b.has_value()) std::fprintf(stderr, "%s:\n", what);
  check(a.has_value() == b.has_value(), "both ways are refused, or none");
  if (!a) return;
  require_equal(trace_json(*a), trace_json(*b), what);
  require_equal(diagnostics(*a), diagnostics(*b), what);
}

/// The text in one or two members, or frames.
std::string pack(const std::string& text, Choices& choices) {
  const auto packed = choices.flag() ? packed_gzip : packed_zstd;
  const std::size_t cut = choices.below(text.size() + 1);
  if (cut == 0) return packed(text);
  return packed(text.substr(0, cut)) + packed(text.substr(cut));
}

void check_packed(const std::string& text, const std::optional<EventTable>& plain,
                  std::size_t chunk_bytes, Choices& choices) {
  std::string packed = pack(text, choices);
  const bool is_packed = text.starts_with("\x1f\x8b") || text.starts_with("\x28\xb5\x2f\xfd");
  if (!is_packed) require_same(plain, load(packed, kOneChunk), "packed and plain text");
  for (std::size_t left = choices.below(3); left > 0; --left) {
    packed[choices.below(packed.size())] ^= static_cast<char>(choices.byte() | 1);
  }
  require_same(load(packed, kOneChunk), load(packed, chunk_bytes), "damaged bytes by chunk size");
}

}  // namespace
}  // namespace traceap::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace traceap::fuzz;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const Input input = split_input(bytes);
  Choices choices(input.choices);
  const std::string& text = input.texts.front();
  const std::size_t chunk_bytes = 1 + choices.byte();
  const auto whole = load(text, kOneChunk);
  require_same(whole, load(text, chunk_bytes), "tables by chunk size");
  if (choices.flag()) check_packed(text, whole, chunk_bytes, choices);
  if (!whole) return 0;
  for (const traceap::SplitRank& rank : traceap::split_merged_trace(*whole)) {
    check(rank.table.size() > 0, "a rank that was split off has events");
  }
  const std::string written = traceap::trace_json(*whole);
  const auto again = load(written, kOneChunk);
  check(again.has_value(), "what was written can be read");
  require_equal(written, traceap::trace_json(*again), "written and read-again tables");
  return 0;
}
