#pragma once
// Several ranks' tables to one trace file.

#include <cstdint>
#include <string>
#include <vector>

#include "traceap/table/event_table.hpp"

namespace traceap {

struct MergeInput {
  const EventTable* table;
  std::string label;  ///< before process names, such as "rank 3"
  /// Times become t - offset_ns - drift * (t - offset_ns - epoch_ns).
  std::int64_t offset_ns = 0;
  double drift = 0.0;
  std::int64_t epoch_ns = 0;
};

/// Writes one trace with every event of every rank: process ids are renumbered, correlation, flow
/// and External ids are spread out (id * ranks + index), so that nothing of one rank refers to
/// another; processes are named after their rank and sorted by it. Memory is bounded by the tables
/// and one block of text. gzip when the name ends in ".gz". Throws Error when the file can't be
/// written.
void write_merged_trace(const std::vector<MergeInput>& ranks, const std::string& path);

}  // namespace traceap
