// A convolution adds a bias that the batch norm behind it takes away again: it subtracts the mean.
// After torch's own pattern Conv2dBiasFollowedByBatchNorm2d.
//
// Cost: the kernels that add the bias, and those that sum its gradient. In inference the batch norm
// subtracts a recorded mean, and the bias counts.

#include <algorithm>
#include <unordered_set>

#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/operators.hpp"
#include "traceap/detect/queries/pointwise.hpp"
#include "traceap/detect/queries/ranges.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// The kernels go away whole.
constexpr SavingShares kSaving{.basis = SavingBasis::kGpuWork, .best = 0.9};

bool is_convolution(std::string_view name) {
  return is_any(name,
                {"aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::convolution",
                 "aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d"});
}

class BiasFinder {
 public:
  explicit BiasFinder(const Signals& signals)
      : signals_(signals),
        convolution_(signals.table, is_convolution),
        batch_norm_(signals.table,
                    [](std::string_view name) { return name == "aten::batch_norm"; }),
        add_(signals.table, [](std::string_view name) { return name == "aten::add_"; }),
        reduction_(signals.table, is_reduction_kernel) {
    for (const std::vector<Row>& operators : outermost_operators(signals)) {
      for (std::size_t i = 1; i < operators.size(); ++i) {
        if (!batch_norm_(operators[i]) || !convolution_(operators[i - 1])) continue;
        add_forward(operators[i - 1]);
      }
    }
    add_backward();
  }

  /// Does any such convolution hold an addition, whatever it launched?
  bool any() const { return any_; }
  const std::vector<Row>& convolutions() const { return convolutions_; }
  const std::vector<Row>& kernels() const { return kernels_; }

 private:
  /// Backends add the bias by an operator of its own inside the convolution, or not at all: then it
  /// costs nothing here.
  void add_forward(Row convolution) {
    const std::size_t before = kernels_.size();
    for (Row r : subtree_rows(signals_.tree, convolution)) {
      if (!add_(r)) continue;
      any_ = true;
      const std::vector<Row> added = gpu_rows_inside(signals_, r);
      kernels_.insert(kernels_.end(), added.begin(), added.end());
    }
    if (kernels_.size() == before) return;
    convolutions_.push_back(convolution);
    forward_.insert(convolution);
    for (Row r : subtree_rows(signals_.tree, convolution)) forward_.insert(r);
  }
  /// The bias' gradient is a sum over everything but the channels.
  void add_backward() {
    if (forward_.empty()) return;
    const std::vector<Row> backward = outermost_ranges(
        signals_, [&](Row r) { return forward_.contains(signals_.tree.forward[r]); });
    for (Row g : signals_.tree.gpu_rows) {
      const Row launch = signals_.tree.launch[g];
      if (launch != kNoRow && backward[launch] != kNoRow && reduction_(g)) kernels_.push_back(g);
    }
    std::sort(kernels_.begin(), kernels_.end());
    kernels_.erase(std::unique(kernels_.begin(), kernels_.end()), kernels_.end());
  }

  const Signals& signals_;
  LazyNames<> convolution_, batch_norm_, add_, reduction_;
  std::vector<Row> convolutions_, kernels_;
  std::unordered_set<Row> forward_;
  bool any_ = false;
};

Finding detect(const Signals& signals) {
  if (!signals.has_gpu) return abstain({"GPU events"});
  if (!signals.has_operators) return abstain({"host operators"});
  if (!has_backward(signals)) return absent();
  const BiasFinder found(signals);
  if (found.any() && !signals.links_operators()) return abstain({missing_link(signals)});
  if (found.convolutions().empty()) return absent();
  Draft draft(kSaving);
  for (Row r : found.kernels()) draft.cost.push_back(interval_of(signals.table, r));
  draft.evidence = found.convolutions();
  draft.count("convolutions", found.convolutions().size());
  add_per_step_fact(signals, draft, "per step", found.convolutions().size());
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule conv_bias_before_batch_norm{.type = "conv_bias_before_batch_norm",
                                                  .subject = Subject::kTraining,
                                                  .saving = kSaving,
                                                  .detect = detect};
}

}  // namespace traceap
