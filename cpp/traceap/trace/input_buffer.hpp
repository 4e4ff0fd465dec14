#pragma once
// Compressed bytes on their way to a decompressor, and the text sources of each format.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "traceap/trace/decompress.hpp"

namespace traceap {

/// Compressed bytes with one buffer; counts what was handed out.
class InputBuffer {
 public:
  explicit InputBuffer(RawInput& raw)
      : raw_(&raw), buffer_(std::clamp(raw.total_bytes(), kLeastBytes, kMostBytes)) {}

  /// The bytes at hand: at least `wanted` of them, unless the input ends before.
  std::string_view ahead(std::size_t wanted = 1) {
    if (end_ - begin_ < wanted) refill();
    return {buffer_.data() + begin_, end_ - begin_};
  }
  void take(std::size_t bytes) { begin_ += bytes; }
  std::uint64_t consumed() const { return total_read_ - (end_ - begin_); }

  /// Is there nothing but zero bytes left? They pad archives and are no damage.
  bool only_padding_left() {
    for (std::string_view rest = ahead(); !rest.empty(); rest = ahead()) {
      if (rest.find_first_not_of('\0') != std::string_view::npos) return false;
      take(rest.size());
    }
    return true;
  }

 private:
  /// No more than there is to read; pipes, and files that grow, don't say how much that is.
  static constexpr std::uint64_t kLeastBytes = 1 << 12, kMostBytes = 1 << 18;

  /// Moves what is left to the front and fills the rest of the buffer if there is as much.
  void refill() {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
    while (const std::size_t got = raw_->read(buffer_.data() + end_, buffer_.size() - end_)) {
      end_ += got;
      total_read_ += got;
    }
  }

  RawInput* raw_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;
  std::uint64_t total_read_ = 0;
};

bool starts_gzip(std::string_view bytes);
std::unique_ptr<TextSource> make_gzip_text(InputBuffer input, Inflater inflater);

/// Also true for a skippable frame, and for formats before zstd 0.8, which are refused by name.
bool starts_zstd(std::string_view bytes);
std::unique_ptr<TextSource> make_zstd_text(InputBuffer input);

}  // namespace traceap
