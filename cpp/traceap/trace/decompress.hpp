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
  /// Can it be read a second time? Not a pipe.
  virtual bool can_rewind() const = 0;
  /// Back to the first byte; only if can_rewind().
  virtual void rewind() = 0;
};

/// Throws ParseError when the file can't be opened or is a folder.
std::unique_ptr<RawInput> open_file(const std::string& path);
/// `bytes` must outlive it.
std::unique_ptr<RawInput> open_bytes(std::string_view bytes);

class TextSource {
 public:
  virtual ~TextSource() = default;
  /// Fills `out`; fewer than `size` bytes only at the end of the text or at damage.
  virtual std::size_t read(char* out, std::size_t size) = 0;
  virtual std::uint64_t compressed_bytes_read() const = 0;
  /// Why a compressed stream could not be read to its end, as a clause that names the stream. What
  /// came before is kept.
  const std::optional<std::string>& damage() const { return damage_; }

 protected:
  std::optional<std::string> damage_;
};

/// Note [Damaged gzip]: ISA-L is four times as fast as zlib and says whether a stream is damaged
/// (its checksum included), but not exactly where: of the text around the damage it gives more or
/// less by the size of the buffers, and a match that it refused may count as text. zlib is exact.
/// So a stream is read by ISA-L, and again from its begin by zlib if it turns out to be damaged.
/// (A code table that zlib refuses because it is incomplete ISA-L takes, if the part that is
/// missing is never used. Then the checksum holds, and the text is kept.)
enum class Inflater { kFast, kExact };

/// What a source that inflates fast throws where the stream is damaged: nothing that it gave is
/// sure.
struct InexactDamage {};

/// gzip (any number of members), zstd (any number of frames, some of them skippable), or the bytes
/// as they are. `raw` must outlive it. What can't be rewound is inflated exactly in any case.
std::unique_ptr<TextSource> open_text(RawInput& raw, Inflater inflater = Inflater::kFast);

/// use(text source): a second time, from the begin, where Note [Damaged gzip] asks for it.
template <class Use>
auto with_text(RawInput& raw, Use use) {
  try {
    return use(*open_text(raw));
  } catch (const InexactDamage&) {
    raw.rewind();
    return use(*open_text(raw, Inflater::kExact));
  }
}

}  // namespace traceap
