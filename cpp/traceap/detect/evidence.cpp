#include "traceap/detect/evidence.hpp"

#include <algorithm>
#include <cmath>

namespace traceap {
namespace {

struct WeightedRow {
  std::int64_t weight;
  Row row;
};

/// Rows that touch the profiled time, once each, with their weights added up; in order of rows.
std::vector<WeightedRow> merge_evidence(const Signals& signals, const Draft& draft) {
  std::vector<WeightedRow> rows;
  const bool weighted = draft.evidence_weights.size() == draft.evidence.size();
  for (std::size_t i = 0; i < draft.evidence.size(); ++i) {
    const Row row = draft.evidence[i];
    if (!in_profile(signals, row)) continue;
    rows.push_back({weighted ? draft.evidence_weights[i] : 0, row});
  }
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return a.row != b.row ? a.row < b.row : a.weight < b.weight;
  });
  std::size_t out = 0;
  for (const WeightedRow& next : rows) {
    if (out > 0 && rows[out - 1].row == next.row) {
      rows[out - 1].weight += next.weight;
    } else {
      rows[out++] = next;
    }
  }
  rows.resize(out);
  if (!weighted) {
    for (WeightedRow& r : rows) r.weight = signals.table.dur_ns[r.row];
  }
  return rows;
}

/// Heaviest first; equal ones by row, which is by time.
void set_evidence(const Signals& signals, const Draft& draft, Finding& finding) {
  std::vector<WeightedRow> rows = merge_evidence(signals, draft);
  finding.evidence_count = rows.size();
  const std::size_t kept = std::min(rows.size(), signals.options.most_evidence);
  std::partial_sort(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(kept), rows.end(),
                    [](const auto& a, const auto& b) {
                      return a.weight != b.weight ? a.weight > b.weight : a.row < b.row;
                    });
  for (std::size_t i = 0; i < kept; ++i) finding.evidence.push_back(rows[i].row);
}

std::int64_t share_of(std::int64_t ns, double share) {
  return std::llround(static_cast<double>(ns) * std::clamp(share, 0.0, 1.0));
}

double busy_share(const Signals& signals) {
  const auto profiled = static_cast<double>(std::max<std::int64_t>(signals.profiled_ns(), 1));
  return 1.0 - static_cast<double>(total_length_ns(signals.gpu_idle)) / profiled;
}

/// What a fix could give back of these intervals at most.
std::int64_t basis_ns(const Signals& signals, const IntervalSet& cost, SavingBasis basis) {
  switch (basis) {
    case SavingBasis::kIdle:
      return total_length_ns(set_intersection(cost, signals.gpu_idle));
    case SavingBasis::kIdleOrExposed:
      return total_length_ns(set_difference(cost, signals.gpu.compute));
    case SavingBasis::kCost:
    case SavingBasis::kGpuWork:
    case SavingBasis::kIdleAndWork:
      break;
  }
  return total_length_ns(cost);
}

/// What lies beside the cost of idle time of gaps in which collectives ran that the next kernel may
/// have needed or not: see Note [Unawaited collectives].
std::int64_t possible_beside_ns(const Signals& signals, const IntervalSet& cost) {
  std::vector<Interval> beside;
  for (const Interval& part : signals.unawaited.possible) {
    const Interval reach{add_saturated(part.start_ns, -1), add_saturated(part.end_ns, 1)};
    if (covered_ns(cost, reach) > 0) beside.push_back(part);
  }
  return total_length_ns(set_difference(set_clip(beside, signals.profiled), cost));
}

