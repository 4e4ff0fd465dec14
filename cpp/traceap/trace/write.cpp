#include "traceap/trace/write.hpp"

#include <zlib.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "traceap/base/error.hpp"
#include "traceap/table/json_text.hpp"

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
  for (Row r = 0; r < table.size(); ++r) add(event_json(table, r));
  for (const std::string& event : more_events) add(event);
  block += "\n]}\n";
  sink(block);
}

[[noreturn]] void fail(const std::string& path) {
  throw Error(path + ": can't be written: " + std::strerror(errno));
}

void write_gzip(const EventTable& table, const Texts& more_events, const std::string& path) {
  // Level 6 with a large buffer; the file is written once and read often.
  const std::unique_ptr<gzFile_s, decltype(&gzclose)> file(gzopen(path.c_str(), "wb6"), &gzclose);
  if (!file) fail(path);
  write_text(table, more_events, [&](const std::string& block) {
    if (gzwrite(file.get(), block.data(), static_cast<unsigned>(block.size())) <= 0) fail(path);
  });
  if (gzflush(file.get(), Z_FINISH) != Z_OK) fail(path);
}

void write_plain(const EventTable& table, const Texts& more_events, const std::string& path) {
  const std::unique_ptr<std::FILE, decltype(&std::fclose)> file(std::fopen(path.c_str(), "wb"),
                                                                &std::fclose);
  if (!file) fail(path);
  write_text(table, more_events, [&](const std::string& block) {
    if (std::fwrite(block.data(), 1, block.size(), file.get()) != block.size()) fail(path);
  });
  if (std::fflush(file.get()) != 0) fail(path);
}

}  // namespace

void write_trace(const EventTable& table, const std::string& path, const Texts& more_events) {
  if (path.ends_with(".gz")) {
    write_gzip(table, more_events, path);
  } else {
    write_plain(table, more_events, path);
  }
}

std::string trace_json(const EventTable& table) {
  std::string text;
  write_text(table, {}, [&](const std::string& block) { text += block; });
  return text;
}

}  // namespace traceap
