#include "traceap/tree/graph_captures.hpp"

#include <algorithm>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/text.hpp"

namespace traceap {
namespace {

/// Walks the API calls of one thread.
class CaptureFinder {
 public:
  CaptureFinder(const EventTable& table, const EventTree& tree, std::vector<GraphCapture>& found)
      : table_(table), tree_(tree), found_(found) {}

  void visit(Row row) {
    if (tree_.api[row] == ApiClass::kGraphBuilding) {
      build(row);
    } else if (begin_ == kNoRow && starts_gpu_work(tree_.api[row])) {
      made_ = false;
    }
  }

 private:
  void build(Row row) {
    const std::string_view name = table_.name_of(row);
    if (contains(name, "BeginCapture")) {
      begin_ = row;
      made_ = false;
    } else if (contains(name, "EndCapture")) {
      if (begin_ == kNoRow) return;
      found_.push_back({{table_.ts_ns[begin_], table_.end_ns(row)}, begin_});
      begin_ = kNoRow;
      made_ = true;
    } else if (made_) {
      Interval& host = found_.back().host;
      host.end_ns = std::max(host.end_ns, table_.end_ns(row));
    }
  }

  const EventTable& table_;
  const EventTree& tree_;
  std::vector<GraphCapture>& found_;
  Row begin_ = kNoRow;  ///< of the capture that goes on
  bool made_ = false;   ///< is the last capture still being made into a graph?
};

}  // namespace

std::vector<GraphCapture> find_graph_captures(const EventTable& table, const EventTree& tree) {
  std::vector<GraphCapture> captures;
  for (const TrackId track : tree.host_tracks) {
    CaptureFinder finder(table, tree, captures);
    for (std::uint32_t i = tree.host_offsets[track]; i < tree.host_offsets[track + 1]; ++i) {
      poll_interrupt();
      finder.visit(tree.host_rows[i]);
    }
  }
  std::sort(captures.begin(), captures.end(),
            [](const GraphCapture& a, const GraphCapture& b) { return a.begin < b.begin; });
  return captures;
}

}  // namespace traceap
