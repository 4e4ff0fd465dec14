#pragma once
// What the kernels of a served model do, and which follow each other.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "traceap/detect/evidence.hpp"
#include "traceap/detect/finding.hpp"

namespace traceap {

/// As far as the name tells.
enum class KernelPart : std::uint8_t {
  kOther = 0,
  kAdd,               ///< a pointwise addition alone
  kNorm,              ///< a normalization, of whatever is fused with it
  kNormWithAdd,       ///< ... the addition of the residual too
  kNormThenQuantize,  ///< ... the quantization of its result too
  kActivation,        ///< an activation, its product with the gate included
  kActivationThenQuantize,
  kQuantize,          ///< to fp8, int8 or fp4
  kDequantize,        ///< of weights of 8 bits
  kProduct,           ///< a matrix product
  kQuantizedProduct,  ///< ... whose name says that its operands are quantized
  kAttention,
  kCopy,       ///< copies or joins tensors within the device
  kCacheCopy,  ///< copies cached keys and values
};
KernelPart part_of_kernel(std::string_view name);
constexpr bool is_product(KernelPart part) {
  return part == KernelPart::kProduct || part == KernelPart::kQuantizedProduct;
}

/// GPU events that are no communication, with what they do.
struct ServedKernel {
  Row row;
  KernelPart part;
};
/// Those of each stream, by start.
std::vector<std::vector<ServedKernel>> served_kernels(const Signals& signals);

/// Is the next kernel of a stream one that the same pass through a model launched right behind? It
/// begins within 50 us of the end of the one before.
bool follows(const Signals& signals, Row before, Row after);

/// The verdict where there is nothing to look for: without GPU events, and where gradients are
/// computed, since what serves a model has advice of its own.
std::optional<Finding> judge_unserved(const Signals& signals);

/// The finding of a rule that tells by names of kernels what each of `count` places costs.
Finding finish_served(const Signals& signals, Draft draft, std::string places, std::size_t count);

}  // namespace traceap
