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

struct Unpacked {
  std::string text, damage;
  std::uint64_t bytes_read;
};

/// Everything that `raw` holds, asked for in pieces of `piece` bytes.
Unpacked unpack(RawInput& raw, std::size_t piece) {
  return with_text(raw, [&](TextSource& source) {
    std::string text, buffer(piece, '\0');
    for (std::size_t got = piece; got == piece;) {
      got = source.read(buffer.data(), piece);
      text.append(buffer, 0, got);
    }
    return Unpacked{text, source.damage().value_or(""), source.compressed_bytes_read()};
  });
}
Unpacked unpack(std::string_view packed, std::size_t piece = 1 << 16) {
  return unpack(*open_bytes(packed), piece);
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
  bool can_rewind() const override { return false; }
  void rewind() override { FAIL("a pipe can't be rewound"); }

 private:
  std::string bytes_;
  std::size_t at_ = 0;
};

/// What zlib makes of members that follow each other, up to the first error.
std::string text_by_zlib(const std::string& packed) {
  z_stream stream{};
  inflateInit2(&stream, 15 + 16);
  std::string text(1 << 20, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(text.data());
  stream.avail_out = static_cast<uInt>(text.size());
  const auto another = [&] {
    return stream.avail_in >= 2 && stream.next_in[0] == 0x1f && stream.next_in[1] == 0x8b;
  };
  while (another() && inflate(&stream, Z_FINISH) == Z_STREAM_END) inflateReset(&stream);
  text.resize(text.size() - stream.avail_out);
  inflateEnd(&stream);
  return text;
}

/// The same for zstd, byte by byte, so that it gives every block that it can.
std::string text_by_zstd(const std::string& packed) {
  ZSTD_DStream* stream = ZSTD_createDStream();
  std::string text(1 << 20, '\0');
  ZSTD_outBuffer out{text.data(), text.size(), 0};
  for (std::size_t i = 0; i < packed.size(); ++i) {
    ZSTD_inBuffer in{packed.data() + i, 1, 0};
    if (ZSTD_isError(ZSTD_decompressStream(stream, &out, &in))) break;
  }
  ZSTD_freeDStream(stream);
  text.resize(out.pos);
  return text;
}

/// JSON-like text with long matches and without, in several kinds of deflate blocks.
std::string mixed_text() {
  std::string text = long_text().substr(0, 100);
  for (int i = 0; i < 60; ++i) {
    text += R"({"ph":"X","name":"op )" + std::to_string(i % 7) + R"(","ts":)" +
            std::to_string(i * 37 % 101) + "},\n";
  }
  return text;
}

/// Every byte of `packed` changed in several ways, and every cut: pieces of any size must give what
/// `expected` gives, from a pipe too.
template <class Expected>
void check_damaged(const std::string& packed, Expected expected) {
  const auto check = [&](const std::string& damaged) {
    const std::string text = expected(damaged);
    const Unpacked whole = unpack(damaged, 1 << 20);
    REQUIRE(whole.text == text);
    for (const std::size_t piece : {1U, 7U, 4096U}) {
      const Unpacked pieces = unpack(damaged, piece);
      REQUIRE(pieces.text == text);
      REQUIRE(pieces.damage == whole.damage);
    }
    Trickle pipe(damaged);
    REQUIRE(unpack(pipe, 100).text == text);
  };
  for (std::size_t at = 4; at < packed.size(); ++at) {
    check(packed.substr(0, at));
    for (const int change : {0x01, 0x10, 0x80, 0xff}) {
      std::string damaged = packed;
      damaged[at] = static_cast<char>(damaged[at] ^ change);
      CAPTURE(at, change);
      check(damaged);
    }
  }
}

}  // namespace

TEST_CASE("the format is told from the bytes, pieces of any size give the same text", "[trace]") {
  const std::string text = long_text();
  for (const std::string& packed : {text, packed_gzip(text), packed_zstd(text)}) {
    for (const std::size_t piece : {std::size_t{4099}, std::size_t{1} << 20, text.size() + 1}) {
      CAPTURE(piece, packed.size());
      const Unpacked found = unpack(packed, piece);
      CHECK(found.text == text);
      CHECK(found.damage.empty());
      CHECK(found.bytes_read == packed.size());
    }
  }
}

