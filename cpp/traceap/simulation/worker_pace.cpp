// Note [Worker pace]: worker processes of a loader are not in the trace. A fetch that waited for
// them shows when they had its batch ready: they need the time from one such moment to the next for
// the batches in between, whatever the training process does. So an edge leads from the end of one
// fetch that waited to where the wait of the next one ends, and the fetch itself costs what taking
// a finished batch does. The first one in a recording has no such edge: what it waited for began
// earlier.
//
// What a fetch costs that found its batch ready is told by the quicker quarter of them, if these
// are quick enough to be such (kMostTakeNs). One that took kLateNs longer waited, if that is also a
// part of the time since the fetch before (1 / kLatePart) that jitter can't explain: a loader that
// keeps up has batches in stock. Where even the quicker quarter is slower all of them waited, and
// taking a batch is assumed to cost kTakeNs. Where frames are recorded the longest stretch of a
// fetch must also lie in one that blocks: unpickling a large batch is no wait.

#include "traceap/simulation/worker_pace.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "traceap/analysis/dependencies/blocked_frames.hpp"
#include "traceap/base/interrupt.hpp"
#include "traceap/base/text.hpp"

namespace traceap {
namespace {

// To take a finished batch off the queue: mapping shared memory and waking up take 0.07 to 0.09 ms
// in the prompt fetches of public traces with workers; large batches and slow machines more.
constexpr std::int64_t kTakeNs = 200'000;
constexpr std::int64_t kMostTakeNs = 2'000'000;
// As the rule worker_starvation has it.
constexpr std::int64_t kLateNs = 1'000'000;
// A public run whose four workers keep up has fetches of 0.1 to 1.4 ms in steps of 126 ms.
constexpr std::int64_t kLatePart = 20;

bool is_worker_fetch(std::string_view name) {
  return contains(name, "MultiProcess") && contains(name, "__next__");
}

struct Fetch {
  Row row;
  std::int64_t length_ns;
  Point wait_end;  ///< where its longest stretch ends
};

class PaceLinker {
 public:
  PaceLinker(const ExecutionGraph& graph, const GraphRank& rank, std::size_t index)
      : graph_(graph), table_(*rank.table), tree_(*rank.tree), index_(index) {}

  /// Adds the rank's edges and returns what taking a batch costs.
  std::int64_t link(std::vector<TypedEdge>& edges) const {
    const std::vector<Fetch> fetches = find_fetches();
    if (fetches.empty()) return kTakeNs;
    const std::int64_t prompt_ns = quicker_quarter_ns(fetches);
    const bool all_waited = prompt_ns > kMostTakeNs;
    const std::int64_t take_ns = all_waited ? kTakeNs : prompt_ns;
    const BlockedFrames blocked(table_, tree_);
    Row late = kNoRow;  // the last one
    for (std::size_t i = 0; i < fetches.size(); ++i) {
      const Fetch& fetch = fetches[i];
      const std::int64_t beyond_ns = fetch.length_ns - take_ns;
      const std::int64_t since_ns =
          i == 0 || all_waited ? 0 : time(end(fetch.row)) - time(end(fetches[i - 1].row));
      if (beyond_ns <= kLateNs || beyond_ns < since_ns / kLatePart) continue;
      if (!may_have_waited(fetch, blocked)) continue;
      const Row before = std::exchange(late, fetch.row);
      // Fetches of two threads may overlap.
      if (before == kNoRow || time(end(before)) > time(fetch.wait_end)) continue;
      edges.push_back({end(before), fetch.wait_end, fetch.row, DependencyKind::kWorkerPace,
                       Evidence::kInferred});
    }
    return take_ns;
  }

 private:
  Point begin(Row row) const { return graph_.begin_of[index_][row]; }
  Point end(Row row) const { return graph_.end_of[index_][row]; }
  std::int64_t time(Point point) const { return graph_.points.time_ns[point]; }

  /// Outermost fetches in the order in which they end.
  std::vector<Fetch> find_fetches() const {
    std::vector<Fetch> fetches;
    std::vector<std::uint8_t> known(table_.strings.size(), 0);  // 1: no, 2: yes
    const auto is_fetch = [&](Row row) {
      std::uint8_t& answer = known[table_.name[row]];
      if (answer == 0) answer = is_worker_fetch(table_.name_of(row)) ? 2 : 1;
      return answer == 2;
    };
    for (const TrackId track : tree_.host_tracks) {
      const std::uint32_t last = tree_.host_offsets[track + 1];
      for (std::uint32_t i = tree_.host_offsets[track]; i < last;) {
        poll_interrupt();
        const Row row = tree_.host_rows[i];
        const bool found = is_fetch(row) && !is_api_call(table_.kind[row]);
        if (found && end(row) != kNoPoint) fetches.push_back(measure(row));
        i = found ? tree_.subtree_end[i] : i + 1;
      }
    }
    std::stable_sort(fetches.begin(), fetches.end(), [&](const Fetch& a, const Fetch& b) {
      return time(end(a.row)) < time(end(b.row));
    });
    return fetches;
  }

  Fetch measure(Row row) const {
    Point longest = begin(row) + 1;
    for (Point p = longest; p <= end(row); ++p) {
      if (time(p) - time(p - 1) > time(longest) - time(longest - 1)) longest = p;
    }
    return {row, time(end(row)) - time(begin(row)), longest};
  }

  static std::int64_t quicker_quarter_ns(const std::vector<Fetch>& fetches) {
    std::vector<std::int64_t> lengths;
    for (const Fetch& fetch : fetches) lengths.push_back(fetch.length_ns);
    const auto at = lengths.begin() + static_cast<std::ptrdiff_t>((lengths.size() - 1) / 4);
    std::nth_element(lengths.begin(), at, lengths.end());
    return *at;
  }

  bool may_have_waited(const Fetch& fetch, const BlockedFrames& blocked) const {
    bool any_frame = false;
    for (Point p = begin(fetch.row) + 1; p < end(fetch.row) && !any_frame; ++p) {
      any_frame = table_.kind[graph_.points.row[p]] == EventKind::kPythonFunction;
    }
    return !any_frame || blocked(innermost_before(fetch.wait_end));
  }
  /// The row that is open in the stretch before a point of a thread.
  Row innermost_before(Point point) const {
    const EdgeId first = graph_.points.in_offsets[point];
    for (EdgeId e = first; e < graph_.points.in_offsets[point + 1]; ++e) {
      if (graph_.points.kind[e] == DependencyKind::kProgramOrder) return graph_.points.owner[e];
    }
    return kNoRow;
  }

  const ExecutionGraph& graph_;
  const EventTable& table_;
  const EventTree& tree_;
  const std::size_t index_;
};

}  // namespace

WorkerPace worker_pace(const ExecutionGraph& graph, std::span<const GraphRank> ranks) {
  WorkerPace pace;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    pace.take_ns.push_back(PaceLinker(graph, ranks[rank], rank).link(pace.edges));
  }
  return pace;
}

}  // namespace traceap
