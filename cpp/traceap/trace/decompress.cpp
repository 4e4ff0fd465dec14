#include "traceap/trace/decompress.hpp"

#include <fcntl.h>
#include <isa-l/igzip_lib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "traceap/base/error.hpp"

namespace traceap {

namespace {

constexpr std::size_t kInputBytes = std::size_t{1} << 18;

class FileInput final : public RawInput {
 public:
  explicit FileInput(const std::string& path) : path_(path) {
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) throw ParseError(path + ": can't be opened: " + std::strerror(errno));
    struct stat info {};
    if (::fstat(fd_, &info) == 0) {
      if (S_ISDIR(info.st_mode)) {
        ::close(fd_);
        throw ParseError(path + ": expected a trace file, found a folder");
      }
      total_ = static_cast<std::uint64_t>(info.st_size);
    }
  }
  ~FileInput() override { ::close(fd_); }
  FileInput(const FileInput&) = delete;
  FileInput& operator=(const FileInput&) = delete;

  std::size_t read(char* out, std::size_t size) override {
    for (;;) {
      const ssize_t got = ::read(fd_, out, size);
      if (got >= 0) return static_cast<std::size_t>(got);
      if (errno != EINTR) throw ParseError(path_ + ": can't be read: " + std::strerror(errno));
    }
  }
  std::uint64_t total_bytes() const override { return total_; }

 private:
  std::string path_;
  int fd_ = -1;
  std::uint64_t total_ = 0;
};

class MemoryInput final : public RawInput {
 public:
  explicit MemoryInput(std::string_view bytes) : bytes_(bytes), total_(bytes.size()) {}
  std::size_t read(char* out, std::size_t size) override {
    const std::size_t take = std::min(size, bytes_.size());
    if (take > 0) std::memcpy(out, bytes_.data(), take);
    bytes_.remove_prefix(take);
    return take;
  }
  std::uint64_t total_bytes() const override { return total_; }

 private:
  std::string_view bytes_;
  std::uint64_t total_;
};

/// Compressed bytes with one buffer; counts what was handed out.
class InputBuffer {
 public:
  explicit InputBuffer(std::unique_ptr<RawInput> raw) : raw_(std::move(raw)), buffer_(kInputBytes) {
    refill();
  }
  /// Reads the next block, whole if there is as much; false at the end.
  bool refill() {
    begin_ = end_ = 0;
    while (const std::size_t got = raw_->read(buffer_.data() + end_, buffer_.size() - end_)) {
      end_ += got;
    }
    total_read_ += end_;
    return end_ > 0;
  }
  std::string_view rest() const { return {buffer_.data() + begin_, end_ - begin_}; }
  void take(std::size_t bytes) { begin_ += bytes; }
  std::uint64_t consumed() const { return total_read_ - (end_ - begin_); }
  bool starts_with(std::string_view magic) const { return rest().starts_with(magic); }

 private:
  std::unique_ptr<RawInput> raw_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;
  std::uint64_t total_read_ = 0;
};

class PlainText final : public TextSource {
 public:
  explicit PlainText(InputBuffer input) : input_(std::move(input)) {}
  std::size_t read(char* out, std::size_t size) override {
    std::size_t got = 0;
    while (got < size) {
      if (input_.rest().empty() && !input_.refill()) break;
      const std::size_t take = std::min(size - got, input_.rest().size());
      std::memcpy(out + got, input_.rest().data(), take);
      input_.take(take);
      got += take;
    }
    return got;
  }
  std::uint64_t compressed_bytes_read() const override { return input_.consumed(); }

 private:
  InputBuffer input_;
};

const char* inflate_error(int code) {
  switch (code) {
    case ISAL_INVALID_BLOCK:
      return "invalid deflate block";
    case ISAL_INVALID_SYMBOL:
      return "invalid deflate symbol";
    case ISAL_INVALID_LOOKBACK:
      return "invalid look-back distance";
    case ISAL_INVALID_WRAPPER:
      return "invalid gzip header";
    case ISAL_UNSUPPORTED_METHOD:
      return "unsupported gzip method";
    case ISAL_INCORRECT_CHECKSUM:
      return "checksum does not match";
    default:
      return "damaged deflate stream";
  }
}

class GzipText final : public TextSource {
 public:
  explicit GzipText(InputBuffer input) : input_(std::move(input)), state_(new inflate_state) {
    start_member();
  }
  std::size_t read(char* out, std::size_t size) override {
    std::size_t got = 0;
    while (got < size && !done_) got += inflate_some(out + got, size - got);
    return got;
  }
  std::uint64_t compressed_bytes_read() const override { return input_.consumed(); }

