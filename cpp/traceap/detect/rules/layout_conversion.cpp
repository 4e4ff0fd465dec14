// Kernels that only turn tensors between NCHW and NHWC, around convolutions. Where the run computes
// on the host, copies between the two.

#include <algorithm>
#include <initializer_list>

#include "traceap/detect/queries/host_work.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// One conversion per step is the input's, and stays.
constexpr SavingShares kSaving{.basis = SavingBasis::kGpuWork, .best = 0.8};

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

/// Conversions that a library makes inside of its convolution leave no trace, and cost nothing
/// here.
Finding detect_on_host(const Signals& signals) {
  Draft draft(kSaving);
  std::vector<Row> unknown;
  for (const HostCopy& copy : copies_on_host(signals)) {
    if (copy.purpose == CopyPurpose::kUnknown) unknown.push_back(copy.called);
    if (copy.purpose == CopyPurpose::kLayout) draft.evidence.push_back(copy.called);
  }
  if (is_material(signals, host_cost_ns(signals, unknown))) {
    return abstain({"input strides (record_shapes=True)"});
  }
  if (draft.evidence.empty()) return absent();
  draft.cost = intervals_of(signals, draft.evidence);
  draft.count("conversions", draft.evidence.size());
  add_per_step_fact(signals, draft, "per step", draft.evidence.size());
  return finish_finding(signals, std::move(draft));
}

Finding detect(const Signals& signals) {
  if (signals.on_host) return detect_on_host(signals);
  if (!signals.has_gpu) return abstain({"GPU events"});
  const LazyNames is_layout(signals.table, is_layout_kernel);
  Draft draft(kSaving);
  for (Row r : signals.tree.gpu_rows) {
    if (signals.table.kind[r] != EventKind::kKernel || !is_layout(r)) continue;
    draft.cost.push_back(interval_of(signals.table, r));
    draft.evidence.push_back(r);
  }
  if (draft.evidence.empty()) return absent();
  draft.count("conversions", draft.evidence.size());
  add_per_step_fact(signals, draft, "per step", draft.evidence.size());
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule layout_conversion{
    .type = "layout_conversion", .reads_kernel_names = true, .saving = kSaving, .detect = detect};
}

}  // namespace traceap
