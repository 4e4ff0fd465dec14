#pragma once
// What the rules say of the corpus traces.

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "catch.hpp"
#include "corpus.hpp"
#include "traceap/detect/rules.hpp"
#include "traceap/trace/read.hpp"

namespace traceap {

using Verdicts = std::map<std::string_view, Verdict>;

/// The verdict of every rule; nothing where the trace is not there.
inline std::optional<Verdicts> verdicts_of(const std::string& name) {
  const std::filesystem::path path = corpus_folder() / name;
  if (!std::filesystem::exists(path)) {
    WARN("no such trace: " << path);
    return std::nullopt;
  }
  const EventTable table = read_trace(path.string());
  const EventTree tree = build_tree(table);
  const Signals signals = build_signals(table, tree);
  Verdicts verdicts;
  for (const Rule& rule : all_rules()) verdicts[rule.type] = rule.detect(signals).verdict;
  return verdicts;
}

/// Some types are present; the others are absent or, where the trace need not show it, unknown.
inline void expect_verdicts(const std::string& name, std::initializer_list<const char*> present,
                            std::initializer_list<const char*> others,
                            std::initializer_list<Verdict> verdicts_of_others) {
  const auto verdicts = verdicts_of(name);
  if (!verdicts) return;
  for (const char* type : present) {
    INFO(name << " has " << type);
    CHECK(verdicts->at(type) == Verdict::kPresent);
  }
  for (const char* type : others) {
    INFO(name << " does not have " << type);
    CHECK(std::count(verdicts_of_others.begin(), verdicts_of_others.end(), verdicts->at(type)) ==
          1);
  }
}

}  // namespace traceap
