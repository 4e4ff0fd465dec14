#include "traceap/detect/queries/collectives.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <unordered_map>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/statistics.hpp"
#include "traceap/detect/evidence.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/ranges.hpp"

namespace traceap {
namespace {

/// A kernel that a collective held back starts when the collective's event has fired: that takes
/// a few microseconds; ten times that leaves room for a busy device. Starts later than this had
/// another reason.
constexpr std::int64_t kReleaseNs = 100'000;
/// A phase ends at a collective if at most this share of its kernels is still to come: DDP copies
/// its last bucket back, tensor parallelism joins the shards, and that is all.
constexpr double kTailShare = 0.05;

/// Compute kernels by start, cut into stretches of one step and phase.
struct ComputeOrder {
  std::vector<Row> rows;
  std::vector<std::uint32_t> segment;      ///< per row in `rows`
  std::vector<std::uint32_t> segment_end;  ///< per segment: one past its last position
  std::vector<std::uint32_t> segment_begin;
  std::vector<std::int64_t> time_before;  ///< per position: compute time of its segment so far
  std::vector<std::uint32_t> segment_step;
  std::vector<Phase> segment_phase;
  /// Per position, and one past the last: rows before it whose phase is known.
  std::vector<std::uint32_t> known_before{0};
};

std::vector<std::uint32_t> step_of_rows(const Signals& signals, const std::vector<Row>& rows) {
  // By the launch, since kernels of a step run on after the host has begun the next one.
  const auto& steps = signals.tree.steps;
  std::vector<std::uint32_t> step(rows.size(), 0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    poll_interrupt();
    const Row launch = signals.tree.launch[rows[i]];
    const std::int64_t time = signals.table.ts_ns[launch == kNoRow ? rows[i] : launch];
    step[i] = static_cast<std::uint32_t>(
        std::upper_bound(steps.begin(), steps.end(), time,
                         [](std::int64_t t, const Step& s) { return t < s.start_ns; }) -
        steps.begin());
  }
  return step;
}

/// What may be held back by a collective: compute kernels, and copies inside the device, which take
/// its result out of a bucket.
std::vector<Row> consumers(const Signals& signals) {
  std::vector<Row> host_copies;  // by start, like gpu_rows
  for (const Copy& copy : signals.copies) {
    if (copy.kind.memory != HostMemory::kNone) host_copies.push_back(copy.row);
  }
  std::vector<Row> rows;
  auto host_copy = host_copies.begin();
  for (Row r : signals.tree.gpu_rows) {
    if (host_copy != host_copies.end() && *host_copy == r) {
      ++host_copy;
    } else if (signals.tree.gpu_class[r] != GpuClass::kCommunication) {
      rows.push_back(r);
    }
  }
  return rows;
}

/// Phases of GPU rows. Kernels over lists of tensors without a known launch are the optimizer's (or
/// clip its gradients): nothing else in a training step uses them to speak of. What AccumulateGrad
/// launches puts a finished gradient in its place: no collective could hide behind it, since it
/// needs the one before, and so it is no work of the backward pass that is still to come.
class PhaseOfRow {
 public:
  explicit PhaseOfRow(const Signals& signals)
      : tree_(signals.tree),
        foreach_(signals.table,
                 [](std::string_view name) { return contains(name, "multi_tensor_apply"); }),
        accumulates_(outermost_ranges(signals, [names = LazyNames(signals.table, is_accumulation)](
                                                   Row r) { return names(r); })) {}
  Phase operator()(Row row) const {
    const Row launch = tree_.launch[row];
    if (launch != kNoRow && accumulates_[launch] != kNoRow) return Phase::kOther;
    const Phase phase = tree_.phase[row];
    if (phase != Phase::kOther) return phase;
    return foreach_(row) ? Phase::kOptimizer : Phase::kOther;
  }

 private:
  static bool is_accumulation(std::string_view name) {
    return contains(name, "torch::autograd::AccumulateGrad");
  }

