#pragma once
// Text that was decompressed and is in no parser's hands.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace traceap {

/// Taken from the front, added to at the back, and taken back where it was taken from.
class UnreadText {
 public:
  std::string_view view() const { return std::string_view(text_).substr(begin_); }
  std::size_t size() const { return text_.size() - begin_; }
  /// Place of the first character in the whole text.
  std::uint64_t offset() const { return offset_; }

  void drop(std::size_t bytes) {
    begin_ += bytes;
    offset_ += bytes;
  }
  /// The first bytes. O(bytes), or what is left behind them if that is shorter.
  std::string take(std::size_t bytes) {
    std::string taken;
    if (begin_ == 0 && size() - bytes < bytes) {
      taken = std::move(text_);
      text_.assign(taken, bytes);
      taken.resize(bytes);
      offset_ += bytes;
    } else {
      taken = view().substr(0, bytes);
      drop(bytes);
    }
    return taken;
  }
  /// Puts what was taken last before the rest again, in the order of the text. O(pieces) if nothing
  /// was added since they were taken by copy.
  void put_back(const std::vector<std::string_view>& pieces) {
    std::size_t bytes = 0;
    for (const std::string_view piece : pieces) bytes += piece.size();
    offset_ -= bytes;
    if (bytes <= begin_) {
      begin_ -= bytes;
      std::size_t at = begin_;
      for (const std::string_view piece : pieces) at += piece.copy(text_.data() + at, piece.size());
      return;
    }
    std::string whole;
    whole.reserve(bytes + size());
    for (const std::string_view piece : pieces) whole += piece;
    whole += view();
    text_ = std::move(whole);
    begin_ = 0;
  }
  /// Room for more at the back: fill(string) appends to it. O(what is left) before.
  template <class Fill>
  void append(Fill fill) {
    text_.erase(0, begin_);
    begin_ = 0;
    fill(text_);
  }

 private:
  std::string text_;
  std::size_t begin_ = 0;
  std::uint64_t offset_ = 0;
};

}  // namespace traceap
