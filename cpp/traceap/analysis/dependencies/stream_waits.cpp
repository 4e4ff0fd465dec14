// Note [Partners of a wait]: the calls name neither stream nor event, so place and times say it.
//
// Which stream a record is of: programs record an event behind the work that it stands for, so that
// to which the thread launched last. Which stream waits: that to which the thread launches next.
//
// A wait directly behind a record (no launch between) is for that record: `wait_stream`, and the
// way in which collectives follow the current stream. If last and next launch are on different
// streams, the first is the source, unless work of a third stream explains the begin and the first
// does not. If they are on one stream, either the record or the wait is of another: taken is the
// work of another stream that explains the begin; else the first launch on another stream, if what
// was recorded explains its begin, or if no further wait stands before it; else another stream's
// work that this one has not waited for yet.
//
// Other waits are for earlier records that no wait has taken, and as many are looked at together as
// follow each other without a launch. They take the records of the stream whose work explains the
// begin, up to that one; else the newest of the stream recorded last. Older records of a stream are
// gone when one of it is taken: many events are recorded that nobody waits for.
//
// The end of work explains a begin that follows it within microseconds, if that work's own stream
// and launch had been ready before. Work that begins before a source has ended did not wait for it:
// such pairs are refused.

#include "traceap/analysis/dependencies/stream_waits.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

namespace traceap {
namespace {

// What waited begins this soon behind what it waited for.
constexpr std::int64_t kExplainsNs = 10'000;
// Clock steps: an end may lie this much behind the begin that waited for it.
constexpr std::int64_t kClockStepNs = 1'000;
// Records without a taker that are kept, streams and launches looked at; bounds hostile input.
constexpr std::size_t kMost = 64;

// Work whose event is recorded without another sign was launched fewer than so many calls before.
constexpr std::size_t kRecent = 24;

using Index = std::size_t;  // of a call
constexpr Index kNone = static_cast<Index>(-1);

class PartnerFinder {
 public:
  PartnerFinder(std::span<const StreamCall> calls, std::size_t streams)
      : calls_(calls), on_stream_(streams) {
    for (Index i = 0; i < calls.size(); ++i) {
      by_thread_[calls[i].thread].push_back(i);
      if (calls[i].kind == StreamCall::kLaunch) on_stream_[calls[i].stream].push_back(i);
    }
  }

  std::vector<StreamDependency> find() {
    for (Index i = 0; i < calls_.size(); ++i) {
      Thread& thread = threads_[calls_[i].thread];
      switch (calls_[i].kind) {
        case StreamCall::kLaunch:
          thread.launched_last = i;
          thread.recorded = kNone;
          break;
        case StreamCall::kRecord:
          record(i, thread);
          break;
        case StreamCall::kWait:
          wait(i, thread);
          break;
      }
    }
    return std::move(found_);
  }

 private:
  /// An event: behind which launch it stands, if that is known.
  struct Record {
    Index at;
    Index launch;
  };
  struct Thread {
    Index launched_last = kNone;
    Index recorded = kNone;   ///< record since the last launch that no wait has taken
    Index grouped_until = 0;  ///< waits up to here have been looked at
  };

  std::uint32_t stream_of(Index launch) const { return calls_[launch].stream; }

  void record(Index at, Thread& thread) {
    thread.recorded = at;
    if (thread.launched_last == kNone) return;
    const std::uint32_t stream = stream_of(thread.launched_last);
    open_.push_back({at, last_before(at, stream)});
    if (open_.size() > kMost) open_.erase(open_.begin());
  }

  void wait(Index at, Thread& thread) {
    if (at < thread.grouped_until) return;
    const std::size_t waits = waits_in_group(at);
    thread.grouped_until = group_end_;
    std::size_t used = 0;
    if (thread.recorded != kNone && thread.launched_last != kNone) {
      used = behind_record(at, thread, waits);
      if (used > 0) {
        std::erase_if(open_, [&](const Record& open) { return open.at == thread.recorded; });
        thread.recorded = kNone;
      }
    }
    if (used < waits) for_earlier_records(at, waits - used);
  }

  /// Waits that follow each other; sets where they end.
  std::size_t waits_in_group(Index at) {
    const std::vector<Index>& mine = by_thread_[calls_[at].thread];
    std::size_t waits = 0;
    for (auto it = std::lower_bound(mine.begin(), mine.end(), at);
         it != mine.end() && calls_[*it].kind == StreamCall::kWait && waits < kMost; ++it) {
      ++waits;
      group_end_ = *it + 1;
    }
    return waits;
  }

