#pragma once
// What a kernel's name says about a matrix product or convolution, and what the GPU could do.

#include <cstdint>
#include <optional>
#include <string_view>

#include "traceap/detect/finding.hpp"

namespace traceap {

enum class MatmulKind : std::uint8_t {
  kNone = 0,    ///< no matrix product, or bound by memory (gemv)
  kMatrixUnit,  ///< runs on tensor cores or AMD's matrix cores in a reduced type
  kPlainFp32,   ///< fp32 data without TF32
  kPlainHalf,   ///< half-precision data without matrix units
};
/// By the kernel's name: cuBLAS, cuDNN, CUTLASS, Tensile (Cijk_...).
MatmulKind classify_matmul(std::string_view kernel_name);

/// Of the device that the options name; else by the architecture words in the kernels' names the
/// least that such a device has. Empty if neither tells.
std::optional<MatrixUnits> find_matrix_units(const Signals& signals);

}  // namespace traceap
