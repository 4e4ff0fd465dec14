#include "traceap/detect/queries/process_state.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/sums.hpp"
#include "traceap/detect/evidence.hpp"
#include "traceap/detect/queries/compile.hpp"
#include "traceap/detect/queries/host_work.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/stalls.hpp"

namespace traceap {
namespace {

// Names as process_state.py writes them.
constexpr std::string_view kThread = "processor time of a thread";
constexpr std::string_view kProcess = "state of the process";
constexpr std::string_view kMachine = "state of the machine";
constexpr std::string_view kCollection = "garbage_collection";

bool is_loader_range(std::string_view name) { return contains(name, "enumerate(DataLoader)"); }

/// The time between two samples of a thread, GPU clock, and what it did in it.
struct Slice {
  Interval time;
  std::int64_t ran_ns, waited_ns;
};

/// How much a counter grew, at most `limit_ns`: a trace may claim any number.
std::int64_t growth(std::int64_t before, std::int64_t after, std::int64_t limit_ns) {
  if (before < 0 || after <= before) return 0;
  return std::min(after - before, std::max<std::int64_t>(limit_ns, 0));
}

/// `ns` of an interval: its preferred parts first, the longest of them foremost.
void place(Interval within, std::int64_t ns, const IntervalSet& preferred,
           std::vector<Interval>& into) {
  IntervalSet parts = set_clip(preferred, within);
  IntervalSet others = set_complement(parts, within);
  std::stable_sort(parts.begin(), parts.end(), [](const Interval& a, const Interval& b) {
    return a.length_ns() > b.length_ns();
  });
  parts.insert(parts.end(), others.begin(), others.end());
  for (const Interval& part : parts) {
    const std::int64_t taken = std::min(ns, part.length_ns());
    if (taken <= 0) return;
    into.push_back({part.start_ns, part.start_ns + taken});
    ns -= taken;
  }
}

class StateReader {
 public:
  StateReader(const Signals& signals, ProcessState& state)
      : signals_(signals), state_(state), silent_(host_silence_of(signals)) {}

  void read() {
    const StringPool& strings = signals_.table.strings;
    const StringId thread = strings.find(kThread), process = strings.find(kProcess),
                   machine = strings.find(kMachine);
    const StringId collection = strings.find(kCollection);
    const EventTable& table = signals_.table;
    std::vector<Row> threads, processes, machines;
    for (Row r = 0; r < table.size(); ++r) {
      poll_interrupt();
      if (table.kind[r] == EventKind::kCounter) {
        if (table.name[r] == thread) threads.push_back(r);
        if (table.name[r] == process) processes.push_back(r);
        if (table.name[r] == machine) machines.push_back(r);
      } else if (collection != kNoString && table.category[r] == collection &&
                 table.is_complete(r) && in_profile(signals_, r)) {
        state_.collections.push_back(r);
      }
    }
    std::vector<Interval> collecting;
    for (const Row r : state_.collections) {
      collecting.push_back(signals_.on_gpu_clock(interval_of(table, r)));
    }
    state_.collecting = set_clip(make_union(std::move(collecting)), signals_.profiled);
    read_threads(threads);
    read_machine(machines);
    read_limits();
  }

 private:
  std::int64_t time_of(Row r) const {
    return signals_.on_gpu_clock({signals_.table.ts_ns[r], signals_.table.ts_ns[r]}).start_ns;
  }

  void read_threads(const std::vector<Row>& rows) {
    const EventTable& table = signals_.table;
    const ArgReader ran(table, "ran_ns"), waited(table, "waited_ns"), worker(table, "worker");
    const std::vector<std::uint8_t> awaited = awaited_threads();
    struct Last {
      std::int64_t at_ns, ran_ns, waited_ns;
    };
    std::map<std::pair<TrackId, std::int64_t>, Last> last;
    std::map<std::int64_t, std::vector<Slice>> workers;
    std::vector<Interval> starved;
    for (const Row r : rows) {
      poll_interrupt();
      const auto now_ran = ran.integer(r), now_waited = waited.integer(r);
      if (!now_ran || !now_waited) continue;
      const std::int64_t of_worker = worker.integer(r).value_or(0), at_ns = time_of(r);
      const TrackId track = table.track[r];
      const auto [found, is_first] =
          last.try_emplace({track, of_worker}, Last{at_ns, *now_ran, *now_waited});
      if (is_first) continue;
      const Last before = std::exchange(found->second, {at_ns, *now_ran, *now_waited});
      const Interval time{std::max(before.at_ns, signals_.profiled.start_ns),
                          std::min(at_ns, signals_.profiled.end_ns)};
      if (time.length_ns() <= 0) continue;
      const std::int64_t ran_ns = growth(before.ran_ns, *now_ran, time.length_ns());
      const std::int64_t waited_ns = growth(before.waited_ns, *now_waited, time.length_ns());
      const Slice slice{time, ran_ns, waited_ns};
      if (of_worker != 0) {
        workers[of_worker].push_back(slice);
      } else if (awaited[track] != 0) {
        state_.has_threads = true;
        place(time, waited_ns, silent_, starved);
      }
      if (of_worker == 0 && track == main_) {
        add_to(state_.ran_ns, ran_ns);
        add_to(state_.sampled_ns, time.length_ns());
        slices_.push_back(slice);
      }
    }
    state_.starved = make_union(std::move(starved));
    // A batch comes from one worker or the other: their mean is what it waits for.
    std::vector<Interval> of_workers;
    for (const auto& [pid, slices] : workers) {
      for (const Slice& slice : slices) {
        const auto share = slice.waited_ns / static_cast<std::int64_t>(workers.size());
        place(slice.time, share, IntervalSet(), of_workers);
      }
    }
    state_.workers_starved = make_union(std::move(of_workers));
  }