  // ---- waits directly behind a record

  /// How many of the waits are for it.
  std::size_t behind_record(Index at, const Thread& thread, std::size_t waits) {
    const Index next = next_launch(at, {});
    if (next == kNone) return 0;
    const std::uint32_t stream = stream_of(thread.launched_last);
    const Index source = last_before(thread.recorded, stream);
    if (stream_of(next) == stream) {
      if (waits == 1) return beside(at, thread.recorded, source, next);
      fork(source, waits);
      return waits;  // the rest are for streams that get no work
    }
    const Index other = explaining(thread.recorded, next);
    const bool is_other = other != kNone && !explains(source, next);
    if (!add(is_other ? other : source, next)) return 0;
    return 1 + (waits > 1 ? fork(source, waits - 1) : 0);
  }

  /// Last and next launch are on one stream: the record or the wait is of another.
  std::size_t beside(Index at, Index recorded, Index source, Index next) {
    if (const Index other = explaining(recorded, next); other != kNone) return add(other, next);
    const Index later = next_launch(at, stream_of(next));
    if (later != kNone && (explains(source, later) || !waits_between(at, later))) {
      return add(source, later);
    }
    const Index unawaited = latest_unawaited(recorded, next);
    return unawaited != kNone && add(unawaited, next);
  }

  /// First launches on other streams until the thread waits again.
  std::size_t fork(Index source, std::size_t most) {
    const std::vector<Index>& mine = by_thread_[calls_[group_end_ - 1].thread];
    std::set<std::uint32_t> seen{stream_of(source)};
    std::size_t used = 0;
    for (auto it = std::lower_bound(mine.begin(), mine.end(), group_end_);
         it != mine.end() && calls_[*it].kind != StreamCall::kWait && used < most; ++it) {
      if (calls_[*it].kind != StreamCall::kLaunch) continue;
      if (!seen.insert(stream_of(*it)).second || is_found(source, *it)) continue;
      if (add(source, *it)) ++used;
    }
    return used;
  }

  /// Of the last work of each other stream before a call, that which explains a begin.
  Index explaining(Index before, Index next) const {
    return best_of_others(
        before, next, [&](Index launch) { return explains(launch, next); },
        [&](Index launch) { return calls_[launch].end_ns; });
  }
  /// ... that which was launched last among those that the stream has not waited for.
  Index latest_unawaited(Index before, Index next) const {
    return best_of_others(
        before, next,
        [&](Index launch) {
          return is_possible(launch, next) && !is_awaited(launch, next) &&
                 launch + kRecent > before;
        },
        [](Index launch) { return static_cast<std::int64_t>(launch); });
  }
  template <typename Accept, typename Rank>
  Index best_of_others(Index before, Index next, Accept accept, Rank rank) const {
    Index best = kNone;
    const auto streams = static_cast<std::uint32_t>(std::min(on_stream_.size(), kMost));
    for (std::uint32_t s = 0; s < streams; ++s) {
      if (s == stream_of(next)) continue;
      const Index launch = last_before(before, s);
      if (launch == kNone || !accept(launch) || is_found(launch, next)) continue;
      if (best == kNone || rank(launch) > rank(best)) best = launch;
    }
    return best;
  }

  // ---- waits for earlier records

  void for_earlier_records(Index at, std::size_t waits) {
    const Index next = next_launch(at, {});
    while (next != kNone && waits > 0) {
      const std::size_t taken = take_from_a_stream(next, waits);
      if (taken == 0) return;
      waits -= taken;
    }
  }

  std::size_t take_from_a_stream(Index next, std::size_t most) {
    const Index chosen = choose_record(next);
    if (chosen == kNone) return 0;
    const std::uint32_t stream = stream_of(open_[chosen].launch);
    const bool exact = explains(open_[chosen].launch, next);
    std::vector<Index> candidates;  // records of the stream, oldest first
    for (Index i = 0; i < open_.size() && (!exact || i <= chosen); ++i) {
      if (stream_of(open_[i].launch) == stream && is_candidate(open_[i], next)) {
        candidates.push_back(i);
      }
    }
    const std::size_t count = std::min(most, candidates.size());
    for (std::size_t i = candidates.size() - count; i < candidates.size(); ++i) {
      add(open_[candidates[i]].launch, next);
    }
    drop_up_to(candidates.back(), stream);
    return count;
  }

