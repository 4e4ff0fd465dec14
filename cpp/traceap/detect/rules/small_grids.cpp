// Long kernels whose grids leave most of the device without work: fewer blocks than
// multiprocessors, or matrix products whose last wave is almost empty.
//
// Cost: of each kernel the part of its time for which the multiprocessors stand idle on average, at
// its end, where nothing else computes beside it.

#include <algorithm>
#include <cmath>
#include <optional>

#include "traceap/base/interrupt.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/overlap.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// A kernel shorter than this is bound by its start rather than by its arithmetic: more blocks
/// would not make it shorter.
constexpr std::int64_t kMinKernelNs = 20'000;
/// Kernels that take the whole device on purpose (persistent ones, with a few blocks left out for
/// clusters) and products with an odd number of tiles use more than this.
constexpr double kMaxUsedShare = 0.6;
/// Finer tiles or a split of the sum fill the device, at the price of more traffic.
constexpr SavingShares kSaving{.basis = SavingBasis::kGpuWork, .best = 0.5};

/// Blocks of these keep a multiprocessor's matrix units busy: two on one take twice as long, so
/// that a multiprocessor with one block more than the others ends last. Other blocks may share one
/// without taking longer.
bool fills_multiprocessor(std::string_view name) {
  return contains_any(name, {"gemm", "Gemm", "GEMM", "wgrad", "dgrad", "fprop", "nvjet", "cutlass",
                             "flash_fwd", "flash_bwd", "fmha"});
}

class GridReader {
 public:
  explicit GridReader(const Signals& signals)
      : blocks_(signals.table, "blocks per SM"), fills_(signals.table, fills_multiprocessor) {}

  bool told(Row kernel) const { return blocks_.number(kernel).has_value(); }
  /// The share of the multiprocessors at work, on average over the kernel's time; 1 where nothing
  /// tells.
  double used_share(Row kernel) const {
    const double blocks = blocks_.number(kernel).value_or(1.0);
    if (!(blocks > 0.0)) return 1.0;
    if (blocks >= 1.0 && !fills_(kernel)) return 1.0;
    return std::min(1.0, blocks / std::ceil(blocks));
  }
  bool is_small(Row kernel) const { return used_share(kernel) <= kMaxUsedShare; }

 private:
  ArgReader blocks_;
  LazyNames<> fills_;
};

/// Long compute kernels, by start.
std::vector<Row> long_kernels(const Signals& signals) {
  std::vector<Row> rows;
  for (Row r : signals.tree.gpu_rows) {
    poll_interrupt();
    if (signals.table.kind[r] == EventKind::kKernel &&
        signals.tree.gpu_class[r] == GpuClass::kCompute &&
        signals.table.dur_ns[r] >= kMinKernelNs) {
      rows.push_back(r);
    }
  }
  return rows;
}

std::int64_t total_ns(const Signals& signals, const std::vector<Row>& rows) {
  std::vector<Interval> times;
  for (Row r : rows) times.push_back(interval_of(signals.table, r));
  return total_length_ns(make_union(std::move(times)));
}

Finding detect(const Signals& signals) {
  if (!signals.has_gpu) return abstain({"GPU events"});
  const GridReader grids(signals);
  Draft draft(kSaving);
  std::vector<Interval> empty;
  std::vector<Row> untold;
  double blocks_fill = 0.0;
  for (Row r : long_kernels(signals)) {
    if (!grids.told(r)) {
      untold.push_back(r);
    } else if (grids.is_small(r)) {
      const Interval kernel = interval_of(signals.table, r);
      const double used = grids.used_share(r);
      const auto busy_ns = std::llround(used * static_cast<double>(kernel.length_ns()));
      empty.push_back({kernel.start_ns + busy_ns, kernel.end_ns});
      draft.evidence.push_back(r);
      blocks_fill += used;
    }
  }
  draft.cost = set_difference(make_union(std::move(empty)), shared_compute_time(signals));
  draft.confidence = 0.8;  // a kernel may be bound by the latency of a chain of steps in a block
  if (!draft.evidence.empty()) {
    draft.count("kernels", draft.evidence.size());
    draft.share("of the device in use", blocks_fill / static_cast<double>(draft.evidence.size()));
    draft.text("kernel", most_frequent_names(signals.table, draft.evidence, 1));
  }
  Finding finding = finish_finding(signals, std::move(draft));
  if (finding.verdict == Verdict::kPresent || !is_material(signals, total_ns(signals, untold))) {
    return finding;
  }
  return abstain({"blocks per multiprocessor of the kernels"});
}

}  // namespace

namespace rules {
extern constexpr Rule small_grids{.type = "small_grids", .saving = kSaving, .detect = detect};
}

}  // namespace traceap
