// Weights of 8 bits are written out in bf16 for every product, and multiplied in bf16: more bytes
// than without quantization, at the rate of the wider type.
//
// Cost: the kernels that dequantize, and the products behind them.

#include <algorithm>
#include <vector>

#include "traceap/detect/queries/served_kernels.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// Fewer are no layers that repeat: scales and embeddings are dequantized now and then.
constexpr std::size_t kMinProducts = 4;
/// A product in 8 bits takes at best half as long, and the dequantization goes.
constexpr SavingShares kSaving{
    .basis = SavingBasis::kGpuWork, .low = 0.2, .best = 0.5, .high = 0.8};

/// Has some device no products in fp8? (NVIDIA's before compute capability 8.9.)
bool lacks_fp8(const EventTable& table) {
  return std::any_of(table.devices.begin(), table.devices.end(),
                     [](const DeviceProperties& device) {
                       const std::int64_t major = device.compute_major.value_or(9);
                       return major < 8 || (major == 8 && device.compute_minor.value_or(9) < 9);
                     });
}

Finding detect(const Signals& signals) {
  if (auto early = judge_unserved(signals)) return *early;
  if (lacks_fp8(signals.table)) return absent();
  Draft draft(kSaving);
  std::size_t products = 0;
  for (const std::vector<ServedKernel>& stream : served_kernels(signals)) {
    for (std::size_t i = 0; i + 1 < stream.size(); ++i) {
      const ServedKernel &own = stream[i], &next = stream[i + 1];
      // A product whose name says that its operands are quantized got something else.
      if (own.part != KernelPart::kDequantize || next.part != KernelPart::kProduct) continue;
      if (!follows(signals, own.row, next.row)) continue;
      for (const Row row : {own.row, next.row}) {
        draft.cost.push_back(interval_of(signals.table, row));
        draft.evidence.push_back(row);
      }
      ++products;
    }
  }
  if (products < kMinProducts) return absent();
  draft.confidence = 0.8;  // which tensor is dequantized the trace does not say
  return finish_served(signals, std::move(draft), "products", products);
}

}  // namespace

namespace rules {
extern constexpr Rule dequantised_product{.type = "dequantised_product",
                                          .claim = Claim::kSpecific,
                                          .subject = Subject::kServing,
                                          .reads_kernel_names = true,
                                          .saving = kSaving,
                                          .detect = detect};
}

}  // namespace traceap
