#pragma once
// Names of host events without what differs between two recordings of the same program.

#include <string>
#include <string_view>

namespace traceap {

/// Numbers that count calls, regions or instances become '#' or go (`ProfilerStep#7`,
/// `Torch-Compiled Region: 0/1`, `nn.Module: Linear_3`), so do addresses, line numbers behind
/// `.py` and hashes of generated code. Digits behind a letter stay (`conv2d`, `AddmmBackward0`).
/// Linear in the length.
std::string comparable_name(std::string_view name);

/// The same name for what CUDA and HIP builds call differently: `cudaLaunchKernel` and
/// `hipExtModuleLaunchKernel`, `cudaMemcpyAsync` and `hipMemcpyWithStream`,
/// `aten::cudnn_convolution` and `aten::miopen_convolution`.
std::string vendor_free_name(std::string_view name);

}  // namespace traceap
