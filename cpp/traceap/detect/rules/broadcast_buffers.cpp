// DistributedDataParallel broadcasts the module's buffers (batch norm statistics) from rank 0 at
// the start of each forward pass, and the pass waits for it.
//
// Cost: the exposed part of broadcasts in DistributedDataParallel.forward ranges, else of those
// outside backward and optimizer that come in several steps.

#include <algorithm>

#include "traceap/detect/queries/collectives.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/ranges.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// The broadcast goes away; half of it is the careful figure where a forward pass would wait
/// anyway.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdleOrExposed, .low = 0.5};
/// Parameters are broadcast once, when the model is wrapped; buffers in every step.
constexpr std::size_t kMinSteps = 2;

bool is_before_backward(const Signals& signals, Row row) {
  const Phase phase = signals.tree.phase[row];
  return phase != Phase::kBackward && phase != Phase::kOptimizer;
}

Finding detect(const Signals& signals) {
  if (signals.gpu.communication.empty() || !has_backward(signals)) return absent();
  const LazyNames is_ddp(signals.table, [](std::string_view name) {
    return contains(name, "DistributedDataParallel.forward");
  });
  const std::vector<Row> inside = outermost_ranges(signals, is_ddp);
  std::vector<Row> in_ddp, elsewhere;
  std::vector<std::uint32_t> steps;
  bool unnamed = false;
  for (const Collective& c : signals.collectives) {
    unnamed = unnamed || c.kind == CollectiveKind::kUnknown;
    if (c.kind != CollectiveKind::kBroadcast || !is_before_backward(signals, c.row)) continue;
    const Row launch = signals.tree.launch[c.row];
    if (launch != kNoRow && inside[launch] != kNoRow) {
      in_ddp.push_back(c.row);
    } else if (const std::uint32_t step = signals.tree.step[c.row]; step != kNoStep) {
      elsewhere.push_back(c.row);
      if (steps.empty() || steps.back() != step) steps.push_back(step);
    }
  }
  std::sort(steps.begin(), steps.end());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  const bool repeats = steps.size() >= kMinSteps;
  const std::vector<Row>& rows = in_ddp.empty() && repeats ? elsewhere : in_ddp;
  // Kernels that do not name their kind may be broadcasts.
  if (rows.empty()) return absent(unnamed ? 0.6 : 0.9);
  Draft draft(kSaving);
  std::vector<Interval> own;
  for (Row r : rows) own.push_back(interval_of(signals.table, r));
  draft.cost = set_difference(make_union(std::move(own)), signals.gpu.compute);
  draft.cost = set_difference(draft.cost, waits_for_late_ranks(signals));
  draft.evidence = rows;
  draft.count("broadcasts", rows.size());
  // Without the range of DDP a program may broadcast for reasons of its own.
  draft.confidence = in_ddp.empty() ? 0.7 : 0.9;
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule broadcast_buffers{.type = "broadcast_buffers",
                                        .subject = Subject::kCollectives,
                                        .saving = kSaving,
                                        .detect = detect};
}

}  // namespace traceap
