// Matrix products and convolutions in plain fp32 on a GPU whose matrix units do the same work in
// TF32, fp16 or bf16 several times faster.

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "traceap/detect/queries/matmul.hpp"
#include "traceap/detect/queries/support.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

constexpr std::string_view kType = "fp32_matmul";

std::string format_ratio(double ratio) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", ratio < 10 && ratio != std::floor(ratio) ? 1 : 0, ratio);
  return text;
}

std::vector<Row> plain_fp32_rows(const Signals& signals) {
  const LazyNames plain(signals.table, [](std::string_view name) {
    return classify_matmul(name) == MatmulKind::kPlainFp32;
  });
  std::vector<Row> rows;
  for (Row r : signals.tree.gpu_rows) {
    if (signals.table.kind[r] == EventKind::kKernel && plain(r)) rows.push_back(r);
  }
  return rows;
}

}  // namespace

Finding detect_fp32_matmul(const Signals& signals) {
  if (!signals.has_gpu) return abstain(kType, {"GPU events"});
  std::vector<Row> rows = plain_fp32_rows(signals);
  if (rows.empty()) return absent(kType);
  const MatrixUnits units = find_matrix_units(signals);
  if (!units.known) return abstain(kType, {"the device's name or compute capability"});
  if (units.half_ratio <= 1.0) return absent(kType);  // no matrix units

  Draft draft(kType);
  for (Row r : rows) draft.cost.push_back(interval_of(signals.table, r));
  draft.evidence = std::move(rows);
  if (units.device.empty()) {
    draft.missing_signals.emplace_back("device properties: architecture taken from kernel names");
    draft.confidence = 0.6;
  } else {
    draft.fact("device", units.device);
  }
  const bool tf32_helps = units.tf32_ratio > 1.0;
  // TF32 is one line for an fp32 program; half precision is a decision about the model.
  if (!tf32_helps) draft.confidence = std::min(draft.confidence, 0.7);
  draft.fact("ratio", format_ratio(tf32_helps ? units.tf32_ratio : units.half_ratio));
  draft.fact("precision", tf32_helps ? "TF32" : "half precision");
  draft.saving.basis = SavingBasis::kCost;
  Finding finding = finish_finding(signals, std::move(draft));
  // The matrix units' peak bounds what a faster type can give back; a product that is bound by
  // memory gains at most the halved bytes, and nothing at worst. Half of the bound is the guess.
  const double bound = 1.0 - 1.0 / units.half_ratio;
  bound_gpu_saving(signals, finding, bound / 2, bound);
  return finding;
}

}  // namespace traceap
