// Gradients are exchanged one parameter after the other when the backward pass is over.
//
// A run is a row of all-reduces on one device with nothing but copies and pointwise kernels between
// them (gradients are cloned, divided, written back), behind the backward pass and not launched
// from within it. Cost: the all-reduces where no compute covers them, and the pauses between them
// in which the GPU ran nothing; waiting for late ranks apart.

#include <algorithm>
#include <map>
#include <vector>

#include "traceap/base/statistics.hpp"
#include "traceap/detect/queries/collectives.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/ranges.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// Networks of ten layers have more parameters than this; a sharded optimizer exchanges a few norms
/// and flags, synchronised batch norm two values per layer.
constexpr std::size_t kMinRun = 32;
/// DistributedDataParallel's bucket_cap_mb. All-reduces of that size are buckets already, bound by
/// bandwidth.
constexpr std::int64_t kBucketBytes = std::int64_t{25} << 20;
/// c10d's own host cost of a collective, with a clone and a division before it: a longer pause has
/// another cause.
constexpr std::int64_t kMaxPauseNs = 1'000'000;
/// Buckets under the backward pass pay a few latencies instead of hundreds, and leave the last one
/// exposed; how long the bytes take stays, and may be hidden or not.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdleOrExposed, .low = 0.3, .best = 0.7};

bool is_light(std::string_view name) {
  return contains_any(name, {"elementwise_kernel", "multi_tensor_apply", "copy", "Copy", "Memcpy",
                             "fill", "Fill", "Memset"});
}
bool is_engine(std::string_view name) {
  return contains(name, "autograd::engine::evaluate_function");
}

struct Run {
  std::vector<Row> all_reduces;
  std::vector<std::int64_t> bytes;  ///< of those that say
  std::size_t copies = 0;           ///< light events between them

  std::int64_t median_ns = 0;  ///< how long they take

  /// Buckets of DistributedDataParallel's size, sent by hand, have nothing between them, and take
  /// their time.
  bool could_be_buckets() const {
    return bytes.empty() && 2 * copies < all_reduces.size() &&
           most_bytes_in(median_ns) >= kBucketBytes;
  }
};

/// Walks the GPU's events by start and collects runs.
class RunFinder {
 public:
  explicit RunFinder(const Signals& signals)
      : signals_(signals),
        light_(signals.table, is_light),
        in_engine_(outermost_ranges(signals, [&, engine = LazyNames(signals.table, is_engine)](
                                                 Row r) { return engine(r); })),
        engine_tracks_(signals.table.tracks.size(), 0) {
    for (Row r : range_rows(in_engine_)) engine_tracks_[signals.table.track[r]] = 1;
    for (const Collective& c : signals.collectives) by_row_.emplace(c.row, &c);
  }

  std::vector<Run> find() {
    for (Row r : signals_.tree.gpu_rows) visit(r, devices_[signals_.table.device[r]]);
    for (auto& [id, device] : devices_) close(device);
    return std::move(runs_);
  }

 private:
  struct Device {
    Run run;
    bool behind_backward = false;  ///< of the last kernel that is not light
  };

  void visit(Row r, Device& device) {
    const auto found = by_row_.find(r);
    if (found != by_row_.end() && is_member(*found->second) && device.behind_backward) {
      device.run.all_reduces.push_back(r);
      const std::int64_t bytes = found->second->bytes.value_or(0);
      if (bytes > 0) device.run.bytes.push_back(bytes);
    } else if (found == by_row_.end() && (is_copy(r) || light_(r))) {
      if (!device.run.all_reduces.empty()) ++device.run.copies;
    } else {
      close(device);
      if (found == by_row_.end()) {
        device.behind_backward = signals_.tree.phase[r] != Phase::kForward;
      }
    }
  }

  bool is_copy(Row r) const { return signals_.tree.gpu_class[r] == GpuClass::kMemcpy; }

  /// An all-reduce that the program asks for itself. DistributedDataParallel's come from the
  /// autograd engine, on its thread or under its nodes.
  bool is_member(const Collective& collective) const {
    if (collective.kind != CollectiveKind::kAllReduce) return false;
    const Row launch = signals_.tree.launch[collective.row];
    if (launch == kNoRow) return false;
    const TrackId track = signals_.table.track[launch];
    const bool engine_thread = track != signals_.tree.main_track && engine_tracks_[track] != 0;
    return !engine_thread && in_engine_[launch] == kNoRow;
  }

