#include "traceap/detect/ext_rules.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {

const std::vector<DetectorEntry>& extended_detectors() {
  static const std::vector<DetectorEntry> entries = {
      {"worker_starvation", false, detect_worker_starvation},
      {"host_sync_in_loop", false, detect_host_sync_in_loop},
      {"explicit_synchronize", false, detect_explicit_synchronize},
      {"allocator_thrash", false, detect_allocator_thrash},
      {"tiny_kernels", false, detect_tiny_kernels},
      {"unfused_optimizer", false, detect_unfused_optimizer},
      {"zero_grad_not_none", false, detect_zero_grad_not_none},
      {"fp32_matmul", false, detect_fp32_matmul},
      {"misaligned_dimensions", false, detect_misaligned_dimensions},
      {"layout_conversion", false, detect_layout_conversion},
      {"cast_storm", false, detect_cast_storm},
      {"blocking_copy", false, detect_blocking_copy},
      {"recompilation", false, detect_recompilation},
      {"cold_start", false, detect_cold_start},
      {"find_unused_parameters", false, detect_find_unused_parameters},
      {"attention_not_fused", false, detect_attention_not_fused},
      {"device_to_device_copies", false, detect_device_to_device_copies},
      {"host_silence", false, detect_host_silence},
      {"straggler", false, detect_straggler},
      {"collective_imbalance", false, detect_collective_imbalance},
      {"one_bucket_ddp", false, detect_one_bucket_ddp},
      {"broadcast_buffers", false, detect_broadcast_buffers},
  };
  return entries;
}

}  // namespace traceap
