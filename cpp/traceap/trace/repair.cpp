#include "traceap/trace/repair.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "traceap/base/text.hpp"
#include "traceap/table/json_text.hpp"

namespace traceap {

namespace {

constexpr std::array<std::string_view, 13> kEventKeys{
    "ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "id", "s", "bp", "sf", "tts"};
constexpr std::size_t kLongestEventKey = 4;

/// Reads one event. Members are named after what they stand at; `text_` is never copied.
class EventRepair {
 public:
  EventRepair(std::string_view text, std::size_t pos, bool is_final, std::uint64_t base,
              std::string& out, ReasonCounts& counts)
      : text_(text),
        pos_(pos),
        start_(pos),
        final_(is_final),
        base_(base),
        out_(out),
        counts_(counts) {}

  RepairResult run() {
    out_.clear();
    open('{');
    while (state_ == State::kReading) step();
    switch (state_) {
      case State::kDone:
        counts_.merge(log_);
        return {RepairStatus::kKept, pos_};
      case State::kNeedMore:
        if (!final_) return {RepairStatus::kNeedMore, start_};
        counts_.add(Reason::kTruncatedEvent, base_ + start_);
        return {RepairStatus::kSkipped, text_.size()};
      default:
        return skip();
    }
  }

 private:
  enum class State { kReading, kDone, kNeedMore, kHopeless };
  enum class Expect { kKey, kColon, kValue, kElement, kComma };
  enum class Closing { kEmbedded, kCloses, kClosedBeforeComma, kNeedMore };

  void log(Reason reason) { log_.add(reason, base_ + start_); }  // the event's place
  bool in_object() const { return stack_.back() == '{'; }

  RepairResult skip() {
    const EventStart next = find_event_start(text_, std::max(pos_, start_ + 1));
    if (next.match != Match::kYes && !final_) return {RepairStatus::kNeedMore, start_};
    counts_.add(Reason::kUnreadableEvent, base_ + start_);
    return {RepairStatus::kSkipped, next.match == Match::kYes ? next.pos : text_.size()};
  }

  void step() {
    pos_ = skip_space(text_, pos_);
    if (pos_ >= text_.size()) {
      state_ = State::kNeedMore;
      return;
    }
    const char c = text_[pos_];
    switch (expect_) {
      case Expect::kKey:
        return read_key(c);
      case Expect::kColon:
        return read_colon(c);
      case Expect::kValue:
      case Expect::kElement:
        return read_value(c);
      case Expect::kComma:
        return read_comma(c);
    }
  }

  void open(char bracket) {
    out_.push_back(bracket);
    stack_.push_back(bracket);
    ++pos_;
    expect_ = bracket == '{' ? Expect::kKey : Expect::kElement;
    first_ = true;
  }
  /// Closes the innermost bracket in the output; the caller moves pos_.
  void close() {
    out_.push_back(in_object() ? '}' : ']');
    stack_.pop_back();
    expect_ = Expect::kComma;
    first_ = false;
    if (stack_.empty()) state_ = State::kDone;
  }
  void close_all() {
    log(Reason::kUnclosedBracket);
    while (!stack_.empty()) close();
  }
  void separate() {
    if (!first_) out_.push_back(',');
    first_ = false;
  }

  /// A closing bracket where one may stand: the right one, or one that closes an outer bracket.
  void read_close(char c) {
    const char wanted = in_object() ? '}' : ']';
    if (c == wanted) {
      ++pos_;
      return close();
    }
    log(Reason::kUnclosedBracket);
    close();  // the outer one takes the bracket; ']' behind the event itself ends the list
  }

  void read_key(char c) {
    if (c == '}' || c == ']') return read_close(c);
    if (c == ',') {
      log(Reason::kExtraComma);
      ++pos_;
    } else if (c == '"') {
      separate();
      if (read_string(true)) expect_ = Expect::kColon;
    } else if (c == '{') {
      read_event_inside_event();
    } else if (std::isalpha(static_cast<unsigned char>(c)) || c == '_') {
      read_bare_key();
    } else {
      state_ = State::kHopeless;
    }
  }

  void read_event_inside_event() {
    switch (match_event_start(text_, pos_)) {
      case Match::kYes:
        return close_all();
      case Match::kNeedMore:
        state_ = State::kNeedMore;
        return;
      case Match::kNo:
        state_ = State::kHopeless;
        return;
    }
  }

  void read_bare_key() {
    const std::size_t end = std::min(text_.find_first_of(":,{}[]\"\n", pos_), text_.size());
    if (end == text_.size()) {
      state_ = State::kNeedMore;
    } else if (text_[end] != ':') {
      state_ = State::kHopeless;
    } else {
      log(Reason::kUnquotedKey);
      separate();
      append_json_string(out_, trim_space(text_.substr(pos_, end - pos_)));
      pos_ = end;
      expect_ = Expect::kColon;
    }
  }

  void read_colon(char c) {
    if (c != ':') {
      state_ = State::kHopeless;
      return;
    }
    out_.push_back(':');
    ++pos_;
    expect_ = Expect::kValue;
  }

  void read_value(char c) {
    const bool element = expect_ == Expect::kElement;
    if (element && (c == ']' || c == '}')) return read_close(c);
    if (element && c == ',') {
      log(Reason::kExtraComma);
      ++pos_;
      return;
    }
    if (c == ',' || c == '}' || c == ']') {
      log(Reason::kMissingValue);
      out_ += "null";
      expect_ = Expect::kComma;
      return;
    }
    if (c == ':') {
      state_ = State::kHopeless;
      return;
    }
    if (element) separate();
    if (c == '{' || c == '[') return open(c);
    if (c == '"') {
      if (read_string(false)) expect_ = Expect::kComma;
    } else {
      read_scalar();
    }
  }

  void read_comma(char c) {
    if (c == '}' || c == ']') return read_close(c);
    const Expect next = in_object() ? Expect::kKey : Expect::kElement;
    if (c == ',') {
      ++pos_;
      expect_ = next;
      const std::size_t behind = skip_space(text_, pos_);
      if (behind < text_.size() && (text_[behind] == '}' || text_[behind] == ']')) {
        log(Reason::kExtraComma);
      }
    } else if (c == '{' && in_object()) {
      read_event_inside_event();
    } else if (c == '"' || !in_object()) {
      log(Reason::kMissingComma);
      expect_ = next;
    } else {
      state_ = State::kHopeless;
    }
  }

  void read_scalar() {
    const std::size_t end = std::min(text_.find_first_of(",:{}[]\" \n\r\t", pos_), text_.size());
    if (end == text_.size()) {
      state_ = State::kNeedMore;
      return;
    }
    append_scalar(text_.substr(pos_, end - pos_));
    pos_ = end;
    expect_ = Expect::kComma;
  }

  void append_scalar(std::string_view word) {
    if (word == "true" || word == "false" || word == "null" || is_json_number(word)) {
      out_ += word;
      return;
    }
    const std::string lower = to_lower(word);
    const std::string_view magnitude =
        std::string_view(lower).substr(lower[0] == '-' || lower[0] == '+' ? 1 : 0);
    if (magnitude == "nan" || magnitude == "inf" || magnitude == "infinity") {
      log(Reason::kNonFiniteNumber);
      append_json_string(out_, word);
    } else if (lower == "true" || lower == "false" || lower == "none") {
      log(Reason::kBareWord);
      out_ += lower == "none" ? "null" : lower;
    } else if (is_digit(word[0]) || word[0] == '-' || word[0] == '+' || word[0] == '.') {
      log(Reason::kBadNumber);
      out_ += "null";
    } else {
      log(Reason::kBareWord);
      append_json_string(out_, word);
    }
  }

  // Strings. A quote closes a string only if what follows fits; otherwise it belongs to the text.

  bool read_string(bool is_key) {
    const std::size_t opened = out_.size();
    out_.push_back('"');
    ++pos_;
    while (pos_ < text_.size()) {
      const char c = text_[pos_];
      if (c == '"') {
        switch (closing_at(pos_, is_key, opened)) {
          case Closing::kCloses:
            out_.push_back('"');
            ++pos_;
            return true;
          case Closing::kClosedBeforeComma:
            close_before_comma(opened);
            return true;
          case Closing::kEmbedded:
            log(Reason::kLoneQuote);
            out_ += "\\\"";
            ++pos_;
            break;
          case Closing::kNeedMore:
            state_ = State::kNeedMore;
            return false;
        }
      } else if (c == '\\') {
        if (!append_escape(is_key)) return false;
        if (closed_by_backslash_) {
          closed_by_backslash_ = false;
          return true;
        }
      } else {
        append_character(c);
      }
    }
    state_ = State::kNeedMore;
    return false;
  }

  void append_character(char c) {
    constexpr char kHex[] = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20) {
      log(Reason::kControlCharacter);
      out_ += "\\u00";
      out_.push_back(kHex[byte >> 4]);
      out_.push_back(kHex[byte & 15]);
      ++pos_;
    } else if (byte < 0x80) {
      out_.push_back(c);
      ++pos_;
    } else if (const std::size_t n = utf8_length(text_, pos_); n > 0) {
      out_ += text_.substr(pos_, n);
      pos_ += n;
    } else if (pos_ + 4 > text_.size() && !final_) {
      pos_ = text_.size();  // the sequence may go on behind the text at hand
    } else {
      log(Reason::kInvalidUtf8);
      out_ += "\xef\xbf\xbd";
      ++pos_;
    }
  }

  bool append_escape(bool is_key) {
    if (pos_ + 6 > text_.size() && !final_) {
      state_ = State::kNeedMore;
      return false;
    }
    const char next = pos_ + 1 < text_.size() ? text_[pos_ + 1] : '\0';
    if (next == '"' && !is_key && next_member_follows(pos_ + 2) == Match::kYes) {
      // "C:\dir\", "key": ... : the backslash is text and the quote closes.
      log(Reason::kBareBackslash);
      out_ += "\\\\\"";
      pos_ += 2;
      closed_by_backslash_ = true;
      return true;
    }
    const bool simple =
        next != '\0' && std::string_view("\"\\/bfnrt").find(next) != std::string_view::npos;
    const bool unicode = next == 'u' && pos_ + 6 <= text_.size() &&
                         std::all_of(text_.begin() + static_cast<std::ptrdiff_t>(pos_) + 2,
                                     text_.begin() + static_cast<std::ptrdiff_t>(pos_) + 6,
                                     [](unsigned char h) { return std::isxdigit(h); });
    if (!simple && !unicode) {
      log(Reason::kBareBackslash);
      out_ += "\\\\";
      ++pos_;
      return true;
    }
    const std::size_t length = unicode ? 6 : 2;
    out_ += text_.substr(pos_, length);
    pos_ += length;
    return true;
  }

  /// Behind a value: `, "key":` or the end of the object?
  Match next_member_follows(std::size_t pos) const {
    pos = skip_space(text_, pos);
    if (pos >= text_.size()) return Match::kNeedMore;
    if (text_[pos] != ',') return Match::kNo;
    return key_follows(skip_space(text_, pos + 1));
  }
  Match key_follows(std::size_t pos) const {
    if (pos >= text_.size()) return Match::kNeedMore;
    if (text_[pos] != '"') return Match::kNo;
    const std::size_t end = string_end(text_, pos);
    if (end == std::string_view::npos) return Match::kNeedMore;
    const std::size_t colon = skip_space(text_, end);
    if (colon >= text_.size()) return Match::kNeedMore;
    return text_[colon] == ':' ? Match::kYes : Match::kNo;
  }

  Closing closing_at(std::size_t quote, bool is_key, std::size_t opened) const {
    if (is_key) return Closing::kCloses;
    const std::size_t next = skip_space(text_, quote + 1);
    if (next >= text_.size()) return Closing::kNeedMore;
    const char c = text_[next];
    if (!in_object()) {
      return c == ',' || c == ']' || c == '}' || c == '"' ? Closing::kCloses : Closing::kEmbedded;
    }
    if (c == '}' || c == ']') return Closing::kCloses;
    if (c == ',') return closing_before(skip_space(text_, next + 1));
    if (c == '"') return to_closing(key_follows(next), quote, opened);
    return to_closing(Match::kNo, quote, opened);
  }
  /// A comma behind the quote closes the string if a key, a brace or a second comma follows.
  Closing closing_before(std::size_t pos) const {
    if (pos >= text_.size()) return Closing::kNeedMore;
    if (text_[pos] == '}' || text_[pos] == ']' || text_[pos] == ',' || text_[pos] == '{') {
      return Closing::kCloses;
    }
    switch (key_follows(pos)) {
      case Match::kYes:
        return Closing::kCloses;
      case Match::kNeedMore:
        return Closing::kNeedMore;
      default:
        break;
    }
    // An unquoted key: letters up to a colon.
    std::size_t end = pos;
    while (end < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[end])) || text_[end] == '_'))
      ++end;
    const std::size_t colon = skip_space(text_, end);
    if (colon == text_.size()) return Closing::kNeedMore;
    return end > pos && text_[colon] == ':' ? Closing::kCloses : Closing::kEmbedded;
  }
  Closing to_closing(Match match, std::size_t quote, std::size_t opened) const {
    if (match == Match::kYes) return Closing::kCloses;
    if (match == Match::kNeedMore) return Closing::kNeedMore;
    // `"foo, "pid": 1`: this quote opens the next key, the closing one is missing.
    if (comma_ends_string(opened)) {
      const Match key = key_follows(quote);
      if (key == Match::kYes) return Closing::kClosedBeforeComma;
      if (key == Match::kNeedMore) return Closing::kNeedMore;
    }
    return Closing::kEmbedded;
  }
  /// Is a comma the last character so far of the string that opened there? Looks at no more than
  /// the white space behind the last quote.
  bool comma_ends_string(std::size_t opened) const {
    std::size_t end = out_.size();
    while (end > opened + 1 && is_json_space(out_[end - 1])) --end;
    return end > opened + 1 && out_[end - 1] == ',';
  }
  void close_before_comma(std::size_t opened) {
    log(Reason::kLoneQuote);
    out_.erase(out_.find_last_of(','));
    while (out_.size() > opened + 1 && is_json_space(out_.back())) out_.pop_back();
    out_.push_back('"');
    pos_ = text_.rfind(',', pos_);
  }

  std::string_view text_;
  std::size_t pos_;
  std::size_t start_;
  bool final_;
  std::uint64_t base_;
  std::string& out_;
  ReasonCounts& counts_;
  ReasonCounts log_;  // taken over only if the event is kept
  std::vector<char> stack_;
  Expect expect_ = Expect::kKey;
  State state_ = State::kReading;
  bool first_ = true;
  bool closed_by_backslash_ = false;
};

}  // namespace