void bound_saving(const Signals& signals, const Draft& draft, Finding& finding) {
  SavingShares shares = draft.saving;
  if (signals.on_host) shares.basis = SavingBasis::kCost;  // all of it is the host's work
  const IntervalSet regained = set_clip(draft.regained, signals.profiled);
  const IntervalSet cost = set_difference(set_union(finding.intervals, regained), draft.kept_cost);
  std::int64_t basis = basis_ns(signals, cost, shares.basis);
  if (draft.saving_limit_ns) basis = std::min(basis, *draft.saving_limit_ns);
  std::int64_t alone = basis;
  if (shares.basis == SavingBasis::kIdleOrExposed) {
    // Where a copy and a collective run at once, the time comes back if both go.
    const IntervalSet both = set_intersection(signals.gpu.communication, signals.gpu.memcpy);
    alone = std::min(basis, basis_ns(signals, set_difference(cost, both), shares.basis));
  }
  double best = shares.best;
  std::int64_t whole_ns = 0;  // what the guess takes whole
  if (shares.basis == SavingBasis::kGpuWork) best *= busy_share(signals);
  if (shares.basis == SavingBasis::kIdleAndWork) {
    whole_ns = std::min(basis, basis_ns(signals, cost, SavingBasis::kIdle));
  }
  finding.saving_low_ns = share_of(alone, shares.low);
  finding.saving_best_ns = whole_ns + share_of(alone - whole_ns, best);
  finding.saving_high_ns = share_of(basis, shares.high);
  if (shares.basis == SavingBasis::kIdle || shares.basis == SavingBasis::kIdleAndWork) {
    finding.saving_high_ns += share_of(possible_beside_ns(signals, cost), shares.high);
  }
}

}  // namespace

bool in_profile(const Signals& signals, Row row) {
  const Interval own = interval_of(signals.table, row);
  const bool is_gpu = signals.tree.gpu_class[row] != GpuClass::kNone;
  const Interval on_gpu = is_gpu ? own : signals.on_gpu_clock(own);
  const bool judged = signals.gpu.not_judged.empty() || on_gpu.length_ns() == 0 ||
                      covered_ns(signals.gpu.not_judged, on_gpu) < on_gpu.length_ns();
  return judged && own.start_ns <= signals.profiled.end_ns &&
         own.end_ns >= signals.profiled.start_ns;
}

bool is_material(const Signals& signals, std::int64_t cost_ns) {
  if (cost_ns <= 0) return false;
  return static_cast<double>(cost_ns) >=
         signals.options.material_share * static_cast<double>(signals.profiled_ns());
}

Finding finish_finding(const Signals& signals, Draft draft) {
  Finding finding;
  finding.intervals =
      set_difference(set_clip(make_union(std::move(draft.cost)), signals.profiled),
                     set_union(signals.gpu.not_judged, signals.tree.recording.missing));
  finding.cost_ns = total_length_ns(finding.intervals);
  finding.verdict = is_material(signals, finding.cost_ns) ? Verdict::kPresent : Verdict::kAbsent;
  set_evidence(signals, draft, finding);
  bound_saving(signals, draft, finding);
  finding.missing_signals = std::move(draft.missing_signals);
  finding.confidence = std::clamp(draft.confidence, 0.0, 1.0);
  finding.facts = std::move(draft.facts);
  return finding;
}

Finding finish_told_by_operators(const Signals& signals, Draft draft) {
  Finding finding = finish_finding(signals, std::move(draft));
  const bool told = signals.has_operators || finding.verdict != Verdict::kPresent;
  return told ? finding : abstain({"host operators"});
}

Finding abstain(std::initializer_list<std::string_view> missing_signals) {
  Finding finding;
  finding.verdict = Verdict::kUnknown;
  for (std::string_view signal : missing_signals) finding.missing_signals.emplace_back(signal);
  return finding;
}

std::string_view missing_link(const Signals& signals) {
  return signals.has_operators ? "launch calls of GPU events" : "host operators";
}

Finding absent(double confidence) {
  Finding finding;
  finding.confidence = confidence;
  return finding;
}

void add_per_step_fact(const Signals& signals, Draft& draft, std::string name, std::size_t count) {
  const std::size_t steps = signals.tree.steps.size();
  if (steps == 0) return;
  draft.rate(std::move(name), static_cast<double>(count) / static_cast<double>(steps));
}

}  // namespace traceap
