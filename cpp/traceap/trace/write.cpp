#include "traceap/trace/write.hpp"

#include "traceap/base/interrupt.hpp"
#include "traceap/table/json_text.hpp"
#include "traceap/trace/text_file.hpp"

namespace traceap {

namespace {

using Texts = std::vector<std::string>;

constexpr std::size_t kBlockBytes = std::size_t{1} << 20;

/// Gives the text of the trace to `sink` in blocks.
template <class Sink>
void write_text(const EventTable& table, const Texts& more_events, Sink sink) {
  std::string block = "{\n";
  for (const auto& [key, json] : table.metadata) {
    append_json_string(block, key);
    block += ": " + json + ",\n";
  }
  block += "\"traceEvents\": [\n";
  bool first = true;
  const auto add = [&](const std::string& event) {
    if (!first) block += ",\n";
    first = false;
    block += event;
    if (block.size() < kBlockBytes) return;
    sink(block);
    block.clear();
  };
  for (Row r = 0; r < table.size(); ++r) {
    poll_interrupt();
    add(event_json(table, r));
  }
  for (const std::string& event : more_events) add(event);
  block += "\n]}\n";
  sink(block);
}

}  // namespace

void write_trace(const EventTable& table, const std::string& path, const Texts& more_events) {
  TextFile file(path);
  write_text(table, more_events, [&](const std::string& block) { file.write(block); });
  file.close();
}

std::string trace_json(const EventTable& table) {
  std::string text;
  write_text(table, {}, [&](const std::string& block) { text += block; });
  return text;
}

}  // namespace traceap