RepairResult repair_event(std::string_view text, std::size_t pos, bool is_final,
                          std::uint64_t base_offset, std::string& out, ReasonCounts& counts) {
  return EventRepair(text, pos, is_final, base_offset, out, counts).run();
}

Match match_event_start(std::string_view text, std::size_t pos) {
  if (pos >= text.size()) return Match::kNeedMore;
  if (text[pos] != '{') return Match::kNo;
  const std::size_t key = skip_space(text, pos + 1);
  if (key >= text.size()) return Match::kNeedMore;
  if (text[key] != '"') return Match::kNo;
  const std::string_view longest = text.substr(key + 1, kLongestEventKey + 1);
  const std::size_t length = longest.find('"');
  if (length == std::string_view::npos) {
    return longest.size() > kLongestEventKey ? Match::kNo : Match::kNeedMore;
  }
  const std::string_view name = longest.substr(0, length);
  if (std::find(kEventKeys.begin(), kEventKeys.end(), name) == kEventKeys.end()) return Match::kNo;
  const std::size_t end = key + 1 + length;
  const std::size_t colon = skip_space(text, end + 1);
  if (colon >= text.size()) return Match::kNeedMore;
  return text[colon] == ':' ? Match::kYes : Match::kNo;
}

EventStart find_event_start(std::string_view text, std::size_t pos) {
  for (;;) {
    pos = text.find('{', pos);
    if (pos == std::string_view::npos) return {text.size(), Match::kNo};
    const Match match = match_event_start(text, pos);
    if (match != Match::kNo) return {pos, match};
    ++pos;
  }
}

}  // namespace traceap
