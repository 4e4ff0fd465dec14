#include <algorithm>
#include <numeric>

#include "traceap/detect/rules.hpp"

namespace traceap {

const std::vector<DetectorEntry>& detectors() {
  static const std::vector<DetectorEntry> entries = {
      {"single_process_data_loading", true, detect_single_process_data_loading},
      {"no_memory_pin", true, detect_no_memory_pin},
      {"high_memcpy", true, detect_high_memcpy},
      {"graph_break", true, detect_graph_break},
      {"cpu_bound", true, detect_cpu_bound},
      {"small_nccl_kernels", true, detect_small_nccl_kernels},
      {"nccl_blocks_main_stream", true, detect_nccl_blocks_main_stream},
      {"nccl_compute_not_overlapped", true, detect_nccl_compute_not_overlapped},
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

std::vector<Finding> detect_all(const Signals& signals) {
  std::vector<Finding> findings;
  findings.reserve(detectors().size());
  for (const DetectorEntry& entry : detectors()) {
    findings.push_back(entry.detect(signals));
    findings.back().type = entry.type;
  }
  return findings;
}

std::vector<std::int64_t> compute_unclaimed_cost(const std::vector<Finding>& findings) {
  std::vector<std::size_t> order(findings.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  // Waiting for a late rank is that rank's, whatever else the collective may be blamed for.
  const auto is_root = [&](std::size_t i) { return findings[i].type == "straggler"; };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    if (is_root(a) != is_root(b)) return is_root(a);
    return findings[a].cost_ns > findings[b].cost_ns;
  });
  std::vector<std::int64_t> unclaimed(findings.size(), 0);
  IntervalSet claimed;
  for (std::size_t index : order) {
    const Finding& finding = findings[index];
    if (finding.verdict != Verdict::kPresent) continue;
    unclaimed[index] = total_length_ns(set_difference(finding.intervals, claimed));
    claimed = set_union(claimed, finding.intervals);
  }
  return unclaimed;
}

}  // namespace traceap