  const EventTree& tree_;
  LazyNames<> foreach_;
  std::vector<Row> accumulates_;  ///< by row: the range of AccumulateGrad around it
};

/// Does a row of phase `own` end a stretch of phase `current`? A row of unknown phase belongs to
/// the stretch it lies in, and unknown rows to the stretch that follows, but never to the
/// optimizer.
bool ends_stretch(Phase current, Phase own) {
  if (own == Phase::kOther || own == current) return false;
  return current != Phase::kOther || own == Phase::kOptimizer;
}

ComputeOrder order_compute(const Signals& signals) {
  ComputeOrder order;
  for (Row r : signals.tree.gpu_rows) {
    if (signals.tree.gpu_class[r] == GpuClass::kCompute) order.rows.push_back(r);
  }
  const std::vector<std::uint32_t> step = step_of_rows(signals, order.rows);
  const PhaseOfRow phase_of(signals);
  Phase phase = Phase::kOther;
  for (std::size_t i = 0; i < order.rows.size(); ++i) {
    poll_interrupt();
    const Phase own = phase_of(order.rows[i]);
    const bool new_step = i > 0 && step[i] != step[i - 1];
    const bool new_phase = ends_stretch(phase, own);
    if (i == 0 || new_step || new_phase) {
      order.segment_begin.push_back(static_cast<std::uint32_t>(i));
      order.segment_end.push_back(static_cast<std::uint32_t>(i));
      order.segment_step.push_back(step[i]);
      order.segment_phase.push_back(own);
      phase = own;
    }
    if (phase == Phase::kOther) order.segment_phase.back() = phase = own;
    order.segment.push_back(static_cast<std::uint32_t>(order.segment_end.size() - 1));
    const bool first = order.segment_begin.back() == i;
    order.time_before.push_back(
        first ? 0 : order.time_before.back() + signals.table.dur_ns[order.rows[i - 1]]);
    order.segment_end.back() = static_cast<std::uint32_t>(i + 1);
    order.known_before.push_back(order.known_before.back() + (own != Phase::kOther ? 1 : 0));
  }
  return order;
}

/// Intervals in which the host sat in a synchronisation, on the GPU's clock.
IntervalSet host_syncs(const Signals& signals) {
  std::vector<Interval> syncs;
  for (Row r : signals.api_rows) {
    if (is_synchronisation(signals.api(r))) {
      syncs.push_back(signals.on_gpu_clock(interval_of(signals.table, r)));
    }
  }
  return make_union(std::move(syncs));
}

/// Finds which collective a piece belongs to and who waited for it. One pass in order of time.
class PieceBuilder {
 public:
  explicit PieceBuilder(const Signals& signals)
      : signals_(signals),
        compute_(order_compute(signals)),
        consumers_(consumers(signals)),
        syncs_(host_syncs(signals)) {
    for (Row r : signals.tree.gpu_rows) {
      if (signals.tree.gpu_class[r] == GpuClass::kCommunication) by_end_.push_back(r);
    }
    std::sort(by_end_.begin(), by_end_.end(), [&](Row a, Row b) {
      const std::int64_t end_a = signals.table.end_ns(a), end_b = signals.table.end_ns(b);
      return end_a != end_b ? end_a < end_b : a < b;
    });
  }

  ExposedPiece build(Interval piece) const {
    const EventTable& table = signals_.table;
    ExposedPiece out{piece, kNoRow, kNoRow, {}, false, 0, 0};
    out.next = first_row_from(table, consumers_, piece.end_ns);
    out.collective = last_ending_by(out.next == kNoRow ? piece.end_ns : table.ts_ns[out.next]);
    // The compute kernel began while the collective went on: it did not wait for this one.
    const bool released = out.collective != kNoRow && table.end_ns(out.collective) > piece.start_ns;
    if (!released) out.collective = first_ending_after(piece.end_ns);
    if (released) out.wait = wait_of(piece, out.collective, out.next);
    judge_phase(first_compute_from(piece.end_ns), out);
    return out;
  }

