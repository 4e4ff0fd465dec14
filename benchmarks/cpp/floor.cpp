// The floor for reading a trace: inflate with ISA-L and find the structural characters with
// simdjson's stage 1, one thread, a buffer that stays in the cache. No event is looked at.
//   floor TRACE[.gz] [REPEATS]     prints one line of JSON

#include <isa-l/igzip_lib.h>
#include <simdjson.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kInputBytes = std::size_t{1} << 20;
constexpr std::size_t kBufferBytes = std::size_t{4} << 20;

/// Hands out the decompressed text of a file piece by piece; plain text passes through.
class Text {
 public:
  explicit Text(const char* path) : file_(std::fopen(path, "rb")), input_(kInputBytes) {
    if (!file_) throw std::runtime_error(std::string("cannot open ") + path);
    isal_inflate_init(&state_);
    state_.crc_flag = ISAL_GZIP;
    refill();
    compressed_ = state_.avail_in > 2 && input_[0] == 0x1f && input_[1] == 0x8b;
  }
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;
  ~Text() { std::fclose(file_); }

  /// Fewer than `size` bytes only at the end.
  std::size_t read(char* out, std::size_t size) {
    return compressed_ ? inflate(out, size) : copy(out, size);
  }

 private:
  bool refill() {
    state_.next_in = input_.data();
    state_.avail_in = static_cast<std::uint32_t>(std::fread(input_.data(), 1, kInputBytes, file_));
    return state_.avail_in > 0;
  }

  std::size_t inflate(char* out, std::size_t size) {
    state_.next_out = reinterpret_cast<std::uint8_t*>(out);
    state_.avail_out = static_cast<std::uint32_t>(size);
    while (state_.avail_out > 0 && state_.block_state != ISAL_BLOCK_FINISH) {
      if (state_.avail_in == 0 && !refill()) break;
      if (isal_inflate(&state_) != ISAL_DECOMP_OK) throw std::runtime_error("broken gzip stream");
    }
    return size - state_.avail_out;
  }

  std::size_t copy(char* out, std::size_t size) {
    const std::size_t buffered = std::min<std::size_t>(size, state_.avail_in);
    std::memcpy(out, state_.next_in, buffered);
    state_.next_in += buffered;
    state_.avail_in -= static_cast<std::uint32_t>(buffered);
    return buffered + std::fread(out + buffered, 1, size - buffered, file_);
  }

  std::FILE* file_;
  std::vector<std::uint8_t> input_;
  bool compressed_ = false;
  inflate_state state_;
};

struct Totals {
  std::uint64_t text_bytes = 0;
  std::uint64_t structurals = 0;
};

class Indexer {
 public:
  Indexer() : buffer_(kBufferBytes + simdjson::SIMDJSON_PADDING) {
    const auto error = simdjson::get_active_implementation()->create_dom_parser_implementation(
        kBufferBytes, simdjson::DEFAULT_MAX_DEPTH, parser_);
    if (error) throw std::runtime_error(simdjson::error_message(error));
  }

  Totals run(Text& input) {
    Totals totals;
    std::size_t kept = 0;
    for (;;) {
      const std::size_t count = input.read(buffer_.data() + kept, kBufferBytes - kept);
      const std::size_t filled = kept + count;
      if (filled == 0) return totals;
      const std::size_t used = count == 0 ? filled : last_line_end(filled);
      totals.structurals += index(used);
      totals.text_bytes += used;
      kept = filled - used;
      std::memmove(buffer_.data(), buffer_.data() + used, kept);
    }
  }

 private:
  /// Behind the last newline, so that no string is cut; the whole buffer if it is one line.
  std::size_t last_line_end(std::size_t filled) const {
    const void* newline = memrchr(buffer_.data(), '\n', filled);
    return newline ? static_cast<const char*>(newline) - buffer_.data() + 1 : filled;
  }

  std::size_t index(std::size_t size) {
    // An error (a cut string) costs the same time: the index is written before the check.
    const auto error = parser_->stage1(reinterpret_cast<const std::uint8_t*>(buffer_.data()), size,
                                       simdjson::stage1_mode::regular);
    return error ? 0 : parser_->n_structural_indexes;
  }

  std::vector<char> buffer_;
  std::unique_ptr<simdjson::internal::dom_parser_implementation> parser_;
};

double measure(const char* path, Totals& totals) {
  const auto start = std::chrono::steady_clock::now();
  Text input(path);
  totals = Indexer().run(input);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) throw std::runtime_error("usage: floor TRACE [REPEATS]");
  const int repeats = argc > 2 ? std::atoi(argv[2]) : 1;
  Totals totals;
  std::printf("{\"seconds\": [");
  for (int i = 0; i < repeats; ++i) {
    std::printf("%s%.6f", i ? ", " : "", measure(argv[1], totals));
  }
  std::printf("], \"text_bytes\": %llu, \"structurals\": %llu}\n",
              static_cast<unsigned long long>(totals.text_bytes),
              static_cast<unsigned long long>(totals.structurals));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "floor: %s\n", error.what());
  return 1;
}
