#pragma once
// The host tree as indented text for a person.

#include <cstdint>
#include <string>

#include "traceap/tree/event_tree.hpp"

namespace traceap {

struct TreeTextOptions {
  std::uint32_t max_depth = 12;  ///< levels below a thread that are shown
  std::uint32_t max_rows = 200;  ///< lines in all
  std::int64_t min_dur_ns = 0;   ///< shorter nodes are left out, with what is below them
  bool only_gpu = false;         ///< leave out nodes that launch no GPU work
  bool fold = true;              ///< neighbours of one name become one line, marked x12
};

/// One line per node: name, times it occurs, duration, time of the GPU events launched in it (their
/// sum) and their number. Siblings that follow each other under one name are one node; what is
/// below it is summed up by name. Lines that limits leave out are counted. O(rows shown and their
/// siblings) after one pass over the tree.
std::string tree_text(const EventTable& table, const EventTree& tree,
                      const TreeTextOptions& options = {});

}  // namespace traceap
