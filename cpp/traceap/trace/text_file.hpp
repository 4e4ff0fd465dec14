#pragma once
// A file that is written front to back, compressed by gzip if its name says so.

#include <memory>
#include <string>
#include <string_view>

namespace traceap {

/// Collects text and writes it in blocks, so that memory stays bounded; work can be stopped between
/// them. Throws Error when the file
/// can't be written. The file is incomplete until close() has returned: callers give the path of a
/// file that nobody reads yet.
class TextFile {
 public:
  explicit TextFile(const std::string& path);
  ~TextFile();
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;

  void write(std::string_view text);
  /// Writes what is left, and closes the file.
  void close();

 private:
  struct Sink;
  std::unique_ptr<Sink> sink_;
  std::string block_;
};

}  // namespace traceap
