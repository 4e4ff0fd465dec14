#pragma once
// What merging ranks does to an event, and back. Private to trace/.

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "traceap/table/json_text.hpp"

namespace traceap {

/// The top-level member of a merged trace that says what was merged; an array with an object for
/// each rank: `rank`; `processes`, each with its `pid` in the merged trace, what it `was`, its
/// `name` and `labels`; `members`, the JSON text of the top-level members that differ from those of
/// the merged trace; and `without`, the keys of those that the rank does not have.
inline constexpr std::string_view kMergedRanks = "mergedRanks";

inline void append_integer(std::string& out, std::int64_t value) { out += std::to_string(value); }

inline void append_member(std::string& out, bool& first, std::string_view quoted_key) {
  if (!first) out += ',';
  first = false;
  out += quoted_key;
  out += ':';
}

/// Ids of one of several ranks. In a merged trace integers are spread out (id * ranks + index) and
/// other ids have the rank's index before them. 0 and -1 mean none.
class RankIds {
 public:
  RankIds(std::size_t index, std::size_t ranks)
      : index_(static_cast<std::int64_t>(index)), ranks_(static_cast<std::int64_t>(ranks)) {}

  /// JSON text of an id to that in the merged trace.
  void append_spread(std::string& out, std::string_view value) const {
    const auto number = parse_int64(value);
    constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
    if (number && *number > 0 && *number < (kLargest - index_) / ranks_) {
      append_integer(out, *number * ranks_ + index_);
    } else if (!number && is_text(value)) {
      append_json_string(out, prefix() + unescape_json(value.substr(1, value.size() - 2)));
    } else {
      out += value;
    }
  }

  /// And back.
  void append_gathered(std::string& out, std::string_view value) const {
    const auto number = parse_int64(value);
    if (number && *number >= ranks_ && *number % ranks_ == index_) {
      append_integer(out, *number / ranks_);
      return;
    }
    const std::string text = is_text(value) ? unescape_json(value.substr(1, value.size() - 2)) : "";
    if (text.starts_with(prefix())) {
      append_json_string(out, std::string_view(text).substr(prefix().size()));
    } else {
      out += value;
    }
  }

 private:
  static bool is_text(std::string_view value) { return value.size() >= 2 && value.front() == '"'; }
  std::string prefix() const { return std::to_string(index_) + ":"; }

  std::int64_t index_, ranks_;
};

/// The event with other ids; `append(out, key, value)` writes its other members' values.
template <class AppendId, class Append>
std::string rewrite_event(std::string_view event, bool has_id, AppendId append_id, Append append) {
  std::string out = "{";
  bool first = true;
  const auto args = [&](std::string_view text) {
    out += '{';
    bool first_arg = true;
    for_each_member(text, [&](std::string_view quoted, std::string_view key, std::string_view v) {
      append_member(out, first_arg, quoted);
      const bool is_id = key == "correlation" || key == "External id" || key == "external id";
      is_id ? append_id(out, v) : void(out += v);
    });
    out += '}';
  };
  for_each_member(event, [&](std::string_view quoted, std::string_view key, std::string_view v) {
    append_member(out, first, quoted);
    if (key == "id" && has_id) {
      append_id(out, v);
    } else if (key == "args" && !v.empty() && v.front() == '{') {
      args(v);
    } else {
      append(out, key, v);
    }
  });
  out += '}';
  return out;
}

/// A metadata event; `value` is JSON.
inline std::string metadata_event(std::string_view name, std::string_view pid, std::string_view key,
                                  std::string_view value) {
  std::string event = R"({"ph":"M","name":")";
  event += name;
  event += R"(","pid":)";
  event += pid;
  event += R"(,"tid":0,"args":{")";
  event += key;
  event += "\":";
  event += value;
  event += "}}";
  return event;
}

}  // namespace traceap
