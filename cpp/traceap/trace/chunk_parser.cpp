#include "traceap/trace/chunk_parser.hpp"

#include <algorithm>
#include <string>

#include "traceap/table/json_text.hpp"
#include "traceap/trace/event_walker.hpp"
#include "traceap/trace/repair.hpp"
#include "traceap/trace/structural_index.hpp"

namespace traceap {

class ChunkParser::Impl {
 public:
  explicit Impl(std::size_t free_templates) : rows(free_templates) {}
  ChunkResult parse(const ChunkTask& task);
  RowBuilder rows;

 private:
  class Landmarks;
  bool resync(ChunkTask& task);
  bool parse_strict(const ChunkTask& task, std::size_t& pos);
  void parse_tolerant(const ChunkTask& task, std::size_t pos);
  bool read_object(const ChunkTask& task, std::uint32_t& token, std::size_t& pos);
  bool repair_one(const ChunkTask& task, std::size_t& pos);
  bool read_alone(std::string_view text, std::uint64_t offset);
  bool finish_event(std::uint64_t offset);
  void meet_object(const ChunkTask& task, std::uint64_t offset);
  void meet_comma(std::uint64_t offset);
  void meet_close(std::uint64_t offset, std::size_t pos);

  StructuralIndex chunk_index_, event_index_;
  EventWalker walker_;
  std::string repaired_, alone_;
  ChunkResult result_;
  std::size_t max_event_bytes_ = 0;
  Behind behind_ = Behind::kOpen;
  bool stopped_ = false;  ///< the chunk ends inside an event
};

/// False when the event's text is not valid JSON in a place that the walk did not look at.
bool ChunkParser::Impl::finish_event(std::uint64_t offset) {
  if (walker_.event_text().size() > max_event_bytes_) {
    result_.reasons.add(Reason::kEventTooLong, offset);
  } else if (!rows.add(walker_, offset, result_.events, result_.reasons)) {
    return false;
  }
  ++result_.objects;
  return true;
}

/// Reads with the chunk's structural index. True when all is read; else `pos` is where the
/// tolerant way has to go on.
bool ChunkParser::Impl::parse_strict(const ChunkTask& task, std::size_t& pos) {
  if (!chunk_index_.build(task.text)) return false;
  walker_.point_at(task.text, chunk_index_);
  std::uint32_t token = 0;
  while (token < walker_.token_count()) {
    pos = walker_.position(token);
    switch (walker_.at(token)) {
      case '{':
        if (!read_object(task, token, pos)) return false;
        if (stopped_) return true;
        break;
      case ',':
        meet_comma(task.base_offset + pos);
        ++token;
        break;
      case ']':
        meet_close(task.base_offset + pos, pos);
        return true;
      default:
        return false;
    }
  }
  result_.consumed = task.text.size();
  return true;
}

/// The object at `token`; `pos` is its place. False: go on in the tolerant way at `pos`.
bool ChunkParser::Impl::read_object(const ChunkTask& task, std::uint32_t& token, std::size_t& pos) {
  const std::uint64_t offset = task.base_offset + pos;
  const Walk walk = walker_.walk(token);
  if (walk == Walk::kBroken || (walk == Walk::kIncomplete && task.is_final)) return false;
  if (walk == Walk::kIncomplete) {
    stopped_ = true;
    result_.consumed = pos;
    return true;
  }
  if (finish_event(offset)) {
    meet_object(task, offset);
    return true;
  }
  // Well-formed for the walk, but not inside a nested value: mend this event alone.
  std::size_t end = pos;
  if (!repair_one(task, end)) {
    stopped_ = true;
    result_.consumed = pos;
    return true;
  }
  walker_.point_at(task.text, chunk_index_);
  if (end == std::size_t{walker_.position(token - 1)} + 1) return true;
  pos = end;
  return false;
}

inline void ChunkParser::Impl::meet_object(const ChunkTask& task, std::uint64_t offset) {
  const bool is_missing = behind_ == Behind::kObject && !task.json_lines;
  if (is_missing) result_.reasons.add(Reason::kMissingComma, offset);
  behind_ = Behind::kObject;
}

inline void ChunkParser::Impl::meet_comma(std::uint64_t offset) {
  if (behind_ != Behind::kObject) result_.reasons.add(Reason::kExtraComma, offset);
  if (behind_ == Behind::kObject) behind_ = Behind::kComma;
}

void ChunkParser::Impl::meet_close(std::uint64_t offset, std::size_t pos) {
  if (behind_ == Behind::kComma) result_.reasons.add(Reason::kExtraComma, offset);
  result_.array_closed = true;
  result_.consumed = pos + 1;
}

/// Reads an event that is all of `text`. False if the strict way can't; then nothing is added.
bool ChunkParser::Impl::read_alone(std::string_view text, std::uint64_t offset) {
  alone_.assign(text);
  alone_.append(kTextPadding, '\0');
  const std::string_view padded(alone_.data(), text.size());
  if (!event_index_.build(padded)) return false;
  walker_.point_at(padded, event_index_);
  std::uint32_t token = 0;
  return walker_.walk(token) == Walk::kEvent && token == walker_.token_count() &&
         finish_event(offset);
}

/// Mends and reads the event at `pos`; false when more text is needed. What the strict way can read
/// is read as it stands: its text must not depend on what else is in the chunk. Of an object that
/// is no event only that is counted: the strict way does not look at the rest of it.
bool ChunkParser::Impl::repair_one(const ChunkTask& task, std::size_t& pos) {
  const std::size_t begin = pos;
  const std::uint64_t offset = task.base_offset + pos;
  const std::size_t kept = result_.events.size();
  ReasonCounts mended;
  const RepairResult repaired =
      repair_event(task.text, pos, task.is_final, task.base_offset, repaired_, mended);
  if (repaired.status == RepairStatus::kNeedMore) return false;
  pos = repaired.end;
  meet_object(task, offset);
  if (repaired.status == RepairStatus::kSkipped) {
    ++result_.objects;
    result_.reasons.merge(mended);
    behind_ = Behind::kComma;  // its comma was skipped with it
    return true;
  }
  if (read_alone(task.text.substr(begin, pos - begin), offset)) return true;
  if (!read_alone(repaired_, offset)) {
    ++result_.objects;
    result_.reasons.add(Reason::kUnreadableEvent, offset);
  }
  if (result_.events.size() > kept) result_.reasons.merge(mended);
  return true;
}

/// Where reading goes on behind a token that is no event. Positions only move on, so that what was
/// found once holds until it is passed: the text is searched once, whatever the number of tokens.
class ChunkParser::Impl::Landmarks {
 public:
  explicit Landmarks(std::string_view text) : text_(text) {}

