#pragma once
// How a rule turns what it saw into a Finding; every rule ends in finish_finding or abstain.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "traceap/detect/finding.hpp"

namespace traceap {

/// What part of the cost a fix could give back, for the bound on the saving.
enum class SavingBasis : std::uint8_t {
  kIdleOrExposed,  ///< cost during which no compute kernel runs: idle, or a copy/collective alone
  kIdle,           ///< cost during which the GPU runs nothing
  kCost,           ///< the cost itself (work that goes away or gets faster)
};
/// Shares of the basis; high is always the whole of it.
struct SavingShares {
  SavingBasis basis = SavingBasis::kIdleOrExposed;
  double low = 0.0;
  double best = 1.0;
};

/// What a rule has collected. Intervals may overlap and reach beyond the profiled time.
struct Draft {
  explicit Draft(std::string_view type_name) : type(type_name) {}
  std::string_view type;
  std::vector<Interval> cost;
  std::vector<Row>
      evidence;  ///< any order, repeats allowed; the heaviest come first in the finding
  /// Parallel to `evidence`: what each row costs; repeats add up. Empty: the rows' durations.
  std::vector<std::int64_t> evidence_weights;
  std::vector<std::pair<std::string, std::string>> facts;
  std::vector<std::string> missing_signals;  ///< present ones make the verdict less sure
  double confidence = 0.9;
  SavingShares saving;

  void fact(std::string name, std::string value) {
    facts.emplace_back(std::move(name), std::move(value));
  }
  void fact(std::string name, std::int64_t value) { fact(std::move(name), std::to_string(value)); }
};

/// Unions and clips the cost to the profiled time, decides present/absent by material_share,
/// bounds the saving. An absent finding keeps its (immaterial) cost and evidence.
Finding finish_finding(const Signals& signals, Draft draft);
/// The signal is truly missing: verdict unknown, no cost.
Finding abstain(std::string_view type, std::initializer_list<std::string_view> missing_signals);
/// The signal is there and the pattern is not: verdict absent, no cost.
Finding absent(std::string_view type, double confidence = 0.9);
/// Does the row touch the profiled time?
bool in_profile(const Signals& signals, Row row);
/// Is `cost_ns` at least material_share of the profiled time?
bool is_material(const Signals& signals, std::int64_t cost_ns);

/// GPU idle in stretches of at least `min_length_ns` during which no thread ran an operator or an
/// API call. Ranges around code (annotations, frames, legacy ranges written as operators) don't
/// count as work, unless nothing was recorded inside one.
IntervalSet silent_idle(const Signals& signals, std::int64_t min_length_ns);

/// "12.3 ms", for facts.
std::string format_ms(std::int64_t ns);
/// "37.5 %", for facts.
std::string format_percent(double share);

}  // namespace traceap
