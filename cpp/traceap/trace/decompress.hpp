#pragma once
// A stream of decompressed text from a file or from memory. The format is told from the first
// bytes, never from the name.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace traceap {

/// Where bytes come from before decompression.
class RawInput {
 public:
  virtual ~RawInput() = default;
  /// Up to `size` bytes; 0 only at the end.
  virtual std::size_t read(char* out, std::size_t size) = 0;
  virtual std::uint64_t total_bytes() const = 0;
};

/// Throws ParseError when the file can't be opened or is a folder.
std::unique_ptr<RawInput> open_file(const std::string& path);
std::unique_ptr<RawInput> open_bytes(std::string_view bytes);

/// Damage to the compressed stream: what came before it is kept.
struct StreamDamage {
  std::string message;
  std::uint64_t compressed_offset;
};

class TextSource {
 public:
  virtual ~TextSource() = default;
  /// Fills `out`; fewer than `size` bytes only at the end of the text or at damage.
  virtual std::size_t read(char* out, std::size_t size) = 0;
  virtual std::uint64_t compressed_bytes_read() const = 0;
  const std::optional<StreamDamage>& damage() const { return damage_; }

 protected:
  std::optional<StreamDamage> damage_;
};

/// gzip (any number of members), zstd (any number of frames), or the bytes as they are.
std::unique_ptr<TextSource> open_text(std::unique_ptr<RawInput> raw);

}  // namespace traceap
