#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include "traceap/base/interrupt.hpp"
#include "traceap/detect/queries/compile.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {

std::vector<Rule> list_rules();  // rule_list.cpp, by file name

const std::vector<Rule>& all_rules() {
  static const std::vector<Rule> ordered = [] {
    std::vector<Rule> rules = list_rules();
    const auto ours = std::stable_partition(rules.begin(), rules.end(),
                                            [](const Rule& r) { return r.paper_place != 0; });
    std::sort(rules.begin(), ours,
              [](const Rule& a, const Rule& b) { return a.paper_place < b.paper_place; });
    return rules;
  }();
  return ordered;
}

const Rule* find_rule(std::string_view type) {
  const auto& rules = all_rules();
  const auto it =
      std::find_if(rules.begin(), rules.end(), [&](const Rule& r) { return r.type == type; });
  return it == rules.end() ? nullptr : &*it;
}

namespace {

bool is_recorded(const Signals& signals, Subject subject) {
  const EventTree& tree = signals.tree;
  switch (subject) {
    case Subject::kCollectives:
      return !signals.collectives.empty() || signals.peers.known ||
             signals.table.distributed.world_size.value_or(1) > 1;
    case Subject::kTraining:
      return std::any_of(tree.phase.begin(), tree.phase.end(), [](Phase phase) {
        return phase == Phase::kBackward || phase == Phase::kOptimizer;
      });
    case Subject::kCompiledCode:
      return has_compiled_code(signals);
    case Subject::kGraphs:
      return std::any_of(signals.api_rows.begin(), signals.api_rows.end(), [&](Row r) {
        return signals.api(r) == ApiClass::kGraphLaunch ||
               signals.api(r) == ApiClass::kGraphBuilding;
      });
    case Subject::kServing:
      return serves_model(tree.workload.role) || !signals.served.iterations.empty();
    case Subject::kAnyWork:
      break;
  }
  return true;
}

Finding judge(const Rule& rule, const Signals& signals) {
  if (signals.is_unrecorded()) {
    Finding finding = abstain({"GPU records of the launches"});
    finding.type = rule.type;
    return finding;
  }
  Finding finding = rule.detect(signals);
  const bool blind = rule.reads_kernel_names && signals.foreign_kernels;
  if (blind && finding.verdict == Verdict::kAbsent)
    finding = abstain({"kernel names of CUDA or HIP"});
  finding.type = rule.type;
  return finding;
}

}  // namespace

std::vector<Row> evidence_rows(const EventTable& table, const EventTree& tree,
                               std::string_view type) {
  const Rule* rule = find_rule(type);
  if (rule == nullptr) return {};
  DetectOptions options;
  options.most_evidence = table.size();
  std::vector<Row> rows = rule->detect(build_signals(table, tree, options)).evidence;
  std::sort(rows.begin(), rows.end());
  return rows;
}

std::vector<Finding> detect_all(const Signals& signals) {
  std::array<std::optional<bool>, kSubjects> recorded;
  std::vector<Finding> findings;
  findings.reserve(all_rules().size());
  for (const Rule& rule : all_rules()) {
    poll_interrupt_now();
    findings.push_back(judge(rule, signals));
    std::optional<bool>& is_there = recorded[static_cast<std::size_t>(rule.subject)];
    if (!is_there) is_there = is_recorded(signals, rule.subject);
    Finding& finding = findings.back();
    finding.applies = (finding.applies && *is_there) || finding.verdict == Verdict::kPresent;
  }
  return findings;
}

std::vector<std::int64_t> compute_unclaimed_cost(const std::vector<Finding>& findings) {
  std::vector<std::size_t> order(findings.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto claim = [&](std::size_t i) {
    const Rule* rule = find_rule(findings[i].type);
    return rule ? rule->claim : Claim::kByCost;
  };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    if (claim(a) != claim(b)) return claim(a) > claim(b);
    return findings[a].cost_ns > findings[b].cost_ns;
  });
  std::vector<std::int64_t> unclaimed(findings.size(), 0);
  IntervalSet claimed;
  for (std::size_t index : order) {
    const Finding& finding = findings[index];
    if (finding.verdict != Verdict::kPresent) continue;
    unclaimed[index] = total_length_ns(set_difference(finding.intervals, claimed));
    claimed = set_union(claimed, finding.intervals);
  }
  return unclaimed;
}

}  // namespace traceap
