#pragma once
// One rule's word on a trace, by the rule's type.

#include <cstdio>
#include <string>
#include <string_view>
#include <variant>

#include "catch.hpp"
#include "trace_text.hpp"
#include "traceap/detect/rules.hpp"

inline traceap::Finding run_rule(std::string_view type, const traceap::Signals& signals) {
  INFO(type);
  const traceap::Rule* rule = traceap::find_rule(type);
  REQUIRE(rule != nullptr);
  return rule->detect(signals);
}

inline traceap::Finding judge(std::string_view type, const TraceText& text,
                              const traceap::DetectOptions& options = {}) {
  const traceap::EventTable table = text.table();
  const traceap::EventTree tree = traceap::build_tree(table);
  return run_rule(type, traceap::build_signals(table, tree, options));
}

/// The bare value of a fact: "4", nanoseconds, bytes, "0.25", a text; empty where there is none.
inline std::string fact(const traceap::Finding& finding, std::string_view name) {
  for (const traceap::Fact& fact : finding.facts) {
    if (fact.name != name) continue;
    if (const auto* text = std::get_if<std::string>(&fact.value)) return *text;
    if (const auto* count = std::get_if<std::int64_t>(&fact.value)) return std::to_string(*count);
    char text[32];
    std::snprintf(text, sizeof text, "%g", std::get<double>(fact.value));
    return text;
  }
  return "";
}
