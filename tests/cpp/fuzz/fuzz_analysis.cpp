// Whatever traces the reader lets through, everything behind it answers, with sums that add up, and
// gives the same answer twice.

#include <algorithm>

#include "exercises.hpp"
#include "traceap/base/error.hpp"
#include "traceap/trace/read.hpp"

namespace traceap::fuzz {
namespace {

Ranks read_ranks(const Input& input) {
  ReadOptions options;
  options.threads = 1;
  Ranks ranks;
  for (const std::string& text : input.texts) {
    // Half of them have their arguments packed with the events, as in a trace where none repeat.
    options.free_templates = text.size() % 2 == 0 ? 0 : ReadOptions().free_templates;
    try {
      ranks.push_back(std::make_unique<const Rank>(read_trace_bytes(text, "fuzz", options)));
    } catch (const ParseError&) {
    }
  }
  return ranks;
}

void exercise_rank(const Rank& rank, Choices& choices) {
  exercise_table(rank.table, choices);
  exercise_tree(rank);
  exercise_idle(rank, choices);
  exercise_costs(rank, choices);
  exercise_compat(rank, choices);
  exercise_rules(rank, choices);
  exercise_windows(rank, choices);
}

/// The first half of the ranks against the second; one alone against itself.
void exercise_halves(const Ranks& ranks) {
  const std::size_t half = std::max<std::size_t>(ranks.size() / 2, 1);
  exercise_diff(std::span(ranks).first(half), std::span(ranks).last(half));
}

}  // namespace
}  // namespace traceap::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace traceap::fuzz;
  const Input input = split_input({reinterpret_cast<const char*>(data), size});
  const Ranks ranks = read_ranks(input);
  if (ranks.empty()) return 0;
  Choices choices(input.choices);
  for (const auto& rank : ranks) exercise_rank(*rank, choices);
  exercise_ranks(ranks, choices);
  exercise_halves(ranks);
  return 0;
}
