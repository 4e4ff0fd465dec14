#pragma once
// The rules, one file each. A new rule is declared here (or in its own group's registry), listed in
// the registry and described in the knowledge base.

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

/// The types beyond the eight, in the order they are reported (ext_registry.cpp).
const std::vector<DetectorEntry>& extended_detectors();

}  // namespace traceap