 private:
  std::size_t first_compute_from(std::int64_t time_ns) const {
    const auto it =
        std::lower_bound(compute_.rows.begin(), compute_.rows.end(), time_ns,
                         [&](Row r, std::int64_t t) { return signals_.table.ts_ns[r] < t; });
    return static_cast<std::size_t>(it - compute_.rows.begin());
  }

  std::vector<Row>::const_iterator ending_after(std::int64_t time_ns) const {
    return std::upper_bound(by_end_.begin(), by_end_.end(), time_ns,
                            [&](std::int64_t t, Row r) { return t < signals_.table.end_ns(r); });
  }
  Row last_ending_by(std::int64_t time_ns) const {
    const auto it = ending_after(time_ns);
    return it == by_end_.begin() ? kNoRow : *std::prev(it);
  }
  Row first_ending_after(std::int64_t time_ns) const {
    const auto it = ending_after(time_ns - 1);
    return it == by_end_.end() ? kNoRow : *it;
  }

  IntervalSet wait_of(Interval piece, Row collective, Row next) const {
    const EventTable& table = signals_.table;
    const Interval until{piece.start_ns, std::min(piece.end_ns, table.end_ns(collective))};
    const IntervalSet host = set_clip(syncs_, until);
    if (next == kNoRow) return host;
    if (table.ts_ns[next] - table.end_ns(collective) > kReleaseNs) return host;
    std::int64_t queued = until.start_ns;
    const bool same_stream = signals_.tree.stream_of[next] == signals_.tree.stream_of[collective];
    if (const Row launch = signals_.tree.launch[next]; launch != kNoRow && !same_stream) {
      queued = std::max(queued, signals_.on_gpu_clock(interval_of(table, launch)).start_ns);
    }
    if (queued >= until.end_ns) return host;
    const Interval device{queued, until.end_ns};
    return set_union(host, std::span<const Interval>(&device, 1));
  }

  /// Share of a stretch's kernels that lie in [from, to). Where phases are known, kernels outside
  /// of all of them (gradients divided by the number of ranks) are not the phase's.
  double share_of(std::uint32_t segment, std::size_t from, std::size_t to) const {
    const std::uint32_t begin = compute_.segment_begin[segment];
    const std::uint32_t end = compute_.segment_end[segment];
    from = std::clamp<std::size_t>(from, begin, end);
    to = std::clamp<std::size_t>(to, begin, end);
    const auto& known = compute_.known_before;
    if (known[end] == known[begin]) {
      return static_cast<double>(to - from) / static_cast<double>(end - begin);
    }
    return static_cast<double>(known[to] - known[from]) /
           static_cast<double>(known[end] - known[begin]);
  }

  /// A collective among the first kernels of the optimizer exchanges the gradients of the backward
  /// pass before it: that is the phase which it ends.
  bool begins_optimizer(std::uint32_t segment, std::size_t next) const {
    return segment > 0 && compute_.segment_phase[segment] == Phase::kOptimizer &&
           compute_.segment_phase[segment - 1] == Phase::kBackward &&
           compute_.segment_step[segment] == compute_.segment_step[segment - 1] &&
           share_of(segment, 0, next) <= kTailShare;
  }

  void judge_phase(std::size_t next, ExposedPiece& out) const {
    if (next == 0) return;  // no compute before it: nothing could have covered it
    std::size_t before = next - 1;
    std::uint32_t segment = compute_.segment[before];
    if (begins_optimizer(segment, next)) {
      before = compute_.segment_begin[segment] - 1;
      --segment;
    }
    out.phase_index = segment;
    out.ends_phase = share_of(segment, next, compute_.rows.size()) <= kTailShare;
    out.phase_compute_ns =
        compute_.time_before[before] + signals_.table.dur_ns[compute_.rows[before]];
  }

