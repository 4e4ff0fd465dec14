// A kernel of its own quantizes what a norm or an activation has just written, for the product
// behind it: the tensor is written in 16 bits, read again, and written in 8.
//
// Cost: the kernels that only quantize, between a norm or activation and a product of one stream.

#include <vector>

#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/served_kernels.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// Fewer are no layers that repeat.
constexpr std::size_t kMinKernels = 4;
/// Between the quantization and its product scales may be laid out anew.
constexpr std::size_t kReach = 2;
/// The fused kernel writes less than before, and takes about as long as the norm did.
constexpr SavingShares kSaving{
    .basis = SavingBasis::kGpuWork, .low = 0.3, .best = 0.8, .high = 1.0};

bool makes_operand(KernelPart part) {
  return part == KernelPart::kNorm || part == KernelPart::kNormWithAdd ||
         part == KernelPart::kActivation;
}

bool feeds_product(const std::vector<ServedKernel>& stream, std::size_t place) {
  for (std::size_t next = place + 1; next <= place + kReach && next < stream.size(); ++next) {
    if (is_product(stream[next].part)) return true;
    if (stream[next].part != KernelPart::kOther && stream[next].part != KernelPart::kQuantize)
      break;
  }
  return false;
}

Finding detect(const Signals& signals) {
  if (auto early = judge_unserved(signals)) return *early;
  Draft draft(kSaving);
  std::vector<Row> makers;
  for (const std::vector<ServedKernel>& stream : served_kernels(signals)) {
    for (std::size_t i = 1; i < stream.size(); ++i) {
      const ServedKernel &before = stream[i - 1], &own = stream[i];
      if (own.part != KernelPart::kQuantize || !makes_operand(before.part)) continue;
      if (!follows(signals, before.row, own.row) || !feeds_product(stream, i)) continue;
      draft.cost.push_back(interval_of(signals.table, own.row));
      draft.evidence.push_back(own.row);
      makers.push_back(before.row);
    }
  }
  if (draft.evidence.size() < kMinKernels) return absent();
  draft.confidence = 0.8;  // that a fused kernel exists for these shapes is assumed
  draft.text("behind", most_frequent_names(signals.table, makers, 1));
  const std::size_t kernels = draft.evidence.size();
  return finish_served(signals, std::move(draft), "kernels", kernels);
}

}  // namespace

namespace rules {
extern constexpr Rule quantise_unfused{.type = "quantise_unfused",
                                       .claim = Claim::kSpecific,
                                       .subject = Subject::kServing,
                                       .reads_kernel_names = true,
                                       .saving = kSaving,
                                       .detect = detect};
}

}  // namespace traceap
