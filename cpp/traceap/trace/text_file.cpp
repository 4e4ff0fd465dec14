#include "traceap/trace/text_file.hpp"

#include <zlib.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "traceap/base/error.hpp"
#include "traceap/base/interrupt.hpp"

namespace traceap {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{1} << 20;

}  // namespace

struct TextFile::Sink {
  std::string path;
  gzFile_s* gzip = nullptr;
  std::FILE* plain = nullptr;

  explicit Sink(const std::string& name) : path(name) {
    // Level 6; the file is written once and read often.
    if (path.ends_with(".gz")) {
      gzip = gzopen(path.c_str(), "wb6");
    } else {
      plain = std::fopen(path.c_str(), "wb");
    }
    if (!gzip && !plain) fail();
  }
  ~Sink() { static_cast<void>(close()); }
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;

  void write(const std::string& block) {
    if (block.empty()) return;
    const bool done = gzip ? gzwrite(gzip, block.data(), static_cast<unsigned>(block.size())) > 0
                           : std::fwrite(block.data(), 1, block.size(), plain) == block.size();
    if (!done) fail();
  }
  void finish() {
    if (!close()) fail();
  }
  /// What is still buffered goes out here: a full disk may show no earlier.
  bool close() {
    gzFile_s* const packed = std::exchange(gzip, nullptr);
    std::FILE* const file = std::exchange(plain, nullptr);
    return (!packed || gzclose(packed) == Z_OK) && (!file || std::fclose(file) == 0);
  }
  [[noreturn]] void fail() const {
    throw Error(path + ": can't be written: " + std::strerror(errno));
  }
};

TextFile::TextFile(const std::string& path) : sink_(std::make_unique<Sink>(path)) {}
TextFile::~TextFile() = default;

void TextFile::write(std::string_view text) {
  block_ += text;
  if (block_.size() < kBlockBytes) return;
  sink_->write(block_);
  block_.clear();
  poll_interrupt_now();
}

void TextFile::close() {
  sink_->write(block_);
  block_.clear();
  sink_->finish();
}

}  // namespace traceap
