#include "traceap/trace/read.hpp"

#include <algorithm>
#include <deque>
#include <memory>
#include <thread>

#include "traceap/base/error.hpp"
#include "traceap/table/json_text.hpp"
#include "traceap/trace/assemble.hpp"
#include "traceap/trace/container.hpp"
#include "traceap/trace/decompress.hpp"
#include "traceap/trace/foreign_files.hpp"
#include "traceap/trace/parser_threads.hpp"
#include "traceap/trace/repair.hpp"
#include "traceap/trace/unread_text.hpp"

namespace traceap {

namespace {

constexpr auto kNone = std::string_view::npos;
constexpr std::size_t kHeadBytes = std::size_t{64} << 10;
/// A chunk in which no event's border can be found grows up to this; then it is cut anywhere.
constexpr std::size_t kMaxUncutBytes = std::size_t{4} << 20;
/// See Note [Closed arrays].
constexpr std::size_t kFirstStepBytes = std::size_t{1} << 10;

/// Place to cut `text` before: an object behind `}` or `},` whose first key is an event's. The
/// parser finds out if the guess was wrong (a look-alike inside a string or a nested list).
std::size_t find_cut(std::string_view text) {
  std::size_t pos = text.size();
  while (pos > 0) {
    pos = text.rfind('{', pos - 1);
    if (pos == kNone || pos == 0) break;
    if (match_event_start(text, pos) != Match::kYes) continue;
    std::size_t before = pos;
    const auto back = [&] {
      while (before > 0 && is_json_space(text[before - 1])) --before;
    };
    back();
    if (before > 0 && text[before - 1] == ',') --before;
    back();
    if (before > 0 && text[before - 1] == '}') return pos;
  }
  return kNone;
}

class Reader {
 public:
  Reader(TextSource& source, const std::string& name, std::uint64_t total_bytes,
         const ReadOptions& options)
      : source_(source),
        options_(options),
        total_bytes_(total_bytes),
        chunk_bytes_(std::max<std::size_t>(options.chunk_bytes, 1)),
        parsers_(thread_count(options.threads), options.free_templates),
        ahead_bytes_(most_ahead()) {
    table_.path = name;
  }

  EventTable read() {
    Section section = read_head_text();
    while (section != Section::kEnd) {
      section = section == Section::kEvents ? read_events() : read_tail();
    }
    finish();
    return std::move(table_);
  }

 private:
  enum class Section { kEvents, kTail, kEnd };

  static constexpr unsigned kMostThreads = 256;  // each has a parser with buffers of its own

  static unsigned thread_count(unsigned wanted) {
    if (wanted == 0) wanted = std::max(1U, std::thread::hardware_concurrency());
    return wanted > 1 ? std::min(wanted, kMostThreads) : 0;
  }

  // Note [Closed arrays]: the array of events may be closed and another one opened anywhere, and
  // what was read ahead has to be taken back then. Behind a closed array the reader goes ahead by
  // little, and by twice as much with every chunk that does not close: so it takes back no more
  // than it has read since, however many arrays there are.
  std::size_t most_ahead() const {
    return std::max((parsers_.thread_count() + 1) * chunk_bytes_, 2 * kFirstStepBytes);
  }
  bool is_careful() const { return ahead_bytes_ < most_ahead(); }

  void fetch(std::size_t bytes) {
    unread_.append([&](std::string& text) { fetch(text, bytes); });
  }
  /// Appends up to `bytes` of text.
  void fetch(std::string& text, std::size_t bytes) {
    const std::size_t old_size = text.size();
    text.reserve(old_size + bytes + kTextPadding);
    text.resize(old_size + bytes);
    const std::size_t got = source_.read(text.data() + old_size, bytes);
    text.resize(old_size + got);
    at_end_ = got < bytes;
    fetched_ += got;
    if (options_.progress) options_.progress(source_.compressed_bytes_read(), total_bytes_);
  }

