#pragma once
// The types beyond the paper's eight, one file each (ext_<type>.cpp). docs/rules.md states each
// rule; ext_registry.cpp lists them.

#include "traceap/detect/finding.hpp"

namespace traceap {

Finding detect_worker_starvation(const Signals& signals);
Finding detect_host_sync_in_loop(const Signals& signals);
Finding detect_explicit_synchronize(const Signals& signals);
Finding detect_allocator_thrash(const Signals& signals);
Finding detect_tiny_kernels(const Signals& signals);
Finding detect_unfused_optimizer(const Signals& signals);
Finding detect_zero_grad_not_none(const Signals& signals);
Finding detect_fp32_matmul(const Signals& signals);
Finding detect_misaligned_dimensions(const Signals& signals);
Finding detect_layout_conversion(const Signals& signals);
Finding detect_cast_storm(const Signals& signals);
Finding detect_blocking_copy(const Signals& signals);
Finding detect_recompilation(const Signals& signals);
Finding detect_cold_start(const Signals& signals);
Finding detect_find_unused_parameters(const Signals& signals);
Finding detect_attention_not_fused(const Signals& signals);
Finding detect_device_to_device_copies(const Signals& signals);
Finding detect_host_silence(const Signals& signals);
Finding detect_straggler(const Signals& signals);
Finding detect_collective_imbalance(const Signals& signals);
Finding detect_one_bucket_ddp(const Signals& signals);
Finding detect_broadcast_buffers(const Signals& signals);

}  // namespace traceap
