// Decode iterations read all weights for a batch that is far too small for the device's arithmetic:
// more requests would take hardly longer.
//
// A product of B rows does 2 B FLOPs for each weight that it reads; so memory bounds it until B is
// the device's FLOPs over its bytes (the knee), in half precision by 2 bytes a weight, and in 8
// bits all the same. Cost: of the products of each such iteration the part in which a batch at the
// knee would do other requests' work. The iteration itself gets no shorter.

#include <algorithm>
#include <cmath>
#include <optional>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/statistics.hpp"
#include "traceap/base/text.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// Throughput is what more requests gain; there may be none.
constexpr SavingShares kSaving{.basis = SavingBasis::kCost, .best = 0.2};
/// Servers run at a fraction of the knee, since caches of keys and values fill the memory. A batch
/// of less than this share of it is small (12 of 295 on an H100).
constexpr double kSmallShare = 1.0 / 24;

/// A product with weights: in decode, not attention.
bool is_weight_product(std::string_view name) {
  const std::string lower = to_lower(name);
  if (contains_any(lower, {"attention", "flash", "fmha", "mla"})) return false;
  return contains_any(lower, {"gemm", "gemv", "nvjet", "cijk_", "matmul", "marlin", "machete",
                              "cutlass", "wvsplitk", "fused_moe"});
}

/// Rows of the batch: the tokens that run through the model at once.
std::optional<std::int64_t> rows_of(const ServedIteration& iteration) {
  if (!iteration.mark) return std::nullopt;
  const auto& tokens = iteration.mark->decode.tokens;
  return tokens ? tokens : iteration.mark->requests;
}

Finding detect(const Signals& signals) {
  if (signals.served.iterations.empty()) return absent();
  if (!signals.served.marked) return abstain({"annotations of the iterations"});
  const auto& units = signals.options.matrix_units;
  const double knee = units ? units->half_flops_per_byte : 0.0;
  std::vector<std::int64_t> batches;
  Draft draft(kSaving);
  const LazyNames is_product(signals.table, is_weight_product);
  for (const ServedIteration& iteration : signals.served.iterations) {
    poll_interrupt();
    const auto rows = rows_of(iteration);
    if (!iteration.is_decode() || !rows || *rows <= 0) continue;
    if (knee > 0 && static_cast<double>(*rows) > kSmallShare * knee) continue;
    batches.push_back(*rows);
    draft.evidence.push_back(evidence_of(signals, iteration));
    if (knee <= 0) continue;
    const double used = static_cast<double>(*rows) / knee;
    for (const Row row : iteration.gpu_rows) {
      if (!is_product(row)) continue;
      const Interval kernel = interval_of(signals.table, row);
      const auto used_ns = std::llround(used * static_cast<double>(kernel.length_ns()));
      draft.cost.push_back({kernel.start_ns + used_ns, kernel.end_ns});
    }
  }
  if (batches.empty()) return absent();
  if (knee <= 0) return abstain({"the device's name or compute capability"});
  draft.confidence = 0.7;  // whether there are more requests is not in the trace
  draft.count("iterations", batches.size());
  draft.count("batch", median_of(batches));
  draft.count("knee", std::llround(knee));
  draft.text("device", units->device);
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule decode_batch_small{.type = "decode_batch_small",
                                         .claim = Claim::kGeneral,
                                         .subject = Subject::kServing,
                                         .saving = kSaving,
                                         .detect = detect};
}

}  // namespace traceap