  const Signals& signals_;
  ComputeOrder compute_;
  std::vector<Row> consumers_;
  IntervalSet syncs_;
  std::vector<Row> by_end_;
};

/// What a collective surely waited for someone. With a size: what it took beyond a millisecond of
/// latency and its message through a network of 10 Gbit/s, twice for those that send results back.
/// Without: if it took more than 0.5 s and a hundred times what its kernel usually takes, all
/// beyond ten times of that. (The longest transfer without a size on public traces, a gigabyte
/// between two GPUs without a link of their own, takes 0.44 s and 125 times the median of its
/// kernel.)
std::int64_t sure_wait_ns(const Collective& collective, std::int64_t length_ns,
                          std::int64_t usual_ns) {
  constexpr std::int64_t kLatencyNs = 1'000'000, kNsPerByte = 1, kPasses = 2;
  constexpr std::int64_t kUnsizedNs = 500'000'000, kUnsizedRatio = 100, kUnusualRatio = 10;
  const std::int64_t bytes = collective.bytes.value_or(0);
  if (bytes > 0) {
    const std::int64_t most = kMaxTimeNs / (kNsPerByte * kPasses);
    return length_ns - kLatencyNs - std::min(bytes, most) * kNsPerByte * kPasses;
  }
  const bool waits = length_ns > kUnsizedNs && length_ns / kUnsizedRatio > usual_ns;
  return waits ? length_ns - kUnusualRatio * usual_ns : 0;
}

bool has_host_collective(const EventTable& table) {
  const LazyNames is_collective(table, [](std::string_view name) {
    return name == "record_param_comms" || name.substr(0, 6) == "c10d::" ||
           name.substr(0, 17) == "_c10d_functional:" || name.substr(0, 5) == "nccl:";
  });
  for (Row r = 0; r < table.size(); ++r) {
    poll_interrupt();
    if (is_host(table.kind[r]) && is_collective(r)) return true;
  }
  return false;
}

/// Where GPU events lack their launches though others have theirs: the host's record ends before
/// the GPU's, and nobody knows the phases there.
IntervalSet time_without_launches(const Signals& signals) {
  std::vector<Interval> times;
  for (const RecordingNote& note : signals.tree.recording.notes) {
    if (note.fault == RecordingFault::kGpuWorkWithoutLaunch && note.time) {
      times.push_back(*note.time);
    }
  }
  return make_union(std::move(times));
}

}  // namespace

std::vector<ExposedPiece> build_exposed_pieces(const Signals& signals) {
  std::vector<ExposedPiece> pieces;
  if (signals.gpu.communication.empty()) return pieces;
  const PieceBuilder builder(signals);
  IntervalSet exposed = set_difference(
      set_difference(signals.gpu.communication, signals.gpu.compute), signals.unawaited.sure);
  if (signals.links_operators()) exposed = set_difference(exposed, time_without_launches(signals));
  for (const Interval& piece : set_clip(exposed, signals.profiled)) {
    pieces.push_back(builder.build(piece));
  }
  return pieces;
}

std::int64_t most_bytes_in(std::int64_t duration_ns) {
  constexpr std::int64_t kBytesPerNs = 1'000;
  constexpr std::int64_t kLongestNs = std::numeric_limits<std::int64_t>::max() / kBytesPerNs;
  return std::clamp<std::int64_t>(duration_ns, 0, kLongestNs) * kBytesPerNs;
}

Finding open_without_phases(const Signals& signals, Finding finding) {
  IntervalSet exposed = set_difference(signals.gpu.communication, signals.gpu.compute);
  if (signals.links_operators()) {
    exposed = set_intersection(exposed, time_without_launches(signals));
    if (finding.verdict == Verdict::kPresent || exposed.empty()) return finding;
  } else if (finding.verdict == Verdict::kPresent) {
    // That communication is exposed is sure; of which type it is, the order of kernels alone tells.
    finding.confidence = std::min(finding.confidence, 0.5);
    finding.missing_signals = {std::string(missing_link(signals))};
    return finding;
  }
  if (!is_material(signals, covered_ns(exposed, signals.profiled))) return finding;
  return abstain({missing_link(signals)});
}

bool is_pipeline_transfer(const Signals& signals, const Collective& collective) {
  if (is_point_to_point(collective.kind)) return true;
  if (collective.kind != CollectiveKind::kSendRecv) return false;
  const std::string& description = signals.groups[collective.group].description;
  return description.starts_with("pp") || contains(description, "pipeline") ||
         contains(description, "PIPELINE");
}

bool is_pipeline_transfer(const Signals& signals, Row row) {
  if (row == kNoRow) return false;
  const auto place = std::partition_point(
      signals.collectives.begin(), signals.collectives.end(),
      [&](const Collective& c) { return signals.table.ts_ns[c.row] < signals.table.ts_ns[row]; });
  for (auto it = place;
       it != signals.collectives.end() && signals.table.ts_ns[it->row] == signals.table.ts_ns[row];
       ++it) {
    if (it->row == row) return is_pipeline_transfer(signals, *it);
  }
  return false;
}

std::int64_t pipeline_stages(const Signals& signals) {
  std::int64_t stages = 0;
  for (const Collective& collective : signals.collectives) {
    if (!is_pipeline_transfer(signals, collective)) continue;
    const ProcessGroup& group = signals.groups[collective.group];
    const auto size = static_cast<std::int64_t>(group.ranks.size());
    stages = std::max({stages, group.size, size});
  }
  return stages;
}

IntervalSet waits_for_late_ranks(const Signals& signals) {
  std::vector<Interval> waits;
  for (const PeerPart& part : signals.peers.parts) {
    if (part.wait_ns <= 0) continue;
    const std::int64_t start_ns = signals.table.ts_ns[part.row];
    waits.push_back({start_ns, start_ns + part.wait_ns});
  }
  return make_union(std::move(waits));
}

IntervalSet waits_of_lone_rank(const Signals& signals) {
  if (signals.peers.known) return {};
  std::unordered_map<StringId, std::vector<std::int64_t>> lengths;
  for (const Collective& c : signals.collectives) {
    lengths[signals.table.name[c.row]].push_back(signals.table.dur_ns[c.row]);
  }
  std::unordered_map<StringId, std::int64_t> usual_ns;
  for (auto& [name, values] : lengths) usual_ns[name] = median_of(values);
  std::vector<Interval> waits;
  for (const Collective& c : signals.collectives) {
    const Interval own = interval_of(signals.table, c.row);
    const std::int64_t wait_ns =
        sure_wait_ns(c, own.length_ns(), usual_ns[signals.table.name[c.row]]);
    if (wait_ns > 0) waits.push_back({own.start_ns, own.start_ns + wait_ns});
  }
  return set_difference(make_union(std::move(waits)), signals.gpu.compute);
}

void leave_to_late_ranks(const Signals& signals, Draft& draft, std::string name) {
  const IntervalSet cost = set_clip(make_union(draft.cost), signals.profiled);
  draft.kept_cost = set_intersection(waits_for_late_ranks(signals), cost);
  if (draft.kept_cost.empty()) return;
  draft.duration(std::move(name), total_length_ns(draft.kept_cost));
}

std::optional<Finding> judge_without_collectives(const Signals& signals) {
  if (!signals.gpu.communication.empty()) return std::nullopt;
  // NCCL launches nothing in a group of one, whatever the host calls.
  if (signals.table.distributed.world_size == 1) return absent();
  const bool several_ranks = signals.table.distributed.world_size.value_or(1) > 1;
  const bool host_collective = has_host_collective(signals.table);
  if (host_collective && !signals.has_gpu) return abstain({"GPU events"});
  if (host_collective) return abstain({"communication kernels"});
  if (several_ranks && !signals.has_gpu) return abstain({"GPU events"});
  return absent();
}

}  // namespace traceap
