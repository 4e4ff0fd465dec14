#include "traceap/analysis/idle/unawaited.hpp"

#include <algorithm>
#include <optional>

#include "traceap/base/interrupt.hpp"

namespace traceap {
namespace {

class UnawaitedFinder {
 public:
  UnawaitedFinder(const EventTable& table, const EventTree& tree, const GpuIntervals& gpu)
      : table_(table), tree_(tree), gpu_(gpu) {
    for (const Row r : tree.gpu_rows) {
      poll_interrupt();
      if (tree.gpu_class[r] == GpuClass::kCompute) kernels_.push_back(r);
      if (tree.gpu_class[r] == GpuClass::kCommunication) by_end_.push_back(r);
    }
    std::stable_sort(by_end_.begin(), by_end_.end(),
                     [&](Row a, Row b) { return table.end_ns(a) < table.end_ns(b); });
    read_calls();
  }

  Unawaited find() const {
    std::vector<Interval> sure, possible;
    for (const Interval& piece : set_difference(gpu_.communication, gpu_.compute)) {
      poll_interrupt();
      add(piece, sure, possible);
    }
    const auto alone = [&](std::vector<Interval> parts) {
      return set_difference(make_union(std::move(parts)), gpu_.memcpy);
    };
    return {alone(std::move(sure)), alone(std::move(possible))};
  }

 private:
  /// Calls that make a stream of computation wait, and host calls that wait.
  void read_calls() {
    std::vector<std::vector<std::int64_t>> open(table_.tracks.size());
    std::vector<Interval> waits;
    for (Row r = 0; r < table_.size(); ++r) {
      poll_interrupt();
      const ApiClass api = tree_.api[r];
      if (api == ApiClass::kNone || !table_.is_complete(r)) continue;
      if (is_synchronisation(api) || api == ApiClass::kCopy || api == ApiClass::kDeviceFree) {
        waits.push_back(on_gpu_clock(r));
      }
      std::vector<std::int64_t>& waiting = open[table_.track[r]];
      if (api == ApiClass::kStreamWaitEvent) {
        tells_waits_ = true;
        waiting.push_back(table_.ts_ns[r]);
      } else if (starts_gpu_work(api)) {
        if (!launches_collective(r)) {
          stream_waits_.insert(stream_waits_.end(), waiting.begin(), waiting.end());
        }
        waiting.clear();
      }
    }
    for (const auto& waiting : open) {
      stream_waits_.insert(stream_waits_.end(), waiting.begin(), waiting.end());
    }
    std::sort(stream_waits_.begin(), stream_waits_.end());
    host_waits_ = make_union(std::move(waits));
  }

  Interval on_gpu_clock(Row call) const {
    const std::int64_t shift_ns = -tree_.launch_delay_correction_ns;
    return {add_saturated(table_.ts_ns[call], shift_ns),
            add_saturated(table_.end_ns(call), shift_ns)};
  }

  bool launches_collective(Row call) const {
    const auto launched = tree_.launched_by(call);
    return !launched.empty() && std::all_of(launched.begin(), launched.end(), [&](Row gpu) {
      return tree_.gpu_class[gpu] == GpuClass::kCommunication;
    });
  }

  std::vector<Row>::const_iterator ending_after(std::int64_t time_ns) const {
    return std::upper_bound(by_end_.begin(), by_end_.end(), time_ns,
                            [&](std::int64_t t, Row r) { return t < table_.end_ns(r); });
  }

  void add(Interval piece, std::vector<Interval>& sure, std::vector<Interval>& possible) const {
    const auto next = std::lower_bound(kernels_.begin(), kernels_.end(), piece.end_ns,
                                       [&](Row r, std::int64_t t) { return table_.ts_ns[r] < t; });
    if (next == kernels_.end()) return;
    const Row launch = tree_.launch[*next];
    if (launch == kNoRow) return;
    const std::int64_t launched_ns = on_gpu_clock(launch).start_ns;
    const auto ended = ending_after(table_.ts_ns[*next]);
    const std::int64_t last_end_ns =
        ended == by_end_.begin() ? piece.start_ns : table_.end_ns(*std::prev(ended));
    if (launched_ns <= piece.start_ns || launched_ns < last_end_ns) return;
    const std::int64_t border_ns = std::clamp(last_end_ns, piece.start_ns, piece.end_ns);
    if (border_ns < piece.end_ns) sure.push_back({border_ns, piece.end_ns});
    if (border_ns == piece.start_ns) return;
    (may_need(*next, piece) ? possible : sure).push_back({piece.start_ns, border_ns});
  }

  /// May the kernel need the result of a collective that ended in the piece?
  bool may_need(Row kernel, Interval piece) const {
    if (!tells_waits_) return true;
    const auto place = std::lower_bound(stream_waits_.begin(), stream_waits_.end(),
                                        table_.ts_ns[tree_.launch[kernel]]);
    const auto awaits_since = [&](std::int64_t time_ns) {
      return place != stream_waits_.begin() && *std::prev(place) >= time_ns;
    };
    for (auto it = ending_after(piece.start_ns); it != by_end_.end(); ++it) {
      const std::int64_t end_ns = table_.end_ns(*it);
      if (end_ns > piece.end_ns) break;
      const Row launch = tree_.launch[*it];
      if (launch == kNoRow || tree_.stream_of[*it] == tree_.stream_of[kernel]) return true;
      if (awaits_since(table_.ts_ns[launch])) return true;
      if (covered_ns(host_waits_, {end_ns, add_saturated(end_ns, 1)}) > 0) return true;
    }
    return false;
  }

  const EventTable& table_;
  const EventTree& tree_;
  const GpuIntervals& gpu_;
  std::vector<Row> kernels_;  ///< by start
  std::vector<Row> by_end_;   ///< collectives
  bool tells_waits_ = false;
  std::vector<std::int64_t> stream_waits_;  ///< host clock
  IntervalSet host_waits_;                  ///< GPU clock
};

}  // namespace

Unawaited find_unawaited(const EventTable& table, const EventTree& tree, const GpuIntervals& gpu) {
  if (gpu.communication.empty()) return {};
  return UnawaitedFinder(table, tree, gpu).find();
}

}  // namespace traceap
