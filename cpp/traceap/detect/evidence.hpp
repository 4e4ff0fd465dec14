#pragma once
// How a rule turns what it saw into a Finding; every rule ends in finish_finding or abstain.

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "traceap/detect/finding.hpp"

namespace traceap {

/// What part of the cost a fix could give back, for the bound on the saving.
enum class SavingBasis : std::uint8_t {
  kIdleOrExposed,  ///< cost during which no compute kernel runs: idle, or a copy/collective alone
  kIdle,           ///< cost during which the GPU runs nothing
  kCost,           ///< the cost itself (work that goes away)
  /// The cost, GPU work that would get shorter. Where the host is late, shorter kernels leave
  /// longer gaps: the share of busy time stands for that, and multiplies `best`.
  kGpuWork,
  /// The cost, of which `best` takes the idle time whole and its share of the work only.
  kIdleAndWork,
};
/// Careful figure, guess and bound as shares of the basis, in [0, 1].
struct SavingShares {
  SavingBasis basis = SavingBasis::kIdleOrExposed;
  double low = 0.0;
  double best = 1.0;
  double high = 1.0;
};

/// What a rule has collected. Intervals may overlap and reach beyond the profiled time.
struct Draft {
  explicit Draft(const SavingShares& shares) : saving(shares) {}
  std::vector<Interval> cost;
  /// Any order, repeats allowed; the heaviest come first in the finding.
  std::vector<Row> evidence;
  /// Parallel to `evidence`: what each row costs; repeats add up. Empty: the rows' durations.
  std::vector<std::int64_t> evidence_weights;
  std::vector<Fact> facts;
  std::vector<std::string> missing_signals;  ///< present ones make the verdict less sure
  double confidence = 0.9;  ///< the trace says it outright; what is inferred is less sure
  SavingShares saving;
  /// A bound on the saving from elsewhere: the basis counts up to it.
  std::optional<std::int64_t> saving_limit_ns;
  /// Part of the cost that the fix does not touch: it counts for no saving.
  IntervalSet kept_cost;
  /// What the fix gives back beside the cost, by whose definition it belongs to others.
  IntervalSet regained;

  void count(std::string name, std::integral auto value) {
    add(std::move(name), FactKind::kCount, static_cast<std::int64_t>(value));
  }
  void duration(std::string name, std::int64_t ns) {
    add(std::move(name), FactKind::kDuration, ns);
  }
  void bytes(std::string name, std::int64_t size) { add(std::move(name), FactKind::kBytes, size); }
  void share(std::string name, double value) { add(std::move(name), FactKind::kShare, value); }
  void rate(std::string name, double value) { add(std::move(name), FactKind::kRate, value); }
  void text(std::string name, std::string value) {
    add(std::move(name), FactKind::kText, std::move(value));
  }

 private:
  template <class Value>
  void add(std::string name, FactKind kind, Value value) {
    facts.push_back({.name = std::move(name), .kind = kind, .value = std::move(value)});
  }
};

/// Unions and clips the cost to the profiled time, decides present/absent by material_share,
/// bounds the saving. An absent finding keeps its (immaterial) cost and evidence.
Finding finish_finding(const Signals& signals, Draft draft);
/// The same, but unknown where it would be present and no operator is recorded: calls and kernels
/// alone do not tell such a pattern from others.
Finding finish_told_by_operators(const Signals& signals, Draft draft);
/// The signal is truly missing: verdict unknown, no cost.
Finding abstain(std::initializer_list<std::string_view> missing_signals);
/// What of the links from operators to GPU work the trace lacks (Signals::links_operators).
std::string_view missing_link(const Signals& signals);
/// The signal is there and the pattern is not: verdict absent, no cost. Less sure where the pattern
/// may have left no mark.
Finding absent(double confidence = 0.9);
/// Does the row touch the profiled time?
bool in_profile(const Signals& signals, Row row);
/// Is `cost_ns` at least material_share of the profiled time?
bool is_material(const Signals& signals, std::int64_t cost_ns);

/// `count` by step, as a fact; nothing without steps.
void add_per_step_fact(const Signals& signals, Draft& draft, std::string name, std::size_t count);

}  // namespace traceap
