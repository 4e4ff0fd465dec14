// Computation runs beside a collective and takes longer than it does alone: both share the
// multiprocessors and the memory's bandwidth.
//
// Cost: of each kernel that runs beside communication the time beyond the median of the same kernel
// alone, at its end. The same kernel has the same name, grid, block and inputs of its operator. It
// counts only where the two kinds of runs stand apart: the fastest quarter beside a collective is
// slower than the slowest quarter alone.

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/statistics.hpp"
#include "traceap/detect/queries/collectives.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/overlap.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// Shorter kernels vary by as much from run to run.
constexpr std::int64_t kMinKernelNs = 20'000;
/// A median of fewer runs is an anecdote.
constexpr std::size_t kMinRuns = 3;
/// Fewer channels or copies by the copy engines give back some of it, and make the collective
/// slower.
constexpr SavingShares kSaving{.basis = SavingBasis::kCost, .best = 0.5};

/// Runs of one kernel, by whether communication ran beside them.
struct Runs {
  std::vector<Row> alone, beside;
};

class RunsByKernel {
 public:
  explicit RunsByKernel(const Signals& signals)
      : signals_(signals),
        communication_(signals.gpu.communication),
        grid_(signals.table, "grid"),
        block_(signals.table, "block"),
        dims_(signals.table, "Input Dims") {}

  std::vector<Runs> find() {
    for (const Row row : signals_.tree.gpu_rows) {
      poll_interrupt();
      if (signals_.table.kind[row] == EventKind::kKernel &&
          signals_.tree.gpu_class[row] == GpuClass::kCompute &&
          signals_.table.dur_ns[row] >= kMinKernelNs) {
        add(row);
      }
    }
    std::vector<Runs> all;
    for (auto& [key, runs] : runs_) all.push_back(std::move(runs));
    return all;
  }

 private:
  using Key = std::tuple<StringId, std::string, std::string, std::string>;

  Key key_of(Row row) const {
    const Row op = signals_.tree.op[row];
    return {signals_.table.name[row], grid_.json(row).value_or(""), block_.json(row).value_or(""),
            op == kNoRow ? "" : dims_.json(op).value_or("")};
  }

  void add(Row row) {
    const Interval own = interval_of(signals_.table, row);
    const std::int64_t shared_ns = communication_.covered_ns(own);
    if (shared_ns == 0) {
      runs_[key_of(row)].alone.push_back(row);
    } else if (2 * shared_ns >= own.length_ns()) {
      runs_[key_of(row)].beside.push_back(row);
    }
  }

  const Signals& signals_;
  CoverIndex communication_;
  ArgReader grid_, block_, dims_;
  std::map<Key, Runs> runs_;
};

std::vector<std::int64_t> durations_of(const Signals& signals, const std::vector<Row>& rows) {
  std::vector<std::int64_t> durations;
  for (const Row row : rows) durations.push_back(signals.table.dur_ns[row]);
  return durations;
}

Finding detect(const Signals& signals) {
  if (auto early = judge_without_collectives(signals)) return *early;
  Draft draft(kSaving);
  std::vector<Interval> lost;
  std::int64_t worst_ns = 0, worst_alone_ns = 0, worst_beside_ns = 0, kernels = 0;
  std::vector<Row> worst;
  for (const Runs& runs : RunsByKernel(signals).find()) {
    if (runs.alone.size() < kMinRuns || runs.beside.size() < kMinRuns) continue;
    std::vector<std::int64_t> alone = durations_of(signals, runs.alone);
    std::vector<std::int64_t> beside = durations_of(signals, runs.beside);
    if (quantile_of(beside, 0.25) <= quantile_of(alone, 0.75)) continue;
    const std::int64_t alone_ns = median_of(alone);
    std::int64_t lost_ns = 0;
    for (const Row row : runs.beside) {
      const Interval own = interval_of(signals.table, row);
      const std::int64_t excess_ns = own.length_ns() - alone_ns;
      if (excess_ns <= 0) continue;
      lost.push_back({own.end_ns - excess_ns, own.end_ns});
      draft.evidence.push_back(row);
      draft.evidence_weights.push_back(excess_ns);
      lost_ns += excess_ns;
      ++kernels;
    }
    if (lost_ns <= worst_ns) continue;
    worst_ns = lost_ns;
    worst_alone_ns = alone_ns;
    worst_beside_ns = median_of(beside);
    worst = runs.beside;
  }
  draft.cost = set_difference(make_union(std::move(lost)), shared_compute_time(signals));
  draft.confidence = 0.8;  // a clock that drops meanwhile slows kernels too
  if (kernels > 0) {
    draft.count("kernels", kernels);
    draft.text("kernel", most_frequent_names(signals.table, worst, 1));
    draft.duration("alone", worst_alone_ns);
    draft.duration("beside communication", worst_beside_ns);
  }
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule compute_slowed_by_communication{.type = "compute_slowed_by_communication",
                                                      .claim = Claim::kSpecific,
                                                      .subject = Subject::kCollectives,
                                                      .saving = kSaving,
                                                      .detect = detect};
}

}  // namespace traceap
