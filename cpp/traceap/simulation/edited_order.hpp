#pragma once
// In which order the points of an edited graph are replayed. Private to simulation/.

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "traceap/simulation/execution_graph.hpp"
#include "traceap/simulation/graph_delta.hpp"

namespace traceap {

struct EditedOrder {
  std::vector<std::uint32_t> order;     ///< positions in graph.order; empty: as they are
  std::vector<std::uint32_t> left_out;  ///< added edges that close a cycle, ascending
};

/// `added` edges between positions on top of those of the graph whose slots are not `dropped`. See
/// Note [Edges that close a cycle] in edited_order.cpp. O(points + edges), and O(points) more for
/// each added edge against the order where they close a cycle.
EditedOrder order_with(const ExecutionGraph& graph, std::span<const PlainEdge> added,
                       std::span<const std::uint8_t> dropped);

/// Do all these edges between positions fit the order of the graph?
bool lead_forward(std::span<const PlainEdge> added);

/// Orders of the last edits of one graph: each is replayed with residuals and without. Any thread
/// may ask.
class KnownOrders {
 public:
  using Shared = std::shared_ptr<const EditedOrder>;

  /// What `make` gives, or gave for the same added and dropped edges.
  Shared of(const GraphDelta& delta, const std::function<EditedOrder()>& make);

 private:
  struct Known {
    std::vector<PlainEdge> added;
    std::vector<EdgeId> dropped;
    Shared order;
  };
  Shared find(const GraphDelta& delta) const;

  std::mutex in_use_;
  std::vector<Known> known_;  // the oldest first
};

}  // namespace traceap
