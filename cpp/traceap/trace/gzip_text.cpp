// gzip: by ISA-L where it is whole, by zlib where it is damaged. See Note [Damaged gzip] in
// decompress.hpp.

#include <isa-l/igzip_lib.h>
#include <zlib.h>

#include <new>

#include "traceap/trace/input_buffer.hpp"

namespace traceap {

namespace {

/// What both inflaters do between the members.
class GzipText : public TextSource {
 public:
  explicit GzipText(InputBuffer input) : input_(std::move(input)) {}
  std::uint64_t compressed_bytes_read() const final { return input_.consumed(); }
  std::size_t read(char* out, std::size_t size) final {
    std::size_t got = 0;
    while (got < size && !done_) got += inflate_some(out + got, size - got);
    return got;
  }

 protected:
  virtual void start_member() = 0;
  virtual std::size_t inflate_some(char* out, std::size_t size) = 0;

  void finish_member() {
    if (starts_gzip(input_.ahead(2))) return start_member();
    done_ = true;
    if (!input_.only_padding_left()) stop("bytes behind its last member are no gzip");
  }
  void stop(const std::string& what) {
    damage_ = "the gzip stream is damaged: " + what;
    done_ = true;
  }

  InputBuffer input_;

 private:
  bool done_ = false;
};

class FastGzipText final : public GzipText {
 public:
  // Zeroed, so that nothing in the text can come from memory that held something else.
  explicit FastGzipText(InputBuffer input)
      : GzipText(std::move(input)), state_(std::make_unique<inflate_state>()) {
    start_member();
  }

 private:
  void start_member() override {
    // Flags that no version of gzip defines: ISA-L passes over them, zlib does not.
    constexpr unsigned kReservedFlags = 0xe0;
    const std::string_view header = input_.ahead(4);
    if (header.size() > 3 && (static_cast<unsigned char>(header[3]) & kReservedFlags) != 0) {
      throw InexactDamage{};
    }
    isal_inflate_init(state_.get());
    state_->crc_flag = ISAL_GZIP;
  }
  std::size_t inflate_some(char* out, std::size_t size) override {
    const std::string_view in = input_.ahead();
    const auto room = static_cast<std::uint32_t>(std::min<std::size_t>(size, 1U << 30));
    state_->next_in = reinterpret_cast<std::uint8_t*>(const_cast<char*>(in.data()));
    state_->avail_in = static_cast<std::uint32_t>(in.size());
    state_->next_out = reinterpret_cast<std::uint8_t*>(out);
    state_->avail_out = room;
    const int code = isal_inflate(state_.get());
    input_.take(in.size() - state_->avail_in);
    const std::size_t produced = room - state_->avail_out;
    const bool finished = code >= 0 && state_->block_state == ISAL_BLOCK_FINISH;
    if (code < 0 || (!finished && in.empty() && produced == 0)) throw InexactDamage{};
    if (finished) finish_member();
    return produced;
  }

  std::unique_ptr<inflate_state> state_;
};

class ExactGzipText final : public GzipText {
 public:
  explicit ExactGzipText(InputBuffer input) : GzipText(std::move(input)) {
    constexpr int kGzipOnly = 16;
    if (inflateInit2(&stream_, MAX_WBITS + kGzipOnly) != Z_OK) throw std::bad_alloc();
  }
  ~ExactGzipText() override { inflateEnd(&stream_); }
  ExactGzipText(const ExactGzipText&) = delete;
  ExactGzipText& operator=(const ExactGzipText&) = delete;

 private:
  void start_member() override { inflateReset(&stream_); }
  std::size_t inflate_some(char* out, std::size_t size) override {
    const std::string_view in = input_.ahead();
    const auto room = static_cast<uInt>(std::min<std::size_t>(size, 1U << 30));
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
    stream_.avail_in = static_cast<uInt>(in.size());
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = room;
    const int code = inflate(&stream_, Z_NO_FLUSH);
    input_.take(in.size() - stream_.avail_in);
    const std::size_t produced = room - stream_.avail_out;
    if (code == Z_STREAM_END) {
      finish_member();
    } else if (code == Z_MEM_ERROR) {
      throw std::bad_alloc();
    } else if (code != Z_OK && code != Z_BUF_ERROR) {
      stop(describe());
    } else if (in.empty() && produced == 0) {
      stop("it ends before its end mark");
    }
    return produced;
  }

  std::string describe() const {
    const std::string_view message = stream_.msg != nullptr ? stream_.msg : "no gzip";
    if (message == "incorrect data check") return "its checksum does not match";
    if (message == "incorrect length check") return "its length does not match";
    return std::string(message);
  }

  z_stream stream_{};
};

}  // namespace

bool starts_gzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

std::unique_ptr<TextSource> make_gzip_text(InputBuffer input, Inflater inflater) {
  if (inflater == Inflater::kFast) return std::make_unique<FastGzipText>(std::move(input));
  return std::make_unique<ExactGzipText>(std::move(input));
}

}  // namespace traceap
