#pragma once
// What a kernel's name says about a matrix product or convolution, and what the GPU could do.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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

/// Matrix arithmetic of a device relative to what plain fp32 products reach on it.
struct MatrixUnits {
  double half_ratio = 0;  ///< fp16/bf16 with fp32 accumulation over fp32; 0: no matrix units
  double tf32_ratio = 0;  ///< TF32 over fp32; 0: no TF32
  bool known = false;     ///< false: the trace names neither the device nor its architecture
  std::string device;     ///< name for a person; may be empty
};
/// Of the trace's devices the one with the largest ratio; where the file describes none, by the
/// architecture words in its kernels' names.
MatrixUnits find_matrix_units(const Signals& signals);

}  // namespace traceap
