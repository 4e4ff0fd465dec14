// Where warm-up ends: by the numbers of steps, by their count, or by the kernels that repeat.

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

#include "traceap/base/interrupt.hpp"
#include "traceap/tree/build_parts.hpp"

namespace traceap {

namespace {

/// A step with this number in its name (ProfilerStep#2) follows two others of the same program, so
/// that compilation, autotuning and the growth of the memory pool lie behind it.
constexpr std::int64_t kFirstWarmStepNumber = 2;
/// A loop shows all its kernels in the first round, a program that runs once shows new ones to the
/// end. When this share of the names has been seen ...
constexpr double kSeenNames = 0.9;
/// ... and this share of the kernels is still to come, it is a loop, and warm from then on.
constexpr double kKernelsToCome = 0.5;
/// Fewer kernels than this tell nothing.
constexpr std::size_t kMinKernels = 50;

/// N of "ProfilerStep#N".
std::optional<std::int64_t> profiler_step_number(std::string_view name) {
  constexpr std::string_view kPrefix = "ProfilerStep#";
  if (name.substr(0, kPrefix.size()) != kPrefix) return std::nullopt;
  std::int64_t number = 0;
  const char* begin = name.data() + kPrefix.size();
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return number;
}

WarmUp warm_up_by_repetition(const EventTable& table, const EventTree& tree) {
  const auto& rows = tree.linked_gpu_rows;
  if (rows.size() < kMinKernels) return {};
  std::vector<std::uint8_t> seen(table.strings.size(), 0);
  std::vector<std::size_t> first_uses;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    poll_interrupt();
    std::uint8_t& name_seen = seen[table.name[rows[i]]];
    if (name_seen == 0) first_uses.push_back(i);
    name_seen = 1;
  }
  const auto last =
      static_cast<std::size_t>(std::ceil(kSeenNames * static_cast<double>(first_uses.size())) - 1);
  const std::size_t at = first_uses[std::min(last, first_uses.size() - 1)];
  const auto to_come = static_cast<double>(rows.size() - at);
  if (to_come < kKernelsToCome * static_cast<double>(rows.size())) return {};
  const Row launch = tree.launch[rows[at]];
  if (launch == kNoRow) return {};
  return {true, false, table.end_ns(launch)};
}

}  // namespace

void find_warm_up(const TreeContext& context, EventTree& tree) {
  const auto& steps = tree.steps;
  if (!steps.empty() && !tree.steps_inferred) {
    const auto number = profiler_step_number(steps.front().name);
    if (number && *number >= kFirstWarmStepNumber) {
      tree.warm_up = {true, true, steps.front().start_ns};
      return;
    }
  }
  tree.warm_up = steps.size() >= 2 ? WarmUp{true, true, steps[1].start_ns}
                                   : warm_up_by_repetition(context.table, tree);
}

}  // namespace traceap
