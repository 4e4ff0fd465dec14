#include "traceap/tree/tree_text.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>
#include <unordered_map>
#include <vector>

namespace traceap {

namespace {

// Longer names (C++ templates, hostile ones) are cut: a line is for reading.
constexpr std::size_t kMaxNameBytes = 120;
constexpr std::size_t kTimesColumn = 60;

std::string time_text(std::int64_t ns) {
  std::array<char, 32> text;
  const double value = static_cast<double>(ns);
  if (ns < 1'000'000) {
    std::snprintf(text.data(), text.size(), "%.1f us", value / 1e3);
  } else if (ns < 1'000'000'000) {
    std::snprintf(text.data(), text.size(), "%.2f ms", value / 1e6);
  } else {
    std::snprintf(text.data(), text.size(), "%.2f s", value / 1e9);
  }
  return text.data();
}

/// Cut at a character's border, control characters made visible as spaces.
std::string shown_name(std::string_view name) {
  const bool cut = name.size() > kMaxNameBytes;
  std::size_t size = std::min(name.size(), kMaxNameBytes);
  while (cut && size > 0 && (static_cast<unsigned char>(name[size]) & 0xc0) == 0x80) --size;
  std::string out(name.substr(0, size));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return cut ? out + "..." : out;
}

struct GpuWork {
  std::int64_t dur_ns = 0;
  std::uint32_t events = 0;
};

/// GPU work launched in each host row's subtree, by position in host_rows.
std::vector<GpuWork> sum_gpu_work(const EventTable& table, const EventTree& tree) {
  std::vector<GpuWork> work(tree.host_rows.size());
  for (std::size_t i = tree.host_rows.size(); i-- > 0;) {
    const Row row = tree.host_rows[i];
    for (const Row gpu_row : tree.launched_by(row)) {
      work[i].dur_ns += table.dur_ns[gpu_row];
      ++work[i].events;
    }
    if (tree.parent[row] == kNoRow) continue;
    GpuWork& above = work[tree.host_position[tree.parent[row]]];
    above.dur_ns += work[i].dur_ns;
    above.events += work[i].events;
  }
  return work;
}

/// One line: host rows of one name, as positions in host_rows.
struct Node {
  std::vector<std::uint32_t> positions;
  std::int64_t dur_ns = 0;
  GpuWork gpu;
  std::uint32_t depth = 0;
};

class TreePrinter {
 public:
  TreePrinter(const EventTable& table, const EventTree& tree, const TreeTextOptions& options)
      : table_(table), tree_(tree), options_(options), work_(sum_gpu_work(table, tree)) {}

  std::string print() {
    if (tree_.main_track != kNoTrack) print_track(tree_.main_track);
    for (const TrackId track : tree_.host_tracks) {
      if (track != tree_.main_track) print_track(track);
    }
    if (hidden_ > 0) out_ += "(" + std::to_string(hidden_) + " more lines)\n";
    return std::move(out_);
  }

 private:
  void print_track(TrackId track) {
    std::vector<Node> open;  // a stack, the next node to print on top
    push_nodes(group_neighbours(tree_.host_offsets[track], tree_.host_offsets[track + 1], 0), open);
    if (open.empty()) return;
    if (lines_ >= options_.max_rows) {
      hidden_ += open.size();
      return;
    }
    out_ += track_title(track) + "\n";
    while (!open.empty()) {
      const Node node = std::move(open.back());
      open.pop_back();
      if (lines_ >= options_.max_rows) {
        ++hidden_;
        continue;
      }
      print_node(node);
      if (node.depth + 1 < options_.max_depth) push_nodes(group_children(node), open);
    }
  }

  std::string track_title(TrackId track) const {
    const Track& t = table_.tracks[track];
    std::string title = "thread " + shown_name(t.tid) + " of process " + shown_name(t.pid);
    if (!t.thread_name.empty()) title += " (" + shown_name(t.thread_name) + ")";
    return title + (track == tree_.main_track ? ", main" : "");
  }

  void print_node(const Node& node) {
    std::string line(2 * (std::size_t{node.depth} + 1), ' ');
    line += shown_name(table_.name_of(tree_.host_rows[node.positions.front()]));
    if (node.positions.size() > 1) line += " x" + std::to_string(node.positions.size());
    line.resize(std::max(line.size() + 2, kTimesColumn), ' ');
    line += time_text(node.dur_ns);
    if (node.gpu.events > 0) {
      line += ", GPU " + time_text(node.gpu.dur_ns) + " in " + std::to_string(node.gpu.events);
    }
    out_ += line + "\n";
    ++lines_;
  }

  bool is_shown(std::uint32_t position) const {
    if (options_.only_gpu && work_[position].events == 0) return false;
    return table_.dur_ns[tree_.host_rows[position]] >= options_.min_dur_ns;
  }

  void extend(Node& node, std::uint32_t position) const {
    node.positions.push_back(position);
    node.dur_ns += table_.dur_ns[tree_.host_rows[position]];
    node.gpu.dur_ns += work_[position].dur_ns;
    node.gpu.events += work_[position].events;
  }

  StringId name_at(std::uint32_t position) const { return table_.name[tree_.host_rows[position]]; }

  /// Children in [begin, end): neighbours of one name together.
  std::vector<Node> group_neighbours(std::uint32_t begin, std::uint32_t end,
                                     std::uint32_t depth) const {
    std::vector<Node> nodes;
    for (std::uint32_t i = begin; i < end; i = tree_.subtree_end[i]) {
      if (!is_shown(i)) continue;
      const bool same =
          options_.fold && !nodes.empty() && name_at(nodes.back().positions.front()) == name_at(i);
      if (!same) nodes.push_back({{}, 0, {}, depth});
      extend(nodes.back(), i);
    }
    return nodes;
  }

  /// Children of a folded node: all of one name together, in order of first appearance.
  std::vector<Node> group_by_name(const Node& node) const {
    std::vector<Node> nodes;
    std::unordered_map<StringId, std::size_t> node_of;
    for (const std::uint32_t parent : node.positions) {
      for (std::uint32_t i = parent + 1; i < tree_.subtree_end[parent]; i = tree_.subtree_end[i]) {
        if (!is_shown(i)) continue;
        const auto [at, is_new] = node_of.try_emplace(name_at(i), nodes.size());
        if (is_new) nodes.push_back({{}, 0, {}, node.depth + 1});
        extend(nodes[at->second], i);
      }
    }
    return nodes;
  }

  std::vector<Node> group_children(const Node& node) const {
    if (node.positions.size() > 1) return group_by_name(node);
    const std::uint32_t position = node.positions.front();
    return group_neighbours(position + 1, tree_.subtree_end[position], node.depth + 1);
  }

  static void push_nodes(std::vector<Node> nodes, std::vector<Node>& open) {
    std::move(nodes.rbegin(), nodes.rend(), std::back_inserter(open));
  }

  const EventTable& table_;
  const EventTree& tree_;
  const TreeTextOptions& options_;
  std::vector<GpuWork> work_;
  std::string out_;
  std::uint32_t lines_ = 0;
  std::uint64_t hidden_ = 0;
};

}  // namespace

std::string tree_text(const EventTable& table, const EventTree& tree,
                      const TreeTextOptions& options) {
  return TreePrinter(table, tree, options).print();
}

}  // namespace traceap