  // --- before the events ---

  Section read_head_text() {
    for (;;) {
      fetch(std::max(kHeadBytes, unread_.size()));
      const std::string_view head = unread_.view();
      if (skip_space(head, 0) == head.size() && !at_end_) {
        unread_.drop(head.size());  // blank text before the trace is dropped as it comes
        continue;
      }
      ContainerResult found = read_head(head, at_end_, members_);
      const bool give_up = at_end_ || head.size() >= kMaxHeadBytes;
      const bool unsure = found.status == ContainerStatus::kNeedMore;
      if (found.status == ContainerStatus::kBroken || unsure) recover_head(head, give_up, found);
      if (!has_events(found.status) && found.status != ContainerStatus::kEnd && !give_up) continue;
      if (!has_events(found.status)) refuse(head);
      json_lines_ = found.status == ContainerStatus::kJsonLines;
      in_object_ = found.status == ContainerStatus::kEvents;
      unread_.drop(found.pos);
      return Section::kEvents;
    }
  }

  static bool has_events(ContainerStatus status) {
    return status == ContainerStatus::kEvents || status == ContainerStatus::kBareArray ||
           status == ContainerStatus::kJsonLines;
  }

  /// A head that is no JSON: go to `traceEvents`, or, when all text is there, to the first thing
  /// that looks like an event.
  void recover_head(std::string_view head, bool give_up, ContainerResult& found) {
    std::size_t events = find_trace_events(head);
    if (events == kNone && give_up) {
      const EventStart first = find_event_start(head, 0);
      if (first.match == Match::kYes) events = first.pos;
    }
    if (events == kNone) return;
    members_.clear();
    reasons_.add(Reason::kBrokenHeader, unread_.offset());
    found = {ContainerStatus::kEvents, events};
  }

  [[noreturn]] void refuse(std::string_view head) {
    if (const std::string_view foreign = describe_foreign_file(head); !foreign.empty()) {
      throw ParseError(table_.path, 0, std::string(foreign));
    }
    const std::string_view text = trim_space(head.substr(0, 200));
    std::string shown;
    append_json_string(shown, text.substr(0, 40));
    throw ParseError(table_.path, 0,
                     "expected a Chrome trace (an object with traceEvents, an array or lines of "
                     "events), found " +
                         (text.empty() ? "no text" : shown) + damage_text());
  }
  std::string damage_text() const { return source_.damage() ? "; " + *source_.damage() : ""; }

  // --- events ---

  Section read_events() {
    while (const std::shared_ptr<ParseJob> job = next_result()) {
      table_.total_objects += job->result.objects;
      reasons_.merge(job->result.reasons);
      resync_ = job->result.resyncing;
      const std::size_t consumed = job->result.consumed;
      assembler_.add(job->result.events, job->parser);
      if (job->result.array_closed) return leave_events(*job, consumed);
      ahead_bytes_ = std::min(2 * ahead_bytes_, most_ahead());
      behind_ = job->result.behind;
      keep_carry(*job, consumed);
    }
    if (in_object_) reasons_.add(Reason::kUnclosedTrace, fetched_);
    return Section::kEnd;
  }

  /// The oldest chunk, parsed; null when no text is left. A chunk that follows on an event cut in
  /// two is parsed here, with that event's begin before it; so is one that stands behind something
  /// else than was guessed.
  std::shared_ptr<ParseJob> next_result() {
    fill_queue();
    const bool is_guessed = queue_.empty() || queue_.front()->task.behind == behind_;
    const bool goes_on = !carry_.empty() || resync_ || !is_guessed;
    std::shared_ptr<ParseJob> job;
    if (!queue_.empty()) {
      job = queue_.front();
      queue_.pop_front();
      if (!goes_on) {
        parsers_.wait(*job);
        return job;
      }
      parsers_.withdraw(job);
    } else if (!carry_.empty()) {
      job = std::make_shared<ParseJob>();
      job->task.is_final = true;
      job->task.json_lines = json_lines_;
      job->task.max_event_bytes = options_.max_event_bytes;
    } else {
      return nullptr;
    }
    prepend_carry(*job);
    parsers_.run_here(*job);
    return job;
  }

