#include "traceap/trace/decompress.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "traceap/base/error.hpp"
#include "traceap/trace/input_buffer.hpp"

namespace traceap {

namespace {

class FileInput final : public RawInput {
 public:
  explicit FileInput(const std::string& path) : path_(path) {
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) throw ParseError(path + ": can't be opened: " + std::strerror(errno));
    struct stat info {};
    if (::fstat(fd_, &info) != 0) return;
    if (S_ISDIR(info.st_mode)) {
      ::close(fd_);
      throw ParseError(path + ": expected a trace file, found a folder");
    }
    total_ = static_cast<std::uint64_t>(info.st_size);
    is_regular_ = S_ISREG(info.st_mode);
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
  bool can_rewind() const override { return is_regular_; }
  void rewind() override {
    if (::lseek(fd_, 0, SEEK_SET) == 0) return;
    throw ParseError(path_ + ": can't be read again: " + std::strerror(errno));
  }

 private:
  std::string path_;
  int fd_ = -1;
  std::uint64_t total_ = 0;
  bool is_regular_ = false;
};

class MemoryInput final : public RawInput {
 public:
  explicit MemoryInput(std::string_view bytes) : bytes_(bytes), left_(bytes) {}
  std::size_t read(char* out, std::size_t size) override {
    const std::size_t take = std::min(size, left_.size());
    if (take > 0) std::memcpy(out, left_.data(), take);
    left_.remove_prefix(take);
    return take;
  }
  std::uint64_t total_bytes() const override { return bytes_.size(); }
  bool can_rewind() const override { return true; }
  void rewind() override { left_ = bytes_; }

 private:
  std::string_view bytes_, left_;
};

class PlainText final : public TextSource {
 public:
  explicit PlainText(InputBuffer input) : input_(std::move(input)) {}
  std::size_t read(char* out, std::size_t size) override {
    std::size_t got = 0;
    while (got < size) {
      const std::string_view rest = input_.ahead();
      if (rest.empty()) break;
      const std::size_t take = std::min(size - got, rest.size());
      std::memcpy(out + got, rest.data(), take);
      input_.take(take);
      got += take;
    }
    return got;
  }
  std::uint64_t compressed_bytes_read() const override { return input_.consumed(); }

 private:
  InputBuffer input_;
};

}  // namespace

std::unique_ptr<RawInput> open_file(const std::string& path) {
  return std::make_unique<FileInput>(path);
}

std::unique_ptr<RawInput> open_bytes(std::string_view bytes) {
  return std::make_unique<MemoryInput>(bytes);
}

std::unique_ptr<TextSource> open_text(RawInput& raw, Inflater inflater) {
  InputBuffer input(raw);
  const std::string_view begin = input.ahead(4);
  if (starts_gzip(begin)) {
    return make_gzip_text(std::move(input), raw.can_rewind() ? inflater : Inflater::kExact);
  }
  if (starts_zstd(begin)) return make_zstd_text(std::move(input));
  return std::make_unique<PlainText>(std::move(input));
}

}  // namespace traceap