TEST_CASE("members and frames follow each other, padding behind them is ignored", "[trace]") {
  const auto read = [](const std::string& packed) {
    const Unpacked found = unpack(packed, 7);
    return found.text + (found.damage.empty() ? "" : "!");
  };
  const std::string padding(300'000, '\0');
  CHECK(read(packed_gzip("one ") + packed_gzip("") + packed_gzip("two")) == "one two");
  CHECK(read(packed_zstd("one ") + packed_zstd("") + packed_zstd("two")) == "one two");
  CHECK(read(packed_gzip("one") + padding) == "one");
  CHECK(read(packed_zstd("one") + padding) == "one");
  CHECK(read(packed_gzip("one") + padding + "x") == "one!");
  CHECK(read(packed_gzip("one") + "\x1f") == "one!");
  CHECK(read(packed_zstd("one") + padding + "x") == "one!");
  CHECK(read(packed_zstd("one") + packed_gzip("two")) == "one!");
  CHECK(read("") == "");
}

TEST_CASE("skippable frames of zstd are passed over, also the first one", "[trace]") {
  for (char kind = 0x50; kind < 0x60; ++kind) {
    const std::string empty = std::string(1, kind) + std::string("\x2a\x4d\x18\0\0\0\0", 7);
    const std::string full =
        std::string(1, kind) + std::string("\x2a\x4d\x18\5\0\0\0{[\x28\xb5\"", 12);
    for (const std::size_t piece : {1U, 7U, 4096U}) {
      const Unpacked found = unpack(
          full + empty + packed_zstd("one ") + empty + full + packed_zstd("two") + full, piece);
      CHECK(found.text == "one two");
      CHECK(found.damage.empty());
    }
    CHECK(unpack(full).text.empty());
    CHECK(unpack(full).damage.empty());
    CHECK(unpack(full.substr(0, 10)).damage ==
          "the zstd stream can't be read to its end: it is damaged: it ends inside a frame");
  }
}

TEST_CASE("what this reader does not do with zstd is named", "[trace]") {
  // A frame's descriptor, and for windows of 1 GiB (and 1.75 GiB) its window; a block of one byte.
  const std::string magic = "\x28\xb5\x2f\xfd", block = std::string("\x09\0\0x", 4);
  const auto damage = [](const std::string& packed) { return unpack(packed).damage; };
  const std::string begin = "the zstd stream can't be read to its end: its window of ";
  const std::string end =
      " bytes is above the limit of 134217728; compress it again without --long or --ultra";
  CHECK(damage(magic + std::string("\0\xa0", 2) + block) == begin + "1073741824" + end);
  CHECK(damage(magic + std::string("\0\xa6", 2) + block) == begin + "1879048192" + end);
  CHECK(damage(magic + std::string("\xe0\0\0\0\x40\0\0\0\0", 9) + block) ==
        begin + "1073741824" + end);
  CHECK(damage(magic + std::string("\0\x88", 2) + block).empty());  // the limit itself
  CHECK(unpack(packed_zstd("kept") + magic + std::string("\0\xa0", 2) + block).text == "kept");
  CHECK(damage(magic + std::string("\x21\x07\x01", 3) + block).find("a dictionary") !=
        std::string::npos);
  CHECK(damage("\x27\xb5\x2f\xfd").find("before 0.8") != std::string::npos);
}

TEST_CASE("a compressed stream that comes byte by byte is known for one", "[trace]") {
  for (const std::string& packed : {packed_gzip("text"), packed_zstd("text")}) {
    Trickle pipe(packed);
    CHECK(unpack(pipe, 3).text == "text");
  }
}

TEST_CASE("damage keeps what came before it and says what it is", "[trace]") {
  const std::string text = long_text();
  for (const std::string& packed : {packed_gzip(text), packed_zstd(text)}) {
    const Unpacked cut = unpack(std::string_view(packed).substr(0, packed.size() / 2));
    CHECK(cut.text.size() > text.size() / 4);
    CHECK(text.starts_with(cut.text));
    CHECK_FALSE(cut.damage.empty());
    CHECK(cut.bytes_read == packed.size() / 2);
  }
  std::string wrong_checksum = packed_gzip("text");
  wrong_checksum[wrong_checksum.size() - 8] ^= 1;
  const Unpacked found = unpack(wrong_checksum, 100);
  CHECK(found.text == "text");
  CHECK(found.damage == "the gzip stream is damaged: its checksum does not match");
}

TEST_CASE("a damaged gzip gives what zlib gives, for pieces of any size", "[trace]") {
  const std::string text = mixed_text();
  check_damaged(packed_gzip(text), text_by_zlib);
  check_damaged(packed_gzip("one " + text.substr(0, 200)) + packed_gzip(text.substr(100, 300)),
                text_by_zlib);
}

TEST_CASE("a damaged zstd gives its blocks before the damage, for pieces of any size", "[trace]") {
  const std::string text = mixed_text();
  check_damaged(packed_zstd(text) + packed_zstd(text.substr(0, 300)), text_by_zstd);
}

TEST_CASE("a match that reaches before the text leaves nothing behind it", "[trace]") {
  // A fixed block of ISA-L's refusal: "ab", then a match of 258 bytes 24,577 bytes back.
  const std::string header("\x1f\x8b\x08\0\0\0\0\0\0\xff", 10);
  std::string bits;
  const auto put = [&](unsigned value, int count) {
    for (int i = count; i-- > 0;) bits.push_back(static_cast<char>((value >> i) & 1));
  };
  bits = {1, 1, 0};  // the last block, fixed codes
  put(0x30 + 'a', 8);
  put(0x30 + 'b', 8);
  put(0xc5, 8);  // length 258
  put(29, 5);    // distance 24577 and 13 more bits
  put(0, 13);
  put(0x30 + 'c', 8);
  put(0, 7);  // end of the block
  std::string packed = header + std::string((bits.size() + 7) / 8, '\0');
  for (std::size_t i = 0; i < bits.size(); ++i) {
    packed[header.size() + i / 8] =
        static_cast<char>(packed[header.size() + i / 8] | bits[i] << (i % 8));
  }
  packed += std::string(8, '\0');
  for (const std::size_t piece : {1U, 2U, 100U, 300U, 1U << 20}) {
    const Unpacked found = unpack(packed, piece);
    CHECK(found.text == "ab");
    CHECK(found.damage == "the gzip stream is damaged: invalid distance too far back");
  }
}

TEST_CASE("a file is read as its bytes are; what is no file is an error", "[trace]") {
  const auto path = std::filesystem::temp_directory_path() / "traceap_test_decompress.gz";
  const std::string packed = packed_gzip("from a file");
  std::ofstream(path, std::ios::binary) << packed;
  auto raw = open_file(path);
  CHECK(raw->total_bytes() == packed.size());
  CHECK(unpack(*raw, 5).text == "from a file");
  std::ofstream(path, std::ios::binary) << packed.substr(0, packed.size() - 9);
  CHECK(unpack(*open_file(path), 5).text == "from a file");
  std::filesystem::remove(path);
  CHECK_THROWS_AS(open_file(path), ParseError);
  CHECK_THROWS_AS(open_file(path.parent_path()), ParseError);
}
