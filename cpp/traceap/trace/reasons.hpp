#pragma once
// Why an event was repaired or skipped. Codes and sentences are what Diagnostics shows;
// docs/errors.md explains them.

#include <array>
#include <cstdint>
#include <limits>
#include <string_view>

#include "traceap/table/diagnostics.hpp"

namespace traceap {

enum class Reason : std::uint8_t {
  // Repaired and kept.
  kBareBackslash,
  kControlCharacter,
  kInvalidUtf8,
  kLoneQuote,
  kMissingComma,
  kExtraComma,
  kNumberInQuotes,
  kNonFiniteNumber,
  kBareWord,
  kBadNumber,
  kMissingValue,
  kUnquotedKey,
  kUnclosedBracket,
  // Kept, but not complete.
  kMissingName,
  kMissingDuration,
  kBadDuration,
  kNegativeDuration,
  // Skipped.
  kMissingPhase,
  kMissingStart,
  kBadStart,
  kUnreadableEvent,
  kTruncatedEvent,
  kEventTooLong,
  kNotAnObject,
  // The file as a whole.
  kBrokenHeader,
  kMembersLeftOut,
  kUnclosedTrace,
  kTextAfterEnd,
  kCount
};

struct ReasonText {
  std::string_view code, message;
};
inline constexpr std::array<ReasonText, static_cast<std::size_t>(Reason::kCount)> kReasonTexts{{
    {"bare_backslash", "a backslash that escapes nothing was kept as a character"},
    {"control_character", "a raw control character in a string was escaped"},
    {"invalid_utf8", "bytes that are no UTF-8 were replaced by U+FFFD"},
    {"lone_quote", "an unescaped or missing quote in a string was mended"},
    {"missing_comma", "a missing comma was put in"},
    {"extra_comma", "a doubled or trailing comma was taken out"},
    {"number_in_quotes", "a number in quotes was read as a number"},
    {"non_finite_number", "NaN or infinity, which JSON does not have, was kept as a word"},
    {"bare_word", "a word without quotes was kept as a string"},
    {"bad_number", "a number that is none was replaced by null"},
    {"missing_value", "a key without a value got null"},
    {"unquoted_key", "a key without quotes was quoted"},
    {"unclosed_bracket", "a missing closing bracket was put in"},
    {"missing_name", "an event without a name was kept"},
    {"missing_duration", "an X event without a duration was kept, but is not complete"},
    {"bad_duration", "an X event whose duration is no time was kept, but is not complete"},
    {"negative_duration", "an X event with a negative duration was kept, but is not complete"},
    {"missing_phase", "an object without a phase is no event and was skipped"},
    {"missing_start", "an event without a start was skipped"},
    {"bad_start", "an event whose start is no time was skipped"},
    {"unreadable_event", "an event whose text has no sensible reading was skipped"},
    {"truncated_event", "the text ends inside an event, which was skipped"},
    {"event_too_long", "an event longer than the limit was skipped"},
    {"not_an_object", "a member of traceEvents that is no object was skipped"},
    {"broken_header", "the text before traceEvents is no valid JSON; its metadata is lost"},
    {"members_left_out", "members beside traceEvents above the limits were left out"},
    {"unclosed_trace", "the text ends before the trace is closed"},
    {"text_after_end", "text after the end of the trace was ignored"},
}};

constexpr const ReasonText& text_of(Reason reason) {
  return kReasonTexts[static_cast<std::size_t>(reason)];
}

/// Counts by reason with the first byte offset.
class ReasonCounts {
 public:
  void add(Reason reason, std::uint64_t byte_offset, std::uint64_t count = 1) {
    Entry& entry = entries_[static_cast<std::size_t>(reason)];
    entry.count += count;
    if (byte_offset < entry.first) entry.first = byte_offset;
  }
  void merge(const ReasonCounts& other) {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (other.entries_[i].count > 0) {
        add(static_cast<Reason>(i), other.entries_[i].first, other.entries_[i].count);
      }
    }
  }
  void write_to(Diagnostics& diagnostics) const {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (entries_[i].count == 0) continue;
      diagnostics.add(kReasonTexts[i].code, kReasonTexts[i].message, entries_[i].count,
                      entries_[i].first);
    }
  }

 private:
  struct Entry {
    std::uint64_t count = 0;
    std::uint64_t first = std::numeric_limits<std::uint64_t>::max();
  };
  std::array<Entry, static_cast<std::size_t>(Reason::kCount)> entries_{};
};

}  // namespace traceap
