#pragma once
// The rules, one file each. A new rule is declared here, listed in the registry and described
// in the knowledge base.

#include <vector>

#include "traceap/detect/finding.hpp"

namespace traceap {

// The paper's eight, by INTERFACE.md's settled readings (docs/rules.md).
Finding detect_single_process_data_loading(const Signals& signals);
Finding detect_no_memory_pin(const Signals& signals);
Finding detect_high_memcpy(const Signals& signals);
Finding detect_graph_break(const Signals& signals);
Finding detect_cpu_bound(const Signals& signals);
Finding detect_small_nccl_kernels(const Signals& signals);
Finding detect_nccl_blocks_main_stream(const Signals& signals);
Finding detect_nccl_compute_not_overlapped(const Signals& signals);

// Ours, in the order in which they are reported.
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
