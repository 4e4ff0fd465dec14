#include <algorithm>
#include <numeric>

#include "traceap/detect/rules.hpp"

namespace traceap {

const std::vector<DetectorEntry>& detectors() {
  static const std::vector<DetectorEntry> entries = [] {
    std::vector<DetectorEntry> all = {
        {"single_process_data_loading", true, detect_single_process_data_loading},
        {"no_memory_pin", true, detect_no_memory_pin},
        {"high_memcpy", true, detect_high_memcpy},
        {"graph_break", true, detect_graph_break},
        {"cpu_bound", true, detect_cpu_bound},
        {"small_nccl_kernels", true, detect_small_nccl_kernels},
        {"nccl_blocks_main_stream", true, detect_nccl_blocks_main_stream},
        {"nccl_compute_not_overlapped", true, detect_nccl_compute_not_overlapped},
    };
    const auto& extended = extended_detectors();
    all.insert(all.end(), extended.begin(), extended.end());
    return all;
  }();
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