  void close(Device& device) {
    Run run = std::move(device.run);
    device.run = {};
    if (run.all_reduces.size() < kMinRun) return;
    if (!run.bytes.empty() && median_of(run.bytes) >= kBucketBytes) return;
    std::vector<std::int64_t> lengths;
    for (Row r : run.all_reduces) lengths.push_back(signals_.table.dur_ns[r]);
    run.median_ns = median_of(lengths);
    runs_.push_back(std::move(run));
  }

  const Signals& signals_;
  LazyNames<> light_;
  std::vector<Row> in_engine_;
  std::vector<std::uint8_t> engine_tracks_;
  std::map<Row, const Collective*> by_row_;
  std::map<std::int64_t, Device> devices_;
  std::vector<Run> runs_;
};

/// Without the other ranks' traces it can't be seen how long the first of a run waited for them: it
/// counts like the others.
std::vector<Interval> transfers_of(const Signals& signals, const Run& run) {
  std::vector<Interval> transfers;
  std::vector<std::int64_t> lengths;
  for (Row r : run.all_reduces) {
    transfers.push_back(interval_of(signals.table, r));
    lengths.push_back(transfers.back().length_ns());
  }
  if (!signals.peers.known) {
    Interval& first = transfers.front();
    first.start_ns = std::max(first.start_ns, first.end_ns - median_of(lengths));
  }
  return transfers;
}

IntervalSet cost_of(const Signals& signals, const std::vector<Run>& runs) {
  std::vector<Interval> transfers, pauses;
  for (const Run& run : runs) {
    const std::vector<Interval> members = transfers_of(signals, run);
    for (std::size_t i = 1; i < members.size(); ++i) {
      const Interval pause{members[i - 1].end_ns, members[i].start_ns};
      if (pause.length_ns() > 0 && pause.length_ns() <= kMaxPauseNs) pauses.push_back(pause);
    }
    transfers.insert(transfers.end(), members.begin(), members.end());
  }
  const IntervalSet idle = set_intersection(make_union(std::move(pauses)), signals.gpu_idle);
  const IntervalSet alone = set_difference(make_union(std::move(transfers)), signals.gpu.compute);
  return set_difference(set_union(alone, idle), waits_for_late_ranks(signals));
}

Finding detect(const Signals& signals) {
  if (auto early = judge_without_collectives(signals)) return *early;
  if (!signals.has_operators) {
    const std::int64_t communication_ns =
        total_length_ns(set_clip(signals.gpu.communication, signals.profiled));
    if (!is_material(signals, communication_ns)) return absent();
    return abstain({"host operators"});
  }
  if (!has_backward(signals)) return absent();
  std::vector<Run> runs = RunFinder(signals).find();
  const std::int64_t all_ns = total_length_ns(set_clip(cost_of(signals, runs), signals.profiled));
  std::erase_if(runs, [](const Run& run) { return run.could_be_buckets(); });
  if (runs.empty()) {
    if (!is_material(signals, all_ns)) return absent();
    return abstain({"message sizes of the collectives"});
  }
  Draft draft(kSaving);
  draft.cost = cost_of(signals, runs);
  std::vector<std::int64_t> bytes;
  std::size_t copies = 0;
  for (const Run& run : runs) {
    draft.evidence.insert(draft.evidence.end(), run.all_reduces.begin(), run.all_reduces.end());
    bytes.insert(bytes.end(), run.bytes.begin(), run.bytes.end());
    copies += run.copies;
  }
  draft.count("all-reduces", draft.evidence.size());
  add_per_step_fact(signals, draft, "per step", draft.evidence.size());
  if (copies > 0) draft.count("kernels between", copies);
  if (bytes.empty()) {
    draft.missing_signals.emplace_back("message sizes of the collectives");
    draft.confidence = 0.8;  // only what lies between them says that they are no buckets
  } else {
    draft.bytes("median size", median_of(bytes));
  }
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule per_parameter_all_reduce{.type = "per_parameter_all_reduce",
                                               .claim = Claim::kSpecific,
                                               .subject = Subject::kCollectives,
                                               .saving = kSaving,
                                               .detect = detect};
}

}  // namespace traceap
