#pragma once
// The rules. Each file of rules/ defines one `Rule` under the file's own name in namespace `rules`;
// the build lists them (rule_list.cpp.in).

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "traceap/detect/evidence.hpp"

namespace traceap {

/// Whose time it is where the costs of findings overlap: the later of these goes first, then the
/// larger cost. A generic type never takes the time of one that names what happened in it.
enum class Claim : std::uint8_t {
  kLeftOver = 0,  ///< the host was late, for whatever reason no other rule names
  kGeneral,       ///< a kind of work as a whole, of which other rules name a case
  kByCost,
  kSpecific,   ///< names the cause of what another rule sees only the symptom of
  kRootCause,  ///< the others' cost only exists because of it
};

/// What a rule is about. Where a trace holds no such work, the rule does not apply: it is absent,
/// and nobody is told that it is fine.
enum class Subject : std::uint8_t {
  kAnyWork = 0,
  kCollectives,
  kTraining,
  kCompiledCode,
  kGraphs,
  kServing,
};
inline constexpr std::size_t kSubjects = 6;

struct Rule {
  std::string_view type;         ///< stable snake_case name, as in the knowledge base
  std::uint8_t paper_place = 0;  ///< among the paper's eight, from 1, in INTERFACE's order; else 0
  Claim claim = Claim::kByCost;
  Subject subject = Subject::kAnyWork;
  /// What kernels do it reads off their names: nothing where a device has names of its own.
  bool reads_kernel_names = false;
  SavingShares saving;  ///< what its drafts begin with; docs/rules.md lists them
  Finding (*detect)(const Signals& signals) = nullptr;
};

/// All rules: the paper's eight in INTERFACE's order, then ours by name.
const std::vector<Rule>& all_rules();
/// Null for a type that no rule has.
const Rule* find_rule(std::string_view type);

/// All rows that show a type, by start, whatever its verdict; empty for one that no rule has.
std::vector<Row> evidence_rows(const EventTable& table, const EventTree& tree,
                               std::string_view type);

/// Runs every rule, in the order of `all_rules`.
std::vector<Finding> detect_all(const Signals& signals);
/// cost_ns of each finding that no finding ranked before it has claimed (by `Rule::claim`, then by
/// cost, largest first): overlapping causes are not counted twice. Same order as `findings`.
std::vector<std::int64_t> compute_unclaimed_cost(const std::vector<Finding>& findings);

}  // namespace traceap
