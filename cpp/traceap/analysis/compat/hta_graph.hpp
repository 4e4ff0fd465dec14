#pragma once
// The critical path that HolisticTraceAnalysis (HTA) finds, by its own rules and in its units.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "traceap/table/event_table.hpp"

namespace traceap {

enum class HtaEdgeKind : std::uint8_t {
  kOperatorKernel = 0,
  kDependency,
  kLaunchDelay,
  kKernelKernelDelay,
  kSyncDependency,
};
inline constexpr int kHtaEdgeKindCount = static_cast<int>(HtaEdgeKind::kSyncDependency) + 1;
std::string_view hta_edge_kind_name(HtaEdgeKind kind);

enum class HtaBound : std::uint8_t {
  kNone = 0,
  kCpu,
  kGpuCompute,
  kGpuCommunication,
  kKernelKernel,
  kKernelLaunch,
};
inline constexpr int kHtaBoundCount = static_cast<int>(HtaBound::kKernelLaunch) + 1;
std::string_view hta_bound_name(HtaBound bound);

struct HtaOptions {
  std::string annotation;  ///< part of an annotation's name that bounds the graph; empty: no bounds
  std::uint32_t first_instance = 0, last_instance = 0;
  bool zero_weight_launch_edges = true;  ///< CRITICAL_PATH_ADD_ZERO_WEIGHT_LAUNCH_EDGE
  bool keep_last_step = false;           ///< include_last_profiler_step
  // What came after release 0.5.0.
  bool runtime_lock = true;       ///< overlapping calls that take the CUDA runtime's lock
  bool merge_backward = true;     ///< the backward thread's calls count to the forward thread
  bool limit_kernel_gaps = true;  ///< no kernel-kernel delay of 1500 us or more
};

struct HtaEdge {
  std::uint32_t begin, end;  ///< nodes
  std::int64_t weight_us;
  HtaEdgeKind kind;
  HtaBound bound;
  Row row;  ///< event that the edge is attributed to; kNoRow if none
};

struct HtaPath {
  bool found = false;        ///< the annotation exists and the graph has no cycle
  bool of_gpu_copy = false;  ///< an instance of the annotation is drawn on a GPU's track
  std::uint32_t nodes = 0, edges = 0;
  std::array<std::uint32_t, kHtaEdgeKindCount> edges_of_kind{};
  std::vector<std::uint32_t> path_nodes;
  std::uint32_t path_events = 0;
  std::vector<HtaEdge> path_edges;
  std::vector<std::int64_t> node_us;  ///< by node: time, rounded as HTA does
  std::int64_t duration_us = 0;       ///< sum of the weights on the path
};

/// Times are rounded inwards to whole microseconds, the last ProfilerStep is cut off, and rows
/// whose file order HTA would use stand in order of time here. O(n log n).
HtaPath find_hta_path(const EventTable& table, const HtaOptions& options);

}  // namespace traceap