  /// Tracks of counters whose threads the run waits for. A counter has the track of its thread.
  std::vector<std::uint8_t> awaited_threads() {
    std::vector<std::uint8_t> awaited = awaited_tracks(signals_);
    main_ = signals_.tree.main_track;
    return awaited;
  }

  void read_machine(const std::vector<Row>& rows) {
    const EventTable& table = signals_.table;
    const ArgReader runnable(table, "runnable"), steal(table, "steal_ns"),
        throttled(table, "throttled_ns");
    std::vector<Interval> kept;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      state_.most_runnable = std::max(state_.most_runnable, runnable.integer(rows[i]).value_or(0));
      if (i == 0) continue;
      const Interval time{std::max(time_of(rows[i - 1]), signals_.profiled.start_ns),
                          std::min(time_of(rows[i]), signals_.profiled.end_ns)};
      if (time.length_ns() <= 0) continue;
      const auto grew = [&](const ArgReader& counter, std::int64_t most) {
        return growth(counter.integer(rows[i - 1]).value_or(0),
                      counter.integer(rows[i]).value_or(0), most);
      };
      add_to(state_.steal_ns, grew(steal, kMaxTimeNs));
      if (const std::int64_t ns = grew(throttled, time.length_ns()); ns > 0) {
        add_throttling(time, ns, kept);
      }
    }
    state_.throttled = make_union(std::move(kept));
    state_.starved = set_difference(state_.starved, state_.throttled);
  }

  /// Throttling is counted for a group as a whole. Kernels count it as waiting of the thread or
  /// (since 6.18) not at all: then it lies where the thread neither ran nor waited.
  void add_throttling(Interval step, std::int64_t ns, std::vector<Interval>& into) {
    const IntervalSet waits = set_clip(state_.starved, step);
    std::int64_t left_ns = ns;
    for (const Interval& wait : waits) {
      const std::int64_t taken = std::min(left_ns, wait.length_ns());
      if (taken > 0) into.push_back({wait.start_ns, wait.start_ns + taken});
      left_ns -= taken;
    }
    for (const Slice& slice : slices_) {
      if (left_ns <= 0) return;
      if (slice.time.end_ns <= step.start_ns || slice.time.start_ns >= step.end_ns) continue;
      const std::int64_t off_ns = slice.time.length_ns() - slice.ran_ns - slice.waited_ns;
      const std::int64_t taken = std::min(left_ns, off_ns);
      if (taken <= 0) continue;
      place(slice.time, taken, set_difference(silent_, state_.starved), into);
      left_ns -= taken;
    }
  }

  void read_limits();

  const Signals& signals_;
  ProcessState& state_;
  IntervalSet silent_;
  std::vector<Slice> slices_;  ///< of the thread that carries the steps
  TrackId main_ = kNoTrack;
};

/// A number that a small JSON object of numbers has under a key.
std::optional<double> number_in(std::string_view json, std::string_view key) {
  const std::string quoted = '"' + std::string(key) + "\":";
  const std::size_t at = json.find(quoted);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string text(json.substr(at + quoted.size(), 32));
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || !(value > 0) || !(value < 1e6)) return std::nullopt;
  return value;
}

void StateReader::read_limits() {
  for (const auto& [key, json] : signals_.table.metadata) {
    if (key != "ttap_process") continue;
    std::string compact;
    for (const char c : json) {
      if (c != ' ' && c != '\n') compact += c;
    }
    auto cores = number_in(compact, "usable_cores");
    if (!cores) cores = number_in(compact, "cores");
    if (cores) state_.cores = static_cast<std::int64_t>(*cores);
    state_.cpu_limit = number_in(compact, "cpu_limit");
  }
}

}  // namespace

IntervalSet host_silence_of(const Signals& signals) {
  const EventTable& table = signals.table;
  const EventTree& tree = signals.tree;
  const WorkRows works(signals);
  const LazyNames is_loader(table, is_loader_range);
  std::vector<Interval> active;
  // Rows inside each other come one behind the other: joining each to the last one keeps few.
  const auto add = [&](Row r) {
    const Interval time = signals.on_gpu_clock(interval_of(table, r));
    const bool joins = !active.empty() && active.back().start_ns <= time.start_ns &&
                       time.start_ns <= active.back().end_ns;
    if (!joins) return active.push_back(time);
    active.back().end_ns = std::max(active.back().end_ns, time.end_ns);
  };
  for (Row r : tree.host_rows) {
    poll_interrupt();
    if (works(r) || is_loader(r)) add(r);
  }
  const CompileRanges compiles = find_compile_ranges(signals);
  for (const auto* rows : {&compiles.first, &compiles.again}) {
    for (Row r : *rows) add(r);
  }
  return set_complement(make_union(std::move(active)), signals.profiled);
}

ProcessState find_process_state(const Signals& signals) {
  ProcessState state;
  const StringPool& strings = signals.table.strings;
  const bool is_there = strings.find(kThread) != kNoString || strings.find(kProcess) != kNoString ||
                        strings.find(kCollection) != kNoString;
  if (is_there) StateReader(signals, state).read();
  return state;
}

Finding without_process_state(const Signals& signals) {
  constexpr std::int64_t kMinGapNs = 10'000'000;  // as host_silence
  IntervalSet gaps = signals.on_host ? host_silence_of(signals) : IntervalSet();
  std::erase_if(gaps, [](const Interval& gap) { return gap.length_ns() < kMinGapNs; });
  if (is_material(signals, total_length_ns(gaps))) return abstain({"waiting for a processor"});
  Finding finding = absent();
  finding.applies = false;  // nobody is told that it is fine
  return finding;
}

}  // namespace traceap
