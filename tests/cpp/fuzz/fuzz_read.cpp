// Any bytes either are refused with ParseError or give a table that
//   1. does not depend on where the text is cut into chunks, and
//   2. survives being written and read again.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "traceap/base/error.hpp"
#include "traceap/trace/read.hpp"
#include "traceap/trace/write.hpp"

using namespace traceap;

namespace {

std::optional<EventTable> load(std::string_view text, std::size_t chunk_bytes) {
  ReadOptions options;
  options.threads = 1;
  options.chunk_bytes = chunk_bytes;
  options.max_event_bytes = 1 << 16;
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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  const std::optional<EventTable> whole = load(text, 1 << 20);
  const std::optional<EventTable> pieces = load(text, 1 + data[0]);
  if (whole.has_value() != pieces.has_value()) {
    std::fprintf(stderr, "only one way of cutting is refused\n");
    std::abort();
  }
  if (!whole) return 0;
  const std::string written = trace_json(*whole);
  require_equal(written, trace_json(*pieces), "tables by chunk size");
  require_equal(diagnostics(*whole), diagnostics(*pieces), "diagnostics by chunk size");
  const std::optional<EventTable> again = load(written, 1 << 20);
  if (!again) std::abort();
  require_equal(written, trace_json(*again), "written and read-again tables");
  return 0;
}