 private:
  void start_member() {
    isal_inflate_init(state_.get());
    state_->crc_flag = ISAL_GZIP;
  }
  void stop(const char* message) {
    damage_ = StreamDamage{message, input_.consumed()};
    done_ = true;
  }
  std::size_t inflate_some(char* out, std::size_t size) {
    const bool no_more_input = input_.rest().empty() && !input_.refill();
    const std::string_view in = input_.rest();
    const auto room = static_cast<std::uint32_t>(std::min<std::size_t>(size, 1U << 30));
    state_->next_in = reinterpret_cast<std::uint8_t*>(const_cast<char*>(in.data()));
    state_->avail_in = static_cast<std::uint32_t>(in.size());
    state_->next_out = reinterpret_cast<std::uint8_t*>(out);
    state_->avail_out = room;
    const int code = isal_inflate(state_.get());
    input_.take(in.size() - state_->avail_in);
    const std::size_t produced = room - state_->avail_out;
    if (code < 0) {
      stop(inflate_error(code));
    } else if (state_->block_state == ISAL_BLOCK_FINISH) {
      finish_member();
    } else if (no_more_input && produced == 0) {
      stop("the gzip stream ends before its end mark");
    }
    return produced;
  }
  // Bytes that are no gzip member after the last one are padding, as gzip(1) treats them.
  void finish_member() {
    if (input_.rest().empty()) input_.refill();
    if (input_.starts_with("\x1f")) {
      start_member();
    } else {
      done_ = true;
    }
  }

  InputBuffer input_;
  std::unique_ptr<inflate_state> state_;
  bool done_ = false;
};

class ZstdText final : public TextSource {
 public:
  explicit ZstdText(InputBuffer input)
      : input_(std::move(input)), stream_(ZSTD_createDStream(), &ZSTD_freeDStream) {}
  std::size_t read(char* out, std::size_t size) override {
    ZSTD_outBuffer output{out, size, 0};
    while (output.pos < size && !done_) decompress_some(output);
    return output.pos;
  }
  std::uint64_t compressed_bytes_read() const override { return input_.consumed(); }

 private:
  void decompress_some(ZSTD_outBuffer& output) {
    const bool no_more_input = input_.rest().empty() && !input_.refill();
    const std::string_view in = input_.rest();
    ZSTD_inBuffer input{in.data(), in.size(), 0};
    const std::size_t before = output.pos;
    const std::size_t code = ZSTD_decompressStream(stream_.get(), &output, &input);
    input_.take(input.pos);
    if (ZSTD_isError(code)) {
      damage_ = StreamDamage{ZSTD_getErrorName(code), input_.consumed()};
      done_ = true;
    } else if (no_more_input && output.pos == before) {
      if (frame_open_)
        damage_ = StreamDamage{"the zstd stream ends inside a frame", input_.consumed()};
      done_ = true;
    } else {
      frame_open_ = code != 0;
    }
  }

  InputBuffer input_;
  std::unique_ptr<ZSTD_DStream, decltype(&ZSTD_freeDStream)> stream_;
  bool frame_open_ = false;
  bool done_ = false;
};

}  // namespace

std::unique_ptr<RawInput> open_file(const std::string& path) {
  return std::make_unique<FileInput>(path);
}

std::unique_ptr<RawInput> open_bytes(std::string_view bytes) {
  return std::make_unique<MemoryInput>(bytes);
}

std::unique_ptr<TextSource> open_text(std::unique_ptr<RawInput> raw) {
  InputBuffer input(std::move(raw));
  if (input.starts_with("\x1f\x8b")) return std::make_unique<GzipText>(std::move(input));
  if (input.starts_with("\x28\xb5\x2f\xfd")) return std::make_unique<ZstdText>(std::move(input));
  return std::make_unique<PlainText>(std::move(input));
}

}  // namespace traceap
