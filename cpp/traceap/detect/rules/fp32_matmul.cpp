// Matrix products and convolutions in plain fp32 on a GPU whose matrix units do the same work in
// TF32, fp16 or bf16 several times faster.

#include <algorithm>
#include <cmath>
#include <optional>

#include "traceap/detect/queries/matmul.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// The matrix units' peak bounds what a faster type can give back; a product that is bound by
/// memory gains at most the halved bytes, and nothing at worst. Half of the bound is the guess.
constexpr SavingShares saving_of(double half_ratio) {
  const double bound = 1.0 - 1.0 / half_ratio;
  return {.basis = SavingBasis::kGpuWork, .best = bound / 2, .high = bound};
}
/// Of the least that matrix units do, where the trace does not name its device.
constexpr SavingShares kSaving = saving_of(2.0);

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

Finding detect(const Signals& signals) {
  if (!signals.has_gpu) return abstain({"GPU events"});
  std::vector<Row> rows = plain_fp32_rows(signals);
  if (rows.empty()) return absent();
  const std::optional<MatrixUnits> units = find_matrix_units(signals);
  if (!units) return abstain({"the device's name or compute capability"});
  if (units->half_ratio <= 1.0) return absent();  // no matrix units

  Draft draft(saving_of(units->half_ratio));
  for (Row r : rows) draft.cost.push_back(interval_of(signals.table, r));
  draft.evidence = std::move(rows);
  if (units->device.empty()) {
    draft.missing_signals.emplace_back("device properties: architecture taken from kernel names");
    draft.confidence = 0.6;  // a newer GPU may run them, with other rates
  } else {
    draft.text("device", units->device);
  }
  const bool tf32_helps = units->tf32_ratio > 1.0;
  // TF32 is one line for an fp32 program; half precision is a decision about the model.
  if (!tf32_helps) draft.confidence = std::min(draft.confidence, 0.7);
  // Peaks are published to two or three digits: one decimal is all that their ratio has.
  draft.rate("ratio", std::round(10 * (tf32_helps ? units->tf32_ratio : units->half_ratio)) / 10);
  draft.text("precision", tf32_helps ? "TF32" : "half precision");
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule fp32_matmul{
    .type = "fp32_matmul", .reads_kernel_names = true, .saving = kSaving, .detect = detect};
}

}  // namespace traceap
