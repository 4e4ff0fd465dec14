// Pointwise operators and reductions run one behind the other on a busy GPU, each reading and
// writing its tensor, where one kernel could do them all: activations and normalisations written
// by hand.
//
// Cost: of each chain all kernels but the longest, which stays when they are fused; not while
// another stream computes. The queue was never empty between them: idle time is the host's
// (tiny_kernels, cpu_bound).

#include <algorithm>
#include <utility>

#include "traceap/base/interrupt.hpp"
#include "traceap/detect/queries/compile.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/overlap.hpp"
#include "traceap/detect/queries/pointwise.hpp"
#include "traceap/detect/queries/ranges.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// PyTorch's own layers end in up to three such kernels in a row (normalisation, residual,
/// activation or dropout), with the count of batches of a batch norm beside them. More is a formula
/// that was written out.
constexpr std::size_t kMinKernels = 4;
/// The fused kernel reads what all of them read: a chain over tensors of its own gains little.
constexpr SavingShares kSaving{.basis = SavingBasis::kGpuWork, .best = 0.5};

/// Code that is compiled already, and gradients that are added up or averaged: one kernel for each
/// parameter, with nothing to fuse (zero_grad_not_none says what they cost).
bool is_elsewhere(std::string_view name) {
  return is_compiled_region(name) || contains(name, "AccumulateGrad");
}

class ChainFinder {
 public:
  explicit ChainFinder(const Signals& signals)
      : signals_(signals),
        pointwise_(signals.table, is_pointwise_kernel),
        copy_(signals.table, is_pointwise_copy),
        reduction_(signals.table, is_reduction_kernel),
        normalisation_(signals.table, is_normalisation_kernel),
        elsewhere_(outermost_ranges(
            signals, [&, is_elsewhere = LazyNames(signals.table, is_elsewhere)](Row r) {
              return is_elsewhere(r);
            })) {}

  /// Chains of all streams, each by start.
  std::vector<std::vector<Row>> find() const {
    std::vector<std::vector<Row>> chains;
    for (const Stream& stream : signals_.tree.streams) {
      std::vector<Row> chain;
      Row before = kNoRow;
      const auto flush = [&] {
        if (is_long_enough(chain)) chains.push_back(std::move(chain));
        chain.clear();
      };
      for (Row r : stream.rows) {
        poll_interrupt();
        if (!is_fusible(r)) {
          flush();
        } else {
          if (!chain.empty() && !follows(before, r)) flush();
          chain.push_back(r);
        }
        before = r;
      }
      flush();
    }
    return chains;
  }

 private:
  bool is_fusible(Row r) const {
    if (signals_.table.kind[r] != EventKind::kKernel) return false;
    if (!pointwise_(r) && !reduction_(r) && !normalisation_(r)) return false;
    const Row launch = signals_.tree.launch[r];
    return launch != kNoRow && elsewhere_[launch] == kNoRow &&
           signals_.api(launch) == ApiClass::kKernelLaunch &&
           signals_.tree.phase[r] != Phase::kOptimizer;
  }
  /// Was `next` queued behind `before` by the same thread, in the same phase?
  bool follows(Row before, Row next) const {
    const EventTable& table = signals_.table;
    const Row launch = signals_.tree.launch[next], launch_before = signals_.tree.launch[before];
    return table.track[launch] == table.track[launch_before] &&
           signals_.tree.phase[next] == signals_.tree.phase[before] &&
           signals_.on_gpu_clock(interval_of(table, launch)).end_ns <= table.end_ns(before);
  }
  /// Copies and layers' own kernels can be fused too, but make no formula.
  bool is_long_enough(const std::vector<Row>& chain) const {
    return static_cast<std::size_t>(std::count_if(chain.begin(), chain.end(), [&](Row r) {
             return !copy_(r) && (pointwise_(r) || reduction_(r));
           })) >= kMinKernels;
  }

  const Signals& signals_;
  LazyNames<> pointwise_, copy_, reduction_, normalisation_;
  std::vector<Row> elsewhere_;
};

/// All but the longest, and but the copies, which have types of their own.
void add_cost(const Signals& signals, const std::vector<Row>& chain, const LazyNames<>& is_copy,
              Draft& draft) {
  const Row longest = *std::max_element(chain.begin(), chain.end(), [&](Row a, Row b) {
    return signals.table.dur_ns[a] < signals.table.dur_ns[b];
  });
  for (Row r : chain) {
    if (r == longest || is_copy(r)) continue;
    draft.cost.push_back(interval_of(signals.table, r));
    draft.evidence.push_back(r);
  }
}

Finding detect(const Signals& signals) {
  if (!signals.has_gpu) return abstain({"GPU events"});
  if (signals.tree.linked_gpu_rows.empty()) return abstain({"launch calls of GPU events"});
  const std::vector<std::vector<Row>> chains = ChainFinder(signals).find();
  if (chains.empty()) return absent();
  const LazyNames is_copy(signals.table, is_pointwise_copy);
  Draft draft(kSaving);
  std::size_t kernels = 0;
  std::vector<Row> operators;
  for (const std::vector<Row>& chain : chains) {
    add_cost(signals, chain, is_copy, draft);
    kernels += chain.size();
    for (Row r : chain) {
      if (signals.tree.op[r] != kNoRow) operators.push_back(signals.tree.op[r]);
    }
  }
  draft.cost = set_difference(make_union(std::move(draft.cost)), shared_compute_time(signals));
  draft.confidence = 0.8;  // which tensors they share, the trace does not say
  draft.count("kernels", kernels);
  draft.count("chains", chains.size());
  if (!operators.empty()) {
    draft.text("operations", most_frequent_names(signals.table, operators, 3));
  }
  // Without operators nothing tells a formula from an optimiser's update of many tensors.
  return finish_told_by_operators(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule unfused_pointwise{
    .type = "unfused_pointwise", .reads_kernel_names = true, .saving = kSaving, .detect = detect};
}

}  // namespace traceap