  /// The record that explains the begin, else the newest.
  Index choose_record(Index next) const {
    Index newest = kNone;
    for (Index i = open_.size(); i-- > 0;) {
      if (!is_candidate(open_[i], next)) continue;
      if (explains(open_[i].launch, next)) return i;
      if (newest == kNone) newest = i;
    }
    return newest;
  }
  bool is_candidate(const Record& record, Index next) const {
    return stream_of(record.launch) != stream_of(next) && is_possible(record.launch, next) &&
           !is_awaited(record.launch, next);
  }
  void drop_up_to(Index newest, std::uint32_t stream) {
    std::vector<Record> left;
    for (Index i = 0; i < open_.size(); ++i) {
      if (i > newest || stream_of(open_[i].launch) != stream) left.push_back(open_[i]);
    }
    open_ = std::move(left);
  }

  // ---- shared

  /// What a call's thread launches next, on any stream but one.
  Index next_launch(Index at, std::optional<std::uint32_t> but) {
    const std::vector<Index>& mine = by_thread_[calls_[at].thread];
    auto it = std::upper_bound(mine.begin(), mine.end(), at);
    for (std::size_t n = 0; n < kMost && it != mine.end(); ++n, ++it) {
      if (calls_[*it].kind == StreamCall::kLaunch && calls_[*it].stream != but) return *it;
    }
    return kNone;
  }
  bool waits_between(Index at, Index later) {
    const std::vector<Index>& mine = by_thread_[calls_[at].thread];
    for (auto it = std::upper_bound(mine.begin(), mine.end(), at); it != mine.end() && *it < later;
         ++it) {
      if (calls_[*it].kind == StreamCall::kWait) return true;
    }
    return false;
  }
  /// The last work put on a stream before a call.
  Index last_before(Index at, std::uint32_t stream) const {
    const std::vector<Index>& mine = on_stream_[stream];
    const auto it = std::lower_bound(mine.begin(), mine.end(), at);
    return it == mine.begin() ? kNone : *(it - 1);
  }

  bool is_possible(Index source, Index next) const {
    return source != kNone && calls_[source].end_ns <= calls_[next].begin_ns + kClockStepNs;
  }
  bool explains(Index source, Index next) const {
    return is_possible(source, next) &&
           calls_[next].begin_ns - calls_[source].end_ns <= kExplainsNs &&
           calls_[source].end_ns > calls_[next].ready_ns;
  }
  /// Has the stream waited for this or for later work of the source's stream before?
  bool is_awaited(Index source, Index next) const {
    const auto found = awaited_.find({stream_of(next), stream_of(source)});
    return found != awaited_.end() && found->second.source >= source && found->second.next != next;
  }
  bool is_found(Index source, Index next) const {
    for (auto it = found_.rbegin(); it != found_.rend(); ++it) {
      if (it->destination != calls_[next].row) return false;
      if (it->source == calls_[source].row) return true;
    }
    return false;
  }
  bool add(Index source, Index next) {
    if (!is_possible(source, next) || stream_of(source) == stream_of(next)) return false;
    if (is_found(source, next)) return true;
    Awaited& awaited = awaited_[{stream_of(next), stream_of(source)}];
    if (awaited.source == kNone || awaited.source <= source) awaited = {source, next};
    found_.push_back({calls_[source].row, calls_[next].row});
    return true;
  }

  struct Awaited {
    Index source = kNone, next = kNone;
  };

  std::span<const StreamCall> calls_;
  std::vector<std::vector<Index>> on_stream_;  ///< launches
  std::map<TrackId, std::vector<Index>> by_thread_;
  std::map<TrackId, Thread> threads_;
  std::vector<Record> open_;  ///< records that no wait has taken
  /// (waiting stream, source stream): the last launch that was awaited.
  std::map<std::pair<std::uint32_t, std::uint32_t>, Awaited> awaited_;
  Index group_end_ = 0;
  std::vector<StreamDependency> found_;
};

}  // namespace

std::vector<StreamDependency> find_stream_dependencies(std::span<const StreamCall> calls,
                                                       std::size_t streams) {
  return PartnerFinder(calls, streams).find();
}

}  // namespace traceap
