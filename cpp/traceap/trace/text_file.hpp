#pragma once
// A file that is written front to back, compressed by gzip if its name says so.

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace traceap {

/// Called after each block of text, on the thread that writes. What it throws stops the writing.
using BetweenBlocks = std::function<void()>;

/// Collects text and writes it in blocks, so that memory stays bounded. Throws Error when the file
/// can't be written. The file is incomplete until close() has returned: callers give the path of a
/// file that nobody reads yet.
class TextFile {
 public:
  explicit TextFile(const std::string& path, BetweenBlocks between_blocks = {});
  ~TextFile();
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;

  void write(std::string_view text);
  /// Writes what is left, and closes the file.
  void close();

 private:
  struct Sink;
  std::unique_ptr<Sink> sink_;
  BetweenBlocks between_blocks_;
  std::string block_;
};

}  // namespace traceap