  void prepend_carry(ParseJob& job) {
    const std::size_t wanted = 2 * carry_.size();  // keeps the work linear for a long event
    job.task.behind = behind_;
    if (!carry_.empty()) {
      job.text.insert(0, carry_);
      job.task.base_offset = carry_offset_;
      carry_.clear();
    }
    job.task.resync = resync_;
    while (job.text.size() < wanted && !job.task.is_final) {
      fill_queue();
      if (queue_.empty()) {
        job.task.is_final = true;
        break;
      }
      parsers_.withdraw(queue_.front());
      job.text += queue_.front()->text;
      job.task.is_final = queue_.front()->task.is_final;
      queue_.pop_front();
    }
  }

  void keep_carry(const ParseJob& job, std::size_t consumed) {
    carry_.assign(job.text, consumed);
    carry_offset_ = job.task.base_offset + consumed;
    // The end of an event that is only somewhat too long is still found, so that it is left out and
    // nothing else.
    if (carry_.size() <= 2 * options_.max_event_bytes) return;
    reasons_.add(Reason::kEventTooLong, carry_offset_);
    ++table_.total_objects;
    carry_.clear();
    resync_ = true;
  }

  /// One job for every thread and one more to be ready, or fewer behind a closed array.
  void fill_queue() {
    const std::size_t jobs =
        std::clamp<std::size_t>(ahead_bytes_ / chunk_bytes_, 1, parsers_.thread_count() + 1);
    while (queue_.size() < jobs) {
      std::shared_ptr<ParseJob> job = next_chunk();
      if (!job) return;
      queue_.push_back(job);
      parsers_.submit(job);
    }
  }

  /// The next piece of text, cut at an event's border if one can be found.
  std::shared_ptr<ParseJob> next_chunk() {
    const std::size_t cut = find_next_cut();
    if (cut == 0) return nullptr;
    auto job = std::make_shared<ParseJob>();
    job->task.base_offset = unread_.offset();
    job->text = unread_.take(cut);
    job->task.is_final = at_end_ && unread_.size() == 0;
    job->task.json_lines = json_lines_;
    job->task.max_event_bytes = options_.max_event_bytes;
    job->task.behind = next_behind_;
    next_behind_ = guess_behind(job->text, next_behind_);
    return job;
  }

  /// What the text after a chunk stands behind, by the chunk's last character.
  static Behind guess_behind(std::string_view chunk, Behind before) {
    const std::string_view text = trim_space(chunk);
    if (text.empty()) return before;
    return text.back() == '}' ? Behind::kObject : Behind::kComma;
  }

  /// Length of the next chunk; 0 at the end.
  std::size_t find_next_cut() {
    const std::size_t longest =
        std::max(chunk_bytes_, std::min(options_.max_event_bytes, kMaxUncutBytes));
    for (std::size_t wanted = std::min(chunk_bytes_, ahead_bytes_);; wanted *= 2) {
      if (unread_.size() < wanted && !at_end_) {
        fetch(std::max(wanted, chunk_bytes_) - unread_.size());
      }
      const std::string_view text = unread_.view().substr(0, wanted);
      if (at_end_ && text.size() == unread_.size()) return text.size();
      const std::size_t cut = find_cut(text);
      if (cut != kNone) return cut;
      if (wanted >= longest || is_careful()) return text.size();
    }
  }

