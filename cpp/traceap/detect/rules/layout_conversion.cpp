// Kernels that only turn tensors between NCHW and NHWC, around convolutions.

#include <algorithm>
#include <initializer_list>

#include "traceap/detect/queries/support.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

constexpr std::string_view kType = "layout_conversion";
/// One conversion per step is the input's, and stays.
constexpr double kBestShare = 0.8;

/// cuDNN's and MIOpen's conversions. A conversion fused into a convolution carries other words too
/// (nhwckrsc_nchw in an xmma kernel's name is its layouts).
bool is_layout_kernel(std::string_view name) {
  constexpr std::string_view kWords[] = {"nchwtonhwc",          "nhwctonchw",
                                         "nchwtofoldednhwc",    "foldednhwctonhwc",
                                         "nhwctofoldednhwc",    "nhwcaddpadding",
                                         "nchwaddpadding",      "transpose_nchw2cnhw",
                                         "transpose_cnhw2nchw", "transpose_packed_mn2nm",
                                         "batched_transpose_",  "transpose_readwrite"};
  return std::any_of(std::begin(kWords), std::end(kWords),
                     [&](std::string_view word) { return contains_any_case(name, word); });
}

}  // namespace

Finding detect_layout_conversion(const Signals& signals) {
  if (!signals.has_gpu) return abstain(kType, {"GPU events"});
  const LazyNames is_layout(signals.table, is_layout_kernel);
  Draft draft(kType);
  for (Row r : signals.tree.gpu_rows) {
    if (signals.table.kind[r] != EventKind::kKernel || !is_layout(r)) continue;
    draft.cost.push_back(interval_of(signals.table, r));
    draft.evidence.push_back(r);
  }
  if (draft.evidence.empty()) return absent(kType);
  draft.fact("conversions", static_cast<std::int64_t>(draft.evidence.size()));
  add_per_step_fact(signals, draft, "per step", draft.evidence.size());
  Finding finding = finish_finding(signals, std::move(draft));
  bound_gpu_saving(signals, finding, kBestShare, 1.0);
  return finding;
}

}  // namespace traceap
