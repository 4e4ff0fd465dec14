// Many small collectives one after another, each of which pays the full latency.
//
// A run is a row of at least kMinRun small collectives without a large one between them, each
// beginning soon after the one before. Cost: first to last of the run, without the work that runs
// under it or between, and without pauses that hold more than a clone or a copy.

#include <algorithm>
#include <span>

#include "traceap/base/text.hpp"
#include "traceap/detect/queries/collectives.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// The definition's bounds: below them a collective is latency, not bandwidth.
constexpr std::int64_t kSmallBytes = 64 << 10;
constexpr std::int64_t kSmallNs = 20'000;
/// A barrier, a flag and a metric or two per step are no pattern; five in a row are.
constexpr std::size_t kMinRun = 5;
/// c10d's own host cost of a collective is some tens to a few hundred microseconds: a run's members
/// follow each other at that pace. A longer pause has another cause.
constexpr std::int64_t kMaxPauseNs = 500'000;
/// 64 KiB need tens of microseconds, across many nodes some hundreds. What takes longer waits for
/// another rank, which merging would not change.
constexpr std::int64_t kWaitingNs = 1'000'000;
/// Merging n collectives leaves one latency of n: nearly all of the exposed time goes away, unless
/// each result is needed before the next can be issued.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdleOrExposed, .best = 0.6};

/// A collective's time without waiting for other ranks, as far as their traces tell.
Interval transfer_of(const Signals& signals, Row row) {
  Interval own = interval_of(signals.table, row);
  if (const PeerPart* part = signals.peers.find(row)) {
    own.start_ns = std::min(own.end_ns, own.start_ns + part->wait_any_ns);
  }
  return own;
}

/// A size of 0 says as little as none: a call that serves several tensors may leave it out.
bool says_size(const Collective& collective) {
  return collective.bytes && (*collective.bytes > 0 || collective.kind == CollectiveKind::kBarrier);
}

bool is_small(const Signals& signals, const Collective& collective) {
  if (says_size(collective) && *collective.bytes < kSmallBytes) return true;
  // Only a whole duration tells: waiting is not the message's size.
  return signals.table.dur_ns[collective.row] <= kSmallNs ||
         (!says_size(collective) && transfer_of(signals, collective.row).length_ns() <= kSmallNs);
}

/// Is it a kernel that is small by design: an all-reduce of one or two shots, which reads its
/// peers' memory, or an exchange of tokens between experts? The next layer of the model hangs on
/// each, and there is no quicker kernel.
bool is_small_by_design(const Signals& signals, const Collective& collective) {
  return is_expert_exchange(collective.kind) ||
         contains_any(to_lower(signals.table.name_of(collective.row)),
                      {"cross_device_reduce", "one_shot", "oneshot", "two_shot", "twoshot",
                       "lamport", "multimem"});
}

/// Does computation hide most of the collective? Then nobody waits for it.
bool is_hidden(const Signals& signals, const Collective& collective) {
  const Interval own = interval_of(signals.table, collective.row);
  return 2 * covered_ns(signals.gpu.compute, own) > own.length_ns();
}

/// Cost of one run: its members, and what is idle of the pauses between two that are not hidden. A
/// pause in which the GPU works for longer than a small collective takes has work of its own.
void add_run(const Signals& signals, std::span<const Collective> run, Draft& draft) {
  const EventTable& table = signals.table;
  std::int64_t last_end = table.ts_ns[run.front().row];
  bool after_hidden = false;
  std::vector<Interval> pauses;
  for (const Collective& member : run) {
    const Interval own = interval_of(table, member.row);
    const Interval transfer = transfer_of(signals, member.row);
    if (transfer.length_ns() < kWaitingNs) draft.cost.push_back(transfer);
    const Interval pause{last_end, own.start_ns};
    const bool hidden = is_hidden(signals, member);
    if (pause.length_ns() > 0 && !hidden && !after_hidden &&
        covered_ns(signals.gpu.busy, pause) <= kSmallNs) {
      pauses.push_back(pause);
    }
    after_hidden = hidden;
    last_end = std::max(last_end, own.end_ns);
    draft.evidence.push_back(member.row);
  }
  const IntervalSet idle = set_difference(make_union(std::move(pauses)), signals.gpu.busy);
  draft.cost.insert(draft.cost.end(), idle.begin(), idle.end());
}

/// Runs of one device's collectives; `members` by start.
void add_runs(const Signals& signals, std::span<const Collective> members, Draft& draft) {
  std::size_t begin = 0;
  std::int64_t end_ns = 0;
  const auto close = [&](std::size_t end) {
    if (end - begin < kMinRun) return;
    add_run(signals, members.subspan(begin, end - begin), draft);
  };
  for (std::size_t i = 0; i < members.size(); ++i) {
    const std::int64_t start_ns = signals.table.ts_ns[members[i].row];
    const bool small = is_small(signals, members[i]);
    if (i > begin && (!small || start_ns - end_ns > kMaxPauseNs)) {
      close(i);
      begin = i;
    }
    if (!small) begin = i + 1;
    end_ns = i == begin ? signals.table.end_ns(members[i].row)
                        : std::max(end_ns, signals.table.end_ns(members[i].row));
  }
  if (begin < members.size()) close(members.size());
}

Finding detect(const Signals& signals) {
  if (auto early = judge_without_collectives(signals)) return *early;
  std::vector<Collective> all = signals.collectives;
  std::erase_if(all, [&](const Collective& c) { return is_small_by_design(signals, c); });
  if (all.empty()) return absent();
  const auto device = [&](const Collective& c) { return signals.table.device[c.row]; };
  std::stable_sort(all.begin(), all.end(), [&](const Collective& a, const Collective& b) {
    return device(a) < device(b);  // by start inside a device
  });
  Draft draft(kSaving);
  std::size_t begin = 0;
  std::int64_t sized = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    sized += says_size(all[i]) ? 1 : 0;
    if (i + 1 < all.size() && device(all[i + 1]) == device(all[i])) continue;
    add_runs(signals, std::span(all).subspan(begin, i + 1 - begin), draft);
    begin = i + 1;
  }
  draft.cost = set_difference(make_union(std::move(draft.cost)), signals.gpu.compute);
  // Without sizes a short duration has to do.
  draft.confidence = sized == static_cast<std::int64_t>(all.size()) ? 0.9 : 0.75;
  if (sized == 0) draft.missing_signals.emplace_back("message sizes of the collectives");
  draft.count("collectives", draft.evidence.size());
  draft.count("collectives in all", all.size());
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule small_nccl_kernels{.type = "small_nccl_kernels",
                                         .paper_place = 6,
                                         .subject = Subject::kCollectives,
                                         .saving = kSaving,
                                         .detect = detect};
}

}  // namespace traceap
