#include <cstdio>
#include <filesystem>
#include <fstream>

#include "catch.hpp"
#include "trace/packed.hpp"
#include "traceap/base/error.hpp"
#include "traceap/trace/decompress.hpp"

using namespace traceap;

namespace {

/// Text that compresses to more than `kInputBytes` of decompress.cpp, so that blocks have borders.
std::string long_text() {
  std::string text;
  std::uint64_t state = 1;
  while (text.size() < (std::size_t{3} << 20)) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    text += static_cast<char>(state >> 56);
  }
  return text;
}

/// Everything that `source` gives, asked for in pieces of `piece` bytes.
std::string drain(TextSource& source, std::size_t piece) {
  std::string text, buffer(piece, '\0');
  for (;;) {
    const std::size_t got = source.read(buffer.data(), piece);
    text.append(buffer, 0, got);
    if (got < piece) return text;
  }
}

/// Bytes that arrive one by one, as through a slow pipe.
class Trickle final : public RawInput {
 public:
  explicit Trickle(std::string bytes) : bytes_(std::move(bytes)) {}
  std::size_t read(char* out, std::size_t size) override {
    if (size == 0 || at_ == bytes_.size()) return 0;
    *out = bytes_[at_++];
    return 1;
  }
  std::uint64_t total_bytes() const override { return bytes_.size(); }

 private:
  std::string bytes_;
  std::size_t at_ = 0;
};

}  // namespace

TEST_CASE("the format is told from the bytes, pieces of any size give the same text", "[trace]") {
  const std::string text = long_text();
  for (const std::string& packed : {text, packed_gzip(text), packed_zstd(text)}) {
    for (const std::size_t piece : {std::size_t{4099}, std::size_t{1} << 20, text.size() + 1}) {
      CAPTURE(piece, packed.size());
      const auto source = open_text(open_bytes(packed));
      CHECK(drain(*source, piece) == text);
      CHECK_FALSE(source->damage());
      CHECK(source->compressed_bytes_read() == packed.size());
    }
  }
}

TEST_CASE("members and frames follow each other, padding behind gzip is ignored", "[trace]") {
  const auto read = [](const std::string& packed) {
    const auto source = open_text(open_bytes(packed));
    std::string text = drain(*source, 7);
    return text + (source->damage() ? "!" : "");
  };
  CHECK(read(packed_gzip("one ") + packed_gzip("") + packed_gzip("two")) == "one two");
  CHECK(read(packed_zstd("one ") + packed_zstd("two")) == "one two");
  CHECK(read(packed_gzip("one") + std::string(512, '\0')) == "one");
  CHECK(read("") == "");
}

TEST_CASE("a compressed stream that comes byte by byte is known for one", "[trace]") {
  for (const std::string& packed : {packed_gzip("text"), packed_zstd("text")}) {
    CHECK(drain(*open_text(std::make_unique<Trickle>(packed)), 3) == "text");
  }
}

TEST_CASE("damage keeps what came before it and says where it is", "[trace]") {
  const std::string text = long_text();
  for (const std::string& packed : {packed_gzip(text), packed_zstd(text)}) {
    const auto cut = open_text(open_bytes(std::string_view(packed).substr(0, packed.size() / 2)));
    const std::string kept = drain(*cut, 1 << 16);
    CHECK(kept.size() > text.size() / 4);
    CHECK(text.starts_with(kept));
    REQUIRE(cut->damage());
    CHECK(cut->damage()->compressed_offset == packed.size() / 2);
  }
  std::string wrong_checksum = packed_gzip("text");
  wrong_checksum[wrong_checksum.size() - 8] ^= 1;
  const auto source = open_text(open_bytes(wrong_checksum));
  CHECK(drain(*source, 100) == "text");
  REQUIRE(source->damage());
  CHECK(source->damage()->message == "checksum does not match");
}

TEST_CASE("a file is read as its bytes are; what is no file is an error", "[trace]") {
  const auto path = std::filesystem::temp_directory_path() / "traceap_test_decompress.gz";
  const std::string packed = packed_gzip("from a file");
  std::ofstream(path, std::ios::binary) << packed;
  auto raw = open_file(path);
  CHECK(raw->total_bytes() == packed.size());
  CHECK(drain(*open_text(std::move(raw)), 5) == "from a file");
  std::filesystem::remove(path);
  CHECK_THROWS_AS(open_file(path), ParseError);
  CHECK_THROWS_AS(open_file(path.parent_path()), ParseError);
}
