#include "traceap/detect/evidence.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

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
  const std::size_t kept = std::min(rows.size(), kMaxEvidence);
  std::partial_sort(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(kept), rows.end(),
                    [](const auto& a, const auto& b) {
                      return a.weight != b.weight ? a.weight > b.weight : a.row < b.row;
                    });
  for (std::size_t i = 0; i < kept; ++i) finding.evidence.push_back(rows[i].row);
}

std::int64_t saving_basis_ns(const Signals& signals, const Finding& finding, SavingBasis basis) {
  switch (basis) {
    case SavingBasis::kIdle:
      return total_length_ns(set_difference(finding.intervals, signals.gpu.busy));
    case SavingBasis::kIdleOrExposed:
      return total_length_ns(set_difference(finding.intervals, signals.gpu.compute));
    case SavingBasis::kCost:
      break;
  }
  return finding.cost_ns;
}

std::int64_t share_of(std::int64_t ns, double share) {
  return std::llround(static_cast<double>(ns) * std::clamp(share, 0.0, 1.0));
}

}  // namespace

bool in_profile(const Signals& signals, Row row) {
  return signals.table.ts_ns[row] <= signals.profiled.end_ns &&
         signals.table.end_ns(row) >= signals.profiled.start_ns;
}

bool is_material(const Signals& signals, std::int64_t cost_ns) {
  if (cost_ns <= 0) return false;
  return static_cast<double>(cost_ns) >=
         signals.options.material_share * static_cast<double>(signals.profiled_ns());
}

Finding finish_finding(const Signals& signals, Draft draft) {
  Finding finding;
  finding.type = draft.type;
  finding.intervals = set_clip(make_union(std::move(draft.cost)), signals.profiled);
  finding.cost_ns = total_length_ns(finding.intervals);
  finding.verdict = is_material(signals, finding.cost_ns) ? Verdict::kPresent : Verdict::kAbsent;
  set_evidence(signals, draft, finding);
  finding.missing_signals = std::move(draft.missing_signals);
  finding.confidence = std::clamp(draft.confidence, 0.0, 1.0);
  finding.facts = std::move(draft.facts);
  finding.saving_high_ns = saving_basis_ns(signals, finding, draft.saving.basis);
  finding.saving_best_ns = share_of(finding.saving_high_ns, draft.saving.best);
  finding.saving_low_ns = share_of(finding.saving_high_ns, draft.saving.low);
  return finding;
}

Finding abstain(std::string_view type, std::initializer_list<std::string_view> missing_signals) {
  Finding finding;
  finding.type = type;
  finding.verdict = Verdict::kUnknown;
  for (std::string_view signal : missing_signals) finding.missing_signals.emplace_back(signal);
  return finding;
}

Finding absent(std::string_view type, double confidence) {
  Finding finding;
  finding.type = type;
  finding.confidence = confidence;
  return finding;
}

IntervalSet silent_idle(const Signals& signals, std::int64_t min_length_ns) {
  const EventTable& table = signals.table;
  const NameSet operators(table.strings, is_operator_name);
  IntervalSet work;  // rows come by start, so the union grows at its end
  for (Row r = 0; r < table.size(); ++r) {
    if (signals.tree.host_position[r] == kNoRow) continue;
    const bool is_op = table.kind[r] == EventKind::kCpuOp &&
                       (operators.contains(table.name[r]) || subtree_rows(signals.tree, r).empty());
    if (!is_op && !is_api_call(table.kind[r])) continue;
    const Interval next = signals.on_gpu_clock(interval_of(table, r));
    if (next.end_ns <= next.start_ns) continue;
    if (!work.empty() && next.start_ns <= work.back().end_ns) {
      work.back().end_ns = std::max(work.back().end_ns, next.end_ns);
    } else {
      work.push_back(next);
    }
  }
  const IntervalSet silence = set_complement(work, signals.profiled);
  IntervalSet silent = set_intersection(signals.gpu_idle, silence);
  std::erase_if(silent, [&](const Interval& i) { return i.length_ns() < min_length_ns; });
  return silent;
}

std::string format_ms(std::int64_t ns) {
  char text[48];
  std::snprintf(text, sizeof text, "%.*f ms", ns < 1'000'000 ? 3 : 1,
                static_cast<double>(ns) * 1e-6);
  return text;
}

std::string format_percent(double share) {
  char text[48];
  std::snprintf(text, sizeof text, "%.1f %%", share * 100.0);
  return text;
}

}  // namespace traceap
