// The GPU waits between the iterations of a serving engine, because the host schedules the next one
// only when it has the tokens of the last.
//
// Cost: idle time between the last GPU work of one iteration and the first of the next, in front of
// iterations that generate tokens, in which the host works. Where it mostly reads the tokens and
// launches, the bubbles are synchronous_sampling's; drafting is idle_draft's. Not counted: waiting
// for requests, compilation, recording of graphs, the profiler, work that was queued already.

#include <algorithm>
#include <array>
#include <string>
#include <unordered_map>

#include "traceap/base/statistics.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// Scheduling ahead hides all of a bubble that is shorter than the iteration; a faster scheduler, a
/// part.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdle, .low = 0.2, .best = 0.9};
/// What the host does is told where it takes this share of the bubbles.
constexpr double kToldShare = 0.1;
constexpr std::size_t kToldNames = 2;
constexpr std::size_t kToldChars = 80;

using NsByRow = std::unordered_map<Row, std::int64_t>;

/// Names the frames and ranges in which most of the bubbles pass.
void tell_names(const Signals& signals, const NsByRow& rows, std::int64_t cost_ns, Draft& draft) {
  std::unordered_map<StringId, std::int64_t> by_name;
  for (const auto& [row, ns] : rows) {
    if (!is_api_call(signals.table.kind[row])) by_name[signals.table.name[row]] += ns;
  }
  std::vector<std::pair<std::int64_t, std::string>> names;
  for (const auto& [name, ns] : by_name) {
    names.emplace_back(ns, signals.table.strings[name].substr(0, kToldChars));
  }
  std::sort(names.begin(), names.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  for (std::size_t i = 0; i < std::min(names.size(), kToldNames); ++i) {
    if (static_cast<double>(names[i].first) < kToldShare * static_cast<double>(cost_ns)) return;
    if (i == 0) {
      draft.text("host work", names[i].second);
      draft.duration("time of host work", names[i].first);
    } else {
      draft.text("more host work", names[i].second);
      draft.duration("time of more host work", names[i].first);
    }
  }
}

Finding detect(const Signals& signals) {
  if (signals.served.iterations.empty()) return absent();
  if (signals.tree.linked_gpu_rows.empty()) return abstain({"launch calls of GPU events"});
  Draft draft(kSaving);
  NsByRow rows;
  std::array<std::int64_t, kServingWorkCount> by_work{};
  std::vector<std::int64_t> lengths;
  for (const BubbleCost& cost : cost_of_bubbles(signals)) {
    std::int64_t length_ns = 0;
    for (const ServingPiece& piece : cost.host_work) {
      draft.cost.push_back(piece.interval);
      length_ns += piece.interval.length_ns();
      by_work[static_cast<std::size_t>(piece.work)] += piece.interval.length_ns();
      if (piece.row != kNoRow) rows[piece.row] += piece.interval.length_ns();
    }
    if (length_ns == 0) continue;
    lengths.push_back(length_ns);
    draft.evidence.push_back(
        evidence_of(signals, signals.served.iterations[cost.bubble.iteration]));
    draft.evidence_weights.push_back(length_ns);
  }
  if (lengths.empty()) return absent();
  const std::int64_t cost_ns = total_length_ns(make_union(draft.cost));
  for (const auto& [row, ns] : rows) {
    draft.evidence.push_back(row);
    draft.evidence_weights.push_back(ns);
  }
  draft.confidence = signals.served.marked ? 0.9 : 0.7;
  draft.count("bubbles", lengths.size());
  draft.duration("median", median_of(lengths));
  tell_names(signals, rows, cost_ns, draft);
  const auto most = std::max_element(by_work.begin(), by_work.end()) - by_work.begin();
  for (int i = 0; i < kServingWorkCount; ++i) {
    const auto ns = by_work[static_cast<std::size_t>(i)];
    std::string name(serving_work_name(static_cast<ServingWork>(i)));
    std::replace(name.begin(), name.end(), '_', ' ');
    if (i == most && i < static_cast<int>(ServingWork::kOtherHostWork)) draft.text("mostly", name);
    if (static_cast<double>(ns) >= kToldShare * static_cast<double>(cost_ns)) {
      draft.duration(std::move(name), ns);
    }
  }
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule host_between_tokens{.type = "host_between_tokens",
                                          .claim = Claim::kSpecific,
                                          .subject = Subject::kServing,
                                          .saving = kSaving,
                                          .detect = detect};
}

}  // namespace traceap
