// zstd: any number of frames, skippable ones anywhere.

#include <zstd.h>
#include <zstd_errors.h>

#include <bit>
#include <new>

#include "traceap/trace/input_buffer.hpp"

namespace traceap {

namespace {

/// A frame may ask for as much memory as its window. zstd's own limit.
constexpr std::uint64_t kMaxWindowBytes = std::uint64_t{128} << 20;

enum class Frame { kData, kSkippable, kOld, kNone };

Frame frame_at(std::string_view bytes) {
  if (bytes.size() < 4) return Frame::kNone;
  const auto first = static_cast<unsigned char>(bytes[0]);
  const std::string_view rest = bytes.substr(1, 3);
  if ((first & 0xf0) == 0x50 && rest == "\x2a\x4d\x18") return Frame::kSkippable;
  if (rest != "\xb5\x2f\xfd") return Frame::kNone;
  if (first == 0x28) return Frame::kData;
  return first == 0x1e || (first >= 0x22 && first <= 0x27) ? Frame::kOld : Frame::kNone;
}

/// What a frame's header asks for as its window (RFC 8878, 3.1.1.1), in bytes; 0 if it is cut.
std::uint64_t window_bytes(std::string_view header) {
  const auto byte = [&](std::size_t i) {
    return std::uint64_t{i < header.size() ? static_cast<unsigned char>(header[i]) : 0U};
  };
  constexpr std::size_t kDescriptor = 4;
  const std::uint64_t descriptor = byte(kDescriptor);
  const bool single_segment = (descriptor & 0x20) != 0;
  if (!single_segment) {
    const std::uint64_t base = std::uint64_t{1} << (10 + (byte(kDescriptor + 1) >> 3));
    return base + base / 8 * (byte(kDescriptor + 1) & 7);
  }
  // The window is the whole content, whose size stands behind the dictionary's id.
  constexpr std::size_t kIdBytes[] = {0, 1, 2, 4}, kSizeBytes[] = {1, 2, 4, 8};
  const std::size_t begin = kDescriptor + 1 + kIdBytes[descriptor & 3];
  std::uint64_t size = 0;
  for (std::size_t i = kSizeBytes[descriptor >> 6]; i-- > 0;) size = size << 8 | byte(begin + i);
  return kSizeBytes[descriptor >> 6] == 2 ? size + 256 : size;
}

class ZstdText final : public TextSource {
 public:
  explicit ZstdText(InputBuffer input)
      : input_(std::move(input)), stream_(ZSTD_createDStream(), &ZSTD_freeDStream) {
    if (!stream_) throw std::bad_alloc();
    ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, std::countr_zero(kMaxWindowBytes));
  }
  std::size_t read(char* out, std::size_t size) override {
    ZSTD_outBuffer output{out, size, 0};
    while (output.pos < size && !done_) {
      if (!frame_open_) start_frame();
      if (!done_) decompress_some(output);
    }
    return output.pos;
  }
  std::uint64_t compressed_bytes_read() const override { return input_.consumed(); }

 private:
  void start_frame() {
    const std::string_view bytes = input_.ahead(kHeaderBytes);
    if (bytes.empty()) {
      done_ = true;
      return;
    }
    switch (frame_at(bytes)) {
      case Frame::kData:
      case Frame::kSkippable:
        header_ = bytes.substr(0, kHeaderBytes);
        wanted_ = kMagicBytes;
        frame_open_ = true;
        return;
      case Frame::kOld:
        return stop("it was written by a zstd before 0.8, whose format is not read");
      case Frame::kNone:
        done_ = true;
        if (!input_.only_padding_left()) stop("it is damaged: bytes behind a frame are no zstd");
        return;
    }
  }
  /// One step of zstd: a header, the body of a block, or the rest of a block that had no room. It
  /// forgets to count what it gave in a step that fails, so that with more at once the text before
  /// damage would depend on the sizes of buffers.
  void decompress_some(ZSTD_outBuffer& output) {
    const std::string_view in = input_.ahead();
    const std::size_t step = wanted_ > kBlockHeaderBytes ? wanted_ - kBlockHeaderBytes : wanted_;
    ZSTD_inBuffer input{in.data(), has_more_ ? 0 : std::min(in.size(), step), 0};
    const std::size_t before = output.pos;
    const std::size_t code = ZSTD_decompressStream(stream_.get(), &output, &input);
    input_.take(input.pos);
    const bool flushed = has_more_;
    has_more_ = output.pos == output.size;
    wanted_ = code;
    if (ZSTD_isError(code)) {
      stop(describe(code));
    } else if (code == 0) {
      frame_open_ = has_more_ = false;
    } else if (in.empty() && output.pos == before && !flushed) {
      stop("it is damaged: it ends inside a frame");
    }
  }

  void stop(const std::string& what) {
    damage_ = "the zstd stream can't be read to its end: " + what;
    done_ = true;
  }
  std::string describe(std::size_t code) const {
    switch (ZSTD_getErrorCode(code)) {
      case ZSTD_error_frameParameter_windowTooLarge:
        return "its window of " + std::to_string(window_bytes(header_)) +
               " bytes is above the limit of " + std::to_string(kMaxWindowBytes) +
               "; compress it again without --long or --ultra";
      case ZSTD_error_dictionary_wrong:
        return "it was compressed with a dictionary, which the file does not hold";
      case ZSTD_error_memory_allocation:
        throw std::bad_alloc();
      default:
        return std::string("it is damaged: ") + ZSTD_getErrorName(code);
    }
  }

  static constexpr std::size_t kMagicBytes = 4, kBlockHeaderBytes = 3;
  static constexpr std::size_t kHeaderBytes = 18;  ///< the longest header of a frame

  InputBuffer input_;
  std::unique_ptr<ZSTD_DStream, decltype(&ZSTD_freeDStream)> stream_;
  std::string header_;      ///< of the frame that is open
  std::size_t wanted_ = 0;  ///< input for the next step, with a block's header behind it
  bool has_more_ = false;   ///< perhaps: the output was full
  bool frame_open_ = false;
  bool done_ = false;
};

}  // namespace

bool starts_zstd(std::string_view bytes) { return frame_at(bytes) != Frame::kNone; }

std::unique_ptr<TextSource> make_zstd_text(InputBuffer input) {
  return std::make_unique<ZstdText>(std::move(input));
}

}  // namespace traceap
