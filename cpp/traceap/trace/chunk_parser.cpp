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
  ChunkResult parse(const ChunkTask& task);
  RowBuilder rows;

 private:
  bool parse_strict(const ChunkTask& task, std::size_t& pos);
  void parse_tolerant(const ChunkTask& task, std::size_t pos);
  bool read_object(const ChunkTask& task, std::uint32_t& token, std::size_t& pos);
  bool repair_one(const ChunkTask& task, std::size_t& pos);
  bool finish_event(std::uint64_t offset);
  void meet_object(const ChunkTask& task, std::uint64_t offset);
  void meet_comma(std::uint64_t offset);
  void meet_close(std::uint64_t offset, std::size_t pos);

  StructuralIndex chunk_index_, event_index_;
  EventWalker walker_;
  std::string repaired_;
  ChunkResult result_;
  std::size_t max_event_bytes_ = 0;
  bool comma_ = true;     ///< an object may come: behind '[', ',' or at a chunk's begin
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
  if (!finish_event(offset)) {
    // Well-formed for the walk, but not inside a nested value: mend this event alone.
    std::size_t end = pos;
    if (!repair_one(task, end)) {
      stopped_ = true;
      result_.consumed = pos;
      return true;
    }
    walker_.point_at(task.text, chunk_index_);
    if (end != std::size_t{walker_.position(token - 1)} + 1) {
      pos = end;
      return false;
    }
  }
  meet_object(task, offset);
  return true;
}

inline void ChunkParser::Impl::meet_object(const ChunkTask& task, std::uint64_t offset) {
  if (!comma_ && !task.json_lines) result_.reasons.add(Reason::kMissingComma, offset);
  comma_ = false;
}

inline void ChunkParser::Impl::meet_comma(std::uint64_t offset) {
  if (comma_) result_.reasons.add(Reason::kExtraComma, offset);
  comma_ = true;
}

void ChunkParser::Impl::meet_close(std::uint64_t offset, std::size_t pos) {
  if (comma_ && pos > 0 && result_.objects > 0) result_.reasons.add(Reason::kExtraComma, offset);
  result_.array_closed = true;
  result_.consumed = pos + 1;
}

/// Mends and reads the event at `pos`; false when more text is needed.
bool ChunkParser::Impl::repair_one(const ChunkTask& task, std::size_t& pos) {
  const std::uint64_t offset = task.base_offset + pos;
  const RepairResult repaired =
      repair_event(task.text, pos, task.is_final, task.base_offset, repaired_, result_.reasons);
  if (repaired.status == RepairStatus::kNeedMore) return false;
  pos = repaired.end;
  if (repaired.status == RepairStatus::kSkipped) {
    ++result_.objects;
    return true;
  }
  const std::size_t size = repaired_.size();
  repaired_.append(kTextPadding, '\0');
  const std::string_view text(repaired_.data(), size);
  std::uint32_t token = 0;
  bool read = false;
  if (event_index_.build(text)) {
    walker_.point_at(text, event_index_);
    read = walker_.walk(token) == Walk::kEvent && finish_event(offset);
  }
  if (!read) {
    ++result_.objects;
    result_.reasons.add(Reason::kUnreadableEvent, offset);
  }
  return true;
}

/// Event by event from `pos`: for text that simdjson refuses as a whole.
void ChunkParser::Impl::parse_tolerant(const ChunkTask& task, std::size_t pos) {
  const std::string_view text = task.text;
  for (;;) {
    pos = skip_space(text, pos);
    if (pos >= text.size()) break;
    const char c = text[pos];
    if (c == '{') {
      const std::uint64_t offset = task.base_offset + pos;
      if (!repair_one(task, pos)) {
        result_.consumed = pos;
        return;
      }
      meet_object(task, offset);
    } else if (c == ',') {
      meet_comma(task.base_offset + pos);
      ++pos;
    } else if (c == ']') {
      return meet_close(task.base_offset + pos, pos);
    } else {
      const std::size_t next = find_event_start(text, pos + 1);
      const std::size_t close = text.find(']', pos + 1);
      if (std::min(next, close) >= text.size() && !task.is_final) {
        result_.consumed = pos;
        return;
      }
      result_.reasons.add(Reason::kNotAnObject, task.base_offset + pos);
      pos = c == '[' ? next : std::min({next, close, text.size()});
    }
  }
  result_.consumed = text.size();
}

ChunkResult ChunkParser::Impl::parse(const ChunkTask& task) {
  result_ = ChunkResult{};
  comma_ = true;
  stopped_ = false;
  max_event_bytes_ = task.max_event_bytes;
  ChunkTask rest = task;
  std::size_t skipped = 0;
  if (task.resync) {
    skipped = find_event_start(task.text, 0);
    if (skipped == task.text.size() && !task.is_final) {
      result_.resyncing = true;
      result_.consumed = skipped;
      return std::move(result_);
    }
    rest.text.remove_prefix(skipped);
    rest.base_offset += skipped;
  }
  const std::size_t expected = rest.text.size() / 300;
  result_.events.ts_ns.reserve(expected);
  std::size_t pos = 0;
  if (!parse_strict(rest, pos)) parse_tolerant(rest, pos);
  result_.consumed += skipped;
  return std::move(result_);
}

ChunkParser::ChunkParser() : impl_(std::make_unique<Impl>()) {}
ChunkParser::~ChunkParser() = default;
ChunkResult ChunkParser::parse(const ChunkTask& task) { return impl_->parse(task); }
const ParserPools& ChunkParser::pools() const { return impl_->rows.pools; }

}  // namespace traceap
