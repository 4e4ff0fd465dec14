// Pipeline stages stand still because the schedule gives them nothing to do: while the first
// micro-batches come down the pipeline, and while the last gradients come back.
//
// Cost: time in which a send or receive between stages waits and nothing computes, beyond the
// transfer itself, and idle time that nothing in the file explains: the stage has no work then. The
// transfer of a message is the shortest of the same kind and size. With p even stages and m
// micro-batches GPipe and 1F1B lose (p - 1) / (m + p - 1) of a step (Huang et al., 2019; Narayanan
// et al., 2021, section 2.2).

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "traceap/detect/queries/collectives.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// Twice as many micro-batches halve the bubble, nearly.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdleOrExposed, .low = 0.2, .best = 0.5};
/// Whether stages are even only the traces of the others tell.
constexpr double kConfidence = 0.8;

/// The shortest transfer of the same kind and size.
using Transfers = std::map<std::pair<CollectiveKind, std::int64_t>, std::int64_t>;

std::pair<CollectiveKind, std::int64_t> key_of(const Collective& collective) {
  return {collective.kind, collective.bytes.value_or(kNoId)};
}

/// Micro-batches of a step: messages from, or to, the busiest neighbor, by step.
std::int64_t micro_batches(const Signals& signals, std::span<const Collective> transfers) {
  const auto steps = static_cast<std::int64_t>(signals.tree.steps.size());
  if (steps == 0) return 0;
  std::map<std::pair<CollectiveKind, std::int64_t>, std::int64_t> by_neighbor;
  std::int64_t most = 0;
  for (const Collective& collective : transfers) {
    if (collective.peer == kNoId) return 0;
    most = std::max(most, ++by_neighbor[{collective.kind, collective.peer}]);
  }
  return (most + steps / 2) / steps;
}

Finding detect(const Signals& signals) {
  if (auto early = judge_without_collectives(signals)) return *early;
  std::vector<Collective> transfers;
  Transfers shortest_ns;
  for (const Collective& collective : signals.collectives) {
    if (!is_pipeline_transfer(signals, collective)) continue;
    const std::int64_t own_ns = signals.table.dur_ns[collective.row];
    const auto [place, first] = shortest_ns.try_emplace(key_of(collective), own_ns);
    if (!first) place->second = std::min(place->second, own_ns);
    transfers.push_back(collective);
  }
  if (transfers.empty()) {
    Finding finding = absent();
    finding.applies = false;
    return finding;
  }
  Draft draft(kSaving);
  std::vector<Interval> waits;
  for (const Collective& collective : transfers) {
    Interval wait = interval_of(signals.table, collective.row);
    wait.end_ns -= shortest_ns[key_of(collective)];
    if (wait.length_ns() <= 0) continue;
    waits.push_back(wait);
    draft.evidence.push_back(collective.row);
    draft.evidence_weights.push_back(wait.length_ns());
  }
  const IntervalSet idle =
      idle_with_cause(signals, {IdleCause::kUnknown, IdleCause::kCommunicationWait});
  draft.cost = set_union(set_difference(make_union(std::move(waits)), signals.gpu.compute), idle);
  draft.confidence = kConfidence;
  const std::int64_t stages = pipeline_stages(signals), batches = micro_batches(signals, transfers);
  if (stages > 1) draft.count("stages", stages);
  if (stages > 1 && batches > 0) {
    draft.count("micro-batches per step", batches);
    draft.share("bubble of the schedule",
                static_cast<double>(stages - 1) / static_cast<double>(batches + stages - 1));
  }
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule pipeline_bubble{.type = "pipeline_bubble",
                                      .claim = Claim::kSpecific,
                                      .subject = Subject::kCollectives,
                                      .saving = kSaving,
                                      .detect = detect};
}

}  // namespace traceap