  /// Takes back the text behind ']': the rest of this chunk and those under way.
  Section leave_events(const ParseJob& job, std::size_t consumed) {
    std::vector<std::string_view> ahead{std::string_view(job.text).substr(consumed)};
    for (const std::shared_ptr<ParseJob>& later : queue_) {
      parsers_.withdraw(later);
      ahead.push_back(later->text);
    }
    unread_.put_back(ahead);
    queue_.clear();
    behind_ = next_behind_ = Behind::kOpen;
    ahead_bytes_ = kFirstStepBytes;
    resync_ = false;
    return Section::kTail;
  }

  // --- behind the events ---

  Section read_tail() {
    while (in_object_) {
      const ContainerResult found = read_members(unread_.view(), 0, at_end_, members_);
      unread_.drop(found.pos);
      if (found.status == ContainerStatus::kEvents) return Section::kEvents;
      if (found.status != ContainerStatus::kNeedMore) break;
      if (at_end_) {
        reasons_.add(Reason::kUnclosedTrace, fetched_);
        return Section::kEnd;
      }
      if (unread_.size() > kMaxHeadBytes) {
        reasons_.add(Reason::kMembersLeftOut, unread_.offset());
        return Section::kEnd;
      }
      fetch(std::max(kHeadBytes, unread_.size()));
    }
    const std::uint64_t end = unread_.offset();
    if (has_text_left()) reasons_.add(Reason::kTextAfterEnd, end);
    return Section::kEnd;
  }

  bool has_text_left() {
    for (;;) {
      if (skip_space(unread_.view(), 0) < unread_.size()) return true;
      if (at_end_) return false;
      unread_.drop(unread_.size());
      fetch(kHeadBytes);
    }
  }

  // --- the table ---

  void finish() {
    if (assembler_.empty()) {
      throw ParseError(table_.path, 0,
                       "expected at least one trace event, found " +
                           std::to_string(table_.total_objects) +
                           " objects of which none is an event" + damage_text());
    }
    unread_ = {};
    assembler_.finish(parsers_.take_pools(), members_.take());
    table_.text_bytes = fetched_;
    Diagnostics read;
    reasons_.write_to(read);
    const ReasonText& left_out = text_of(Reason::kMembersLeftOut);
    read.add(left_out.code, left_out.message, members_.left_out());
    if (source_.damage()) {
      read.add("damaged_stream", *source_.damage() + "; what came before is kept", 1, fetched_);
    }
    read.merge(table_.diagnostics);
    table_.diagnostics = std::move(read);
  }

  TextSource& source_;
  const ReadOptions& options_;
  std::uint64_t total_bytes_;
  std::size_t chunk_bytes_;
  ParserThreads parsers_;
  EventTable table_;
  Assembler assembler_{table_};
  MemberList members_;
  ReasonCounts reasons_;
  std::deque<std::shared_ptr<ParseJob>> queue_;
  UnreadText unread_;
  std::size_t ahead_bytes_;  ///< text that may be in jobs at once
  std::string carry_;        ///< begin of an event that a chunk's end cut in two
  std::uint64_t carry_offset_ = 0;
  Behind behind_ = Behind::kOpen;       ///< what the oldest chunk stands behind
  Behind next_behind_ = Behind::kOpen;  ///< what the next chunk stands behind, most likely
  std::uint64_t fetched_ = 0;
  bool at_end_ = false;
  bool json_lines_ = false;
  bool in_object_ = false;  ///< traceEvents is a member of a top-level object
  bool resync_ = false;     ///< inside an event that was given up
};

EventTable read_all(RawInput& raw, const std::string& name, const ReadOptions& options) {
  return with_text(raw, [&](TextSource& source) {
    return Reader(source, name, raw.total_bytes(), options).read();
  });
}

}  // namespace

EventTable read_trace(const std::string& path, const ReadOptions& options) {
  return read_all(*open_file(path), path, options);
}

EventTable read_trace_bytes(std::string_view bytes, const std::string& name,
                            const ReadOptions& options) {
  return read_all(*open_bytes(bytes), name, options);
}

}  // namespace traceap