  /// The next event behind `pos`; text.size() if there is none for sure.
  std::size_t event_behind(std::size_t pos) {
    if (event_ <= pos) {
      const EventStart next = find_event_start(text_, pos + 1);
      event_ = next.match == Match::kYes ? next.pos : text_.size();
    }
    return event_;
  }
  /// The next ']' behind `pos`, or text.size().
  std::size_t close_behind(std::size_t pos) {
    if (close_ <= pos) close_ = std::min(text_.find(']', pos + 1), text_.size());
    return close_;
  }

 private:
  std::string_view text_;
  std::size_t event_ = 0, close_ = 0;
};

/// Event by event from `pos`: for text that simdjson refuses as a whole.
void ChunkParser::Impl::parse_tolerant(const ChunkTask& task, std::size_t pos) {
  const std::string_view text = task.text;
  Landmarks landmarks(text);
  for (;;) {
    pos = skip_space(text, pos);
    if (pos >= text.size()) break;
    const char c = text[pos];
    if (c == '{') {
      if (!repair_one(task, pos)) {
        result_.consumed = pos;
        return;
      }
    } else if (c == ',') {
      meet_comma(task.base_offset + pos);
      ++pos;
    } else if (c == ']') {
      return meet_close(task.base_offset + pos, pos);
    } else {
      std::size_t next = landmarks.event_behind(pos);
      if (c != '[') next = std::min(next, landmarks.close_behind(pos));
      if (next >= text.size() && !task.is_final) {
        result_.consumed = pos;
        return;
      }
      result_.reasons.add(Reason::kNotAnObject, task.base_offset + pos);
      pos = next;
    }
  }
  result_.consumed = text.size();
}

/// Leaves out what stands before the first event. False when that takes more text.
bool ChunkParser::Impl::resync(ChunkTask& task) {
  const EventStart first = find_event_start(task.text, 0);
  const bool found = first.match == Match::kYes;
  const std::size_t skipped = found || !task.is_final ? first.pos : task.text.size();
  task.text.remove_prefix(skipped);
  task.base_offset += skipped;
  return found || task.is_final;
}

ChunkResult ChunkParser::Impl::parse(const ChunkTask& task) {
  result_ = ChunkResult{};
  behind_ = task.resync ? Behind::kComma : task.behind;
  stopped_ = false;
  max_event_bytes_ = task.max_event_bytes;
  ChunkTask rest = task;
  if (task.resync && !resync(rest)) {
    result_.resyncing = true;
  } else {
    const std::size_t expected = rest.text.size() / 300;
    result_.events.ts_ns.reserve(expected);
    std::size_t pos = 0;
    if (!parse_strict(rest, pos)) parse_tolerant(rest, pos);
  }
  result_.consumed += task.text.size() - rest.text.size();
  result_.behind = behind_;
  return std::move(result_);
}

ChunkParser::ChunkParser(std::size_t free_templates)
    : impl_(std::make_unique<Impl>(free_templates)) {}
ChunkParser::~ChunkParser() = default;
ChunkResult ChunkParser::parse(const ChunkTask& task) { return impl_->parse(task); }
ParserPools& ChunkParser::pools() { return impl_->rows.pools; }

}  // namespace traceap
