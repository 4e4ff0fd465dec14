#pragma once
// Several ranks' tables to one trace file, and such a file's table back to the ranks'.

#include <cstdint>
#include <string>
#include <vector>

#include "traceap/table/event_table.hpp"
#include "traceap/trace/read.hpp"

namespace traceap {

struct MergeInput {
  const EventTable* table;
  std::int64_t rank;  ///< its number, which names its processes: "rank 3: python"
  /// Times become t - offset_ns - drift * (t - offset_ns - epoch_ns).
  std::int64_t offset_ns = 0;
  double drift = 0.0;
  std::int64_t epoch_ns = 0;
};

/// Writes one trace with every event of every rank: process ids are renumbered, correlation, flow
/// and External ids are spread out (id * ranks + index), so that nothing of one rank refers to
/// another; processes are named after their rank and sorted by it. Memory is bounded by the tables
/// and one block of text. gzip when the name ends in ".gz". What was merged is written down in the
/// member kMergedRanks, so that the file can be split again. Throws Error when the file can't be
/// written.
void write_merged_trace(const std::vector<MergeInput>& ranks, const std::string& path);

struct SplitRank {
  std::int64_t rank;
  EventTable table;
};

/// The ranks of a trace that write_merged_trace wrote, each as it was before, but for times, which
/// stay on the common clock, and for metadata of processes, of which names and labels are kept.
/// Ranks without any event are left out. Empty for every other trace. The first rank has the
/// diagnostics of the merged trace.
std::vector<SplitRank> split_merged_trace(const EventTable& merged,
                                          const ReadOptions& options = {});

}  // namespace traceap
