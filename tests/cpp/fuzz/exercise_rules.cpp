#include <array>
#include <cmath>
#include <variant>

#include "exercises.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap::fuzz {
namespace {

void check_finding(const Rank& rank, const Finding& finding) {
  check_set(finding.intervals);
  check(finding.cost_ns == total_length_ns(finding.intervals), "a cost is that of its intervals");
  const Interval profiled = rank.tree.profiled;
  check(finding.intervals.empty() || (finding.intervals.front().start_ns >= profiled.start_ns &&
                                      finding.intervals.back().end_ns <= profiled.end_ns),
        "a cost lies in the profile");
  check(finding.confidence >= 0 && finding.confidence <= 1, "confidence is a share");
  check(finding.saving_low_ns >= 0 && finding.saving_low_ns <= finding.saving_best_ns &&
            finding.saving_best_ns <= finding.saving_high_ns,
        "bounds of a saving are in order");
  check(
      finding.evidence.size() <= kMaxEvidence && finding.evidence.size() <= finding.evidence_count,
      "evidence is a part of all");
  for (const Row row : finding.evidence) check(row < rank.size(), "evidence is a row");
  for (const Fact& fact : finding.facts) {
    const auto* number = std::get_if<double>(&fact.value);
    check(number == nullptr || std::isfinite(*number), "a figure is a number");
  }
}

}  // namespace

void exercise_rules(const Rank& rank, Choices& choices) {
  static constexpr std::array<double, 4> kShares{kMaterialShare, 0.0, 0.5, 1.0};
  DetectOptions options;
  options.material_share = choices.of(kShares);
  if (choices.flag()) options.matrix_units = {.half_ratio = 16, .tf32_ratio = 8, .device = "A100"};
  const std::vector<Finding> findings = detect_all(build_signals(rank.table, rank.tree, options));
  check(findings.size() == all_rules().size(), "every rule says something");
  for (const Finding& finding : findings) check_finding(rank, finding);
  const std::vector<std::int64_t> unclaimed = compute_unclaimed_cost(findings);
  for (std::size_t i = 0; i < findings.size(); ++i) {
    check(unclaimed[i] >= 0 && unclaimed[i] <= findings[i].cost_ns, "what is left of a cost");
  }
}

}  // namespace traceap::fuzz
