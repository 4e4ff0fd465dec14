#pragma once
// One event's tokens to fields, template and packed integers.

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "traceap/base/ids.hpp"
#include "traceap/trace/structural_index.hpp"

namespace traceap {

enum class Walk {
  kEvent,       ///< the event was read to its end
  kIncomplete,  ///< the tokens end inside it
  kBroken,      ///< no valid JSON
};

/// Keys of an event that have a column, as bits of Fields::seen.
enum Seen : std::uint16_t {
  kSeenPhase = 1,
  kSeenCategory = 2,
  kSeenName = 4,
  kSeenPid = 8,
  kSeenTid = 16,
  kSeenTs = 32,
  kSeenDur = 64,
  kSeenArgs = 128,
  kSeenCorrelation = 256,
  kSeenExternalId = 512,
  kSeenDevice = 1024,
  kSeenStream = 2048
};

struct Fields {
  std::int64_t ts_ns = 0, dur_ns = 0;
  std::int64_t correlation = kNoId, external_id = kNoId, stream = kNoId;
  std::string_view name, category, pid, tid;
  std::int32_t device = -1;
  std::uint16_t seen = 0;
  std::uint16_t bad = 0;  ///< keys whose value has no reading
  char phase = 0;
  bool quoted_number = false;  ///< a number stood in quotes
  bool duplicate = false;      ///< a key came twice: the last value counts, the text is kept whole
};

/// Walks over tokens: positions of structural characters. After `walk` gave kEvent the accessors
/// speak of that event; views point into the text and into the walker.
class EventWalker {
 public:
  /// Both must outlive the walks.
  void point_at(std::string_view text, const StructuralIndex& index);
  std::uint32_t token_count() const { return tokens_; }
  std::uint32_t position(std::uint32_t token) const { return idx_[token]; }
  char at(std::uint32_t token) const { return text_[idx_[token]]; }

  /// From the '{' at `token` to the token behind its '}'.
  Walk walk(std::uint32_t& token);

  const Fields& fields() const { return fields_; }
  /// The event's text as it stands.
  std::string_view event_text() const {
    return {event_begin_, static_cast<std::size_t>(event_end_ - event_begin_)};
  }
  /// The event's text with slots.
  std::string_view template_text();
  const std::vector<std::uint8_t>& packed() const { return packed_; }
  /// Where the object `args` lies in template_text(): empty where there is none.
  struct ArgsPlace {
    std::size_t begin = 0, end = 0;
    std::size_t packed = 0;  ///< of packed(): what stands before it
  };
  const ArgsPlace& args_place() const { return args_; }

 private:
  std::string_view scalar(std::uint32_t token) const;
  bool key(std::uint32_t token, std::string_view& out) const;
  std::uint32_t skip(std::uint32_t token) const;

  Walk walk_args(std::uint32_t& token);
  void member(std::string_view key, std::uint32_t value);
  void argument(std::string_view key, std::uint32_t value);

  void begin_event(const char* start);
  std::size_t in_template(std::uint32_t token) const;
  void slot(std::string_view value, char kind);
  void take_integer(std::string_view text, std::int64_t value);
  void take_number(std::string_view text);
  void take_phase(std::uint32_t value);
  void take_time(std::uint32_t value, std::uint16_t bit, std::int64_t& out, char kind);
  void take_text(std::uint32_t value, std::uint16_t bit, std::string_view& out, char kind);
  void take_track_part(std::uint32_t value, std::uint16_t bit, std::string_view& out, char kind);
  bool take_id(std::uint32_t value, std::uint16_t bit, std::int64_t& out, char kind);
  void take_device(std::uint32_t value);
  void take_other(std::uint32_t value);
  void mark(std::uint16_t bit);

  const char* text_ = nullptr;
  const std::uint32_t* idx_ = nullptr;
  std::uint32_t tokens_ = 0;
  Fields fields_;
  const char* copied_ = nullptr;  ///< text before it is in template_ already
  const char* event_begin_ = nullptr;
  const char* event_end_ = nullptr;
  std::unique_ptr<char[]> template_;
  std::size_t template_capacity_ = 0, template_size_ = 0;
  std::vector<std::uint8_t> packed_;
  ArgsPlace args_;
};

}  // namespace traceap
