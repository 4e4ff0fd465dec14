#include <algorithm>
#include <set>

#include "traceap/base/interrupt.hpp"
#include "traceap/detect/queries/compile.hpp"

namespace traceap {
namespace {

constexpr std::size_t kMinSteps = 2;
/// Without steps: two recordings are a shape and another one.
constexpr std::size_t kMinCaptures = 3;

/// Steps that begin in steady state.
std::size_t steady_steps(const EventTree& tree) {
  return static_cast<std::size_t>(
      std::count_if(tree.steps.begin(), tree.steps.end(),
                    [&](const Step& step) { return step.start_ns >= tree.warm_up.end_ns; }));
}

bool in_every_other_step(const Signals& signals, const std::vector<GraphCapture>& captures) {
  const auto& steps = signals.tree.steps;
  std::set<std::ptrdiff_t> with_capture;
  for (const GraphCapture& capture : captures) {
    const auto after = std::partition_point(steps.begin(), steps.end(), [&](const Step& step) {
      return step.start_ns <= capture.host.start_ns;
    });
    with_capture.insert(after - steps.begin());
  }
  return with_capture.size() >= kMinSteps && 2 * with_capture.size() >= steady_steps(signals.tree);
}

/// Where an engine serves, graphs are captured before the first iteration; what it captures behind
/// that stalls requests.
bool is_in_service(const Signals& signals, const GraphCapture& capture) {
  const auto& iterations = signals.served.iterations;
  return signals.served.marked && iterations.size() >= 2 &&
         capture.host.start_ns >= iterations[0].host.end_ns;
}

/// One may be a size that nobody foresaw.
bool stall_service(const Signals& signals, const std::vector<GraphCapture>& captures) {
  constexpr std::ptrdiff_t kMinInService = 2;
  return kMinInService <=
         std::count_if(captures.begin(), captures.end(), [&](const GraphCapture& capture) {
           return is_in_service(signals, capture);
         });
}

/// Is hardly any graph replayed, up to the end?
bool go_on_to_the_end(const Signals& signals, const std::vector<GraphCapture>& captures) {
  if (captures.size() < kMinCaptures) return false;
  const std::int64_t steady_ns = signals.tree.warm_up.end_ns;
  std::size_t replays = 0;
  std::int64_t last_ns = steady_ns;
  for (Row r : signals.api_rows) {
    poll_interrupt();
    if (signals.table.ts_ns[r] < steady_ns || !starts_gpu_work(signals.api(r))) continue;
    last_ns = std::max(last_ns, signals.table.ts_ns[r]);
    if (signals.api(r) == ApiClass::kGraphLaunch) ++replays;
  }
  const std::int64_t quarter_ns = (last_ns - steady_ns) / 4;
  return replays <= 2 * captures.size() && captures.back().host.end_ns >= last_ns - quarter_ns;
}

}  // namespace

GraphCaptures find_graph_captures(const Signals& signals) {
  const WarmUp& warm_up = signals.tree.warm_up;
  GraphCaptures split;
  for (const GraphCapture& capture : find_graph_captures(signals.table, signals.tree)) {
    const bool steady = (warm_up.known && capture.host.start_ns >= warm_up.end_ns) ||
                        is_in_service(signals, capture);
    (steady ? split.again : split.first).push_back(capture);
  }
  split.sure = warm_up.by_steps;
  const bool anew = stall_service(signals, split.again) ||
                    (warm_up.by_steps ? in_every_other_step(signals, split.again)
                                      : go_on_to_the_end(signals, split.again));
  if (!anew) {
    split.first.insert(split.first.end(), split.again.begin(), split.again.end());
    split.again.clear();
  }
  return split;
}

}  // namespace traceap
