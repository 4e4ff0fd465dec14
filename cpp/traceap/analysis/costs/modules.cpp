// Modules from whatever the trace holds.
//
// Note [Modules in backward]: the autograd engine runs no module, so its rows have the module of
// the forward op that made the node. Activation checkpointing calls modules again from there: the
// frames of these calls begin in mid-model, as the forward frames around them are long closed. The
// outermost such frame is found again by its name, which names one instance, going up from the
// module of the node that asked for the values (a hook of a saved tensor), else below it (a node
// that stands for the whole checkpoint). What is then differentiated inside of such a node goes
// back to the operators that were computed again.

#include "traceap/analysis/costs/modules.hpp"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/sums.hpp"
#include "traceap/tree/name_traits.hpp"

namespace traceap {
namespace {

constexpr std::string_view kFramePrefix = "nn.Module: ";
constexpr std::uint32_t kOutside = 0;
/// Modules in each other that are searched for one that is called again; networks have dozens.
constexpr int kMostLevels = 1'024;

std::string_view phase_title(Phase phase) {
  constexpr std::array<std::string_view, 5> kTitles{"other", "input", "forward", "backward",
                                                    "optimizer"};
  return kTitles[static_cast<std::size_t>(phase)];
}

/// "Linear" of "Linear_3".
std::string_view class_of_instance(std::string_view name) {
  const std::size_t end = name.find_last_not_of("0123456789");
  const bool numbered = end != std::string_view::npos && end + 1 < name.size() && name[end] == '_';
  return numbered ? name.substr(0, end) : name;
}

/// One of the parts of `text` between separators that stand outside of all brackets; cuts it off.
std::string_view next_part(std::string_view& text, char separator) {
  int depth = 0;
  std::size_t i = 0;
  for (; i < text.size(); ++i) {
    if (text[i] == '(' || text[i] == '<') ++depth;
    if (text[i] == ')' || text[i] == '>') --depth;
    if (text[i] == separator && depth <= 0) break;
  }
  const std::string_view part = text.substr(0, i);
  text.remove_prefix(std::min(text.size(), i + 1));
  return part;
}

/// Nodes by parent and name.
class NodeSet {
 public:
  explicit NodeSet(ModuleTree& tree) : tree_(tree) {}

  std::uint32_t child(std::uint32_t parent, std::string_view name, std::string_view type, Row row) {
    std::vector<ModuleNode>& nodes = tree_.nodes;
    if (parent != kNoRow && nodes[parent].depth + 1 >= kMaxModuleDepth) return parent;
    const StringId id = names_.intern(name);
    const auto [place, is_new] =
        ids_.try_emplace(key(parent, id), static_cast<std::uint32_t>(nodes.size()));
    if (is_new) {
      const std::uint32_t depth = parent == kNoRow ? 0 : nodes[parent].depth + 1;
      nodes.push_back({std::string(name), std::string(type), parent, depth, row});
      last_of_name_[id] = place->second;
    }
    return place->second;
  }
  std::uint32_t root(std::string_view name, std::string_view type, Row row) {
    return child(kNoRow, name, type, row);
  }
  std::uint32_t find_child(std::uint32_t parent, std::string_view name) const {
    const auto found = ids_.find(key(parent, names_.find(name)));
    return found == ids_.end() ? kNoRow : found->second;
  }
  /// The last node made with this name, whatever its parent; kNoRow if there is none.
  std::uint32_t find_anywhere(std::string_view name) const {
    const auto found = last_of_name_.find(names_.find(name));
    return found == last_of_name_.end() ? kNoRow : found->second;
  }

 private:
  static std::uint64_t key(std::uint32_t parent, StringId name) {
    return (std::uint64_t{parent} << 32) | name;
  }

  ModuleTree& tree_;
  StringPool names_;
  std::unordered_map<std::uint64_t, std::uint32_t> ids_;
  std::unordered_map<StringId, std::uint32_t> last_of_name_;
};

/// Does the name speak of a collective that a process group ran, or of the profiler's steps?
bool is_bookkeeping(std::string_view name) {
  constexpr std::array<std::string_view, 7> kPrefixes{
      "nccl:", "rccl:", "gloo:", "mpi:", "ucc:", "c10d:", "ProfilerStep#"};
  return std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

/// record_function ranges; before there was a category for them they were operators.
bool is_annotation(EventKind kind, std::string_view name) {
  const bool is_range = kind == EventKind::kUserAnnotation ||
                        (kind == EventKind::kCpuOp && name.find('#') != std::string_view::npos);
  return is_range && !is_bookkeeping(name);
}

bool is_module_frame(EventKind kind, std::string_view name) {
  return kind == EventKind::kPythonFunction && name.starts_with(kFramePrefix);
}

/// What the rows of one string are, decided once for each kind that it occurs with.
class RowMarks {
 public:
  using Judge = bool (*)(EventKind, std::string_view);
  RowMarks(const EventTable& table, Judge judge)
      : table_(table), judge_(judge), seen_(table.strings.size() * kEventKindCount, kUnseen) {}

  bool operator()(Row row) {
    const EventKind kind = table_.kind[row];
    std::uint8_t& seen = seen_[static_cast<std::size_t>(table_.name[row]) * kEventKindCount +
                               static_cast<std::size_t>(kind)];
    if (seen == kUnseen) seen = judge_(kind, table_.name_of(row)) ? 1 : 0;
    return seen == 1;
  }

 private:
  static constexpr std::uint8_t kUnseen = 2;
  const EventTable& table_;
  Judge judge_;
  std::vector<std::uint8_t> seen_;
};

bool is_backward_node(EventKind kind, std::string_view name) {
  return kind == EventKind::kCpuOp && (classify_name(name) & kTraitBackwardNode) != 0;
}

class ModuleAssigner {
 public:
  ModuleAssigner(const EventTable& table, const EventTree& tree)
      : table_(table),
        tree_(tree),
        nodes_(result_),
        is_frame_(table, is_module_frame),
        is_annotation_(table, is_annotation),
        is_engine_(table, is_backward_node),
        hierarchy_(table, "Module Hierarchy"),
        hlo_module_(table, "hlo_module"),
        hlo_scope_(table, "tf_op"),
        sequence_(table, "Sequence number"),
        in_engine_(table.size(), 0) {
    result_.node_of.assign(table.size(), kOutside);
    result_.pass_of.assign(table.size(), ModulePass::kNone);
    nodes_.root("(outside modules)", "", kNoRow);
  }

  ModuleTree assign() {
    result_.source = choose_source();
    // Table order: what encloses a row, and the forward of a backward op, come before it.
    for (Row row = 0; row < table_.size(); ++row) {
      poll_interrupt();
      if (tree_.host_position[row] != kNoRow) place_host_row(row);
    }
    for (const Row row : tree_.gpu_rows) place_gpu_row(row);
    return std::move(result_);
  }

 private:
  ModuleSource choose_source() {
    bool annotated = false;
    for (const Row row : tree_.host_rows) {
      poll_interrupt();
      if (is_frame_(row)) return ModuleSource::kFrames;
      annotated = annotated || is_annotation_(row);
    }
    const bool scripted = std::any_of(tree_.host_rows.begin(), tree_.host_rows.end(),
                                      [&](Row row) { return has_hierarchy(row); });
    if (scripted) return ModuleSource::kHierarchy;
    const bool hlo = std::any_of(tree_.gpu_rows.begin(), tree_.gpu_rows.end(),
                                 [&](Row row) { return hlo_module_.has(row); });
    if (hlo) return ModuleSource::kHlo;
    return annotated ? ModuleSource::kAnnotations : ModuleSource::kNone;
  }

  /// The key is written for every operator with stacks, and empty for all but TorchScript's.
  bool has_hierarchy(Row row) const {
    if (table_.kind[row] != EventKind::kCpuOp || !hierarchy_.has(row)) return false;
    const auto text = hierarchy_.text(row);
    return text && !text->empty();
  }

  void set(Row row, std::uint32_t node, ModulePass pass) {
    result_.node_of[row] = node;
    result_.pass_of[row] = pass;
  }
  bool is_inside(Row row) const {
    return row != kNoRow && result_.pass_of[row] != ModulePass::kNone;
  }

  void place_host_row(Row row) {
    const Row parent = tree_.parent[row], forward = tree_.forward[row];
    in_engine_[row] =
        (parent != kNoRow && in_engine_[parent] != 0) || forward != kNoRow || is_engine_(row);
    if (calls_module(row)) return;
    if (place_by_hierarchy(row)) return;
    if (is_inside(forward)) return set(row, result_.node_of[forward], ModulePass::kBackward);
    if (forward == kNoRow && is_engine_(row) && place_by_recomputed(row)) return;
    if (is_inside(parent)) {
      set(row, result_.node_of[parent], result_.pass_of[parent]);
      if (result_.pass_of[row] == ModulePass::kRecompute) remember_recomputed(row);
      return;
    }
    set_outside(row, phase_title(tree_.phase[row]));
  }

  void set_outside(Row row, std::string_view title) {
    set(row, nodes_.child(kOutside, title, "", row), ModulePass::kNone);
  }

  bool calls_module(Row row) {
    if (result_.source == ModuleSource::kFrames && is_frame_(row)) {
      const std::string_view name = table_.name_of(row).substr(kFramePrefix.size());
      enter(row, name, class_of_instance(name));
      return true;
    }
    if (result_.source == ModuleSource::kAnnotations && is_annotation_(row)) {
      enter(row, table_.name_of(row), "");
      return true;
    }
    return false;
  }

  void enter(Row row, std::string_view name, std::string_view type) {
    const Row parent = tree_.parent[row];
    const bool inside = is_inside(parent);
    const bool again = in_engine_[row] != 0 && result_.source == ModuleSource::kFrames;
    const bool nested = inside && result_.pass_of[parent] != ModulePass::kBackward;
    const std::uint32_t above = inside ? result_.node_of[parent] : kNoRow;
    const std::uint32_t node = again && !nested ? find_again(above, name, type, row)
                                                : nodes_.child(above, name, type, row);
    set(row, node, again ? ModulePass::kRecompute : ModulePass::kForward);
    ModuleNode& called = result_.nodes[node];
    ++(again ? called.recompute_calls : called.calls);
  }

  /// Note [Modules in backward].
  std::uint32_t find_again(std::uint32_t from, std::string_view name, std::string_view type,
                           Row row) {
    int level = 0;
    for (std::uint32_t up = from; up != kNoRow && level < kMostLevels; ++level) {
      if (result_.nodes[up].name == name) return up;
      up = result_.nodes[up].parent;
    }
    level = 0;
    for (std::uint32_t up = from; up != kNoRow && level < kMostLevels; ++level) {
      const std::uint32_t below = nodes_.find_child(up, name);
      if (below != kNoRow) return below;
      up = result_.nodes[up].parent;
    }
    const std::uint32_t known = nodes_.find_anywhere(name);
    return known != kNoRow ? known : nodes_.child(from, name, type, row);
  }

  void remember_recomputed(Row row) {
    if (table_.kind[row] != EventKind::kCpuOp) return;
    const auto number = sequence_.integer(row);
    if (number && *number >= 0) recomputed_[*number] = row;
  }
  bool place_by_recomputed(Row row) {
    if (recomputed_.empty()) return false;
    const auto number = sequence_.integer(row);
    const auto found = number ? recomputed_.find(*number) : recomputed_.end();
    if (found == recomputed_.end()) return false;
    set(row, result_.node_of[found->second], ModulePass::kBackward);
    return true;
  }

  struct HierarchyPlace {
    std::uint32_t node;
    ModulePass pass;
  };

  bool place_by_hierarchy(Row row) {
    if (result_.source != ModuleSource::kHierarchy || !has_hierarchy(row)) return false;
    const std::string text = *hierarchy_.text(row);
    const auto [place, is_new] = by_hierarchy_.try_emplace(text, HierarchyPlace{});
    if (is_new) place->second = read_hierarchy(text, row);
    if (place->second.node == kNoRow) return false;
    set(row, place->second.node, place->second.pass);
    return true;
  }

  /// `TOP(Net)::forward.layer1(Sequential)::forward.SELF(Sequential)::run`: instance, class and
  /// method of each call on the way to the operator. SELF is a call of the same module; TOP without
  /// a class is a graph that TorchScript took out of the module, to run or to differentiate it.
  HierarchyPlace read_hierarchy(std::string_view text, Row row) {
    HierarchyPlace place{kNoRow, ModulePass::kForward};
    if (text.find("<backward op>") != std::string_view::npos) place.pass = ModulePass::kBackward;
    while (!text.empty()) {
      const std::string_view part = next_part(text, '.');
      const std::size_t open = part.find('(');
      const std::string_view name = part.substr(0, std::min(open, part.find("::")));
      const std::string_view type = open == std::string_view::npos
                                        ? std::string_view()
                                        : part.substr(open + 1, part.find(')', open) - open - 1);
      if (name == "TOP") {
        place.node = type.empty() && script_root_ != kNoRow
                         ? script_root_
                         : nodes_.root(type.empty() ? name : type, type, row);
        script_root_ = place.node;
      } else if (!name.empty() && name != "SELF") {
        place.node = nodes_.child(place.node, name, type, row);
      }
    }
    return place;
  }

  void place_gpu_row(Row row) {
    if (result_.source == ModuleSource::kHlo && place_by_hlo(row)) return;
    const Row launch = tree_.launch[row], op = tree_.op[row];
    if (launch == kNoRow && op == kNoRow) return set_outside(row, "no launch in the trace");
    // An op known by its External id alone says more than a launch that stands in no module.
    const Row source = is_inside(launch) || op == kNoRow ? launch : op;
    set(row, result_.node_of[source], result_.pass_of[source]);
  }

  /// XLA: the program, then its name scopes. `transpose(jvp(layer))` is the backward of `layer`.
  bool place_by_hlo(Row row) {
    const auto program = hlo_module_.text(row);
    if (!program || program->empty()) return false;
    std::uint32_t node = nodes_.root(*program, "", row);
    ModulePass pass = ModulePass::kForward;
    const std::string scopes = hlo_scope_.text(row).value_or("");
    for (std::string_view rest = scopes; !rest.empty();) {
      std::string_view part = next_part(rest, '/');
      if (rest.empty()) break;  // the last part is the operation itself
      if (part.starts_with("jit(") || part.starts_with("pjit(")) continue;
      if (part.starts_with("transpose(")) pass = ModulePass::kBackward;
      for (const std::string_view wrapper : {"transpose(", "jvp(", "vmap("}) {
        if (!part.starts_with(wrapper) || !part.ends_with(')')) continue;
        part = part.substr(wrapper.size(), part.size() - wrapper.size() - 1);
      }
      if (!part.empty()) node = nodes_.child(node, part, "", row);
    }
    set(row, node, pass);
    return true;
  }

  const EventTable& table_;
  const EventTree& tree_;
  ModuleTree result_;
  NodeSet nodes_;
  RowMarks is_frame_, is_annotation_, is_engine_;
  ArgReader hierarchy_, hlo_module_, hlo_scope_, sequence_;
  std::vector<std::uint8_t> in_engine_;  ///< per row: the autograd engine runs it
  std::unordered_map<std::string, HierarchyPlace> by_hierarchy_;
  std::uint32_t script_root_ = kNoRow;                ///< the TorchScript module met last
  std::unordered_map<std::int64_t, Row> recomputed_;  ///< by sequence number
};

void add_costs(const EventTree& tree, const GpuCosts& costs, ModuleTree& modules) {
  modules.own.assign(modules.nodes.size(), {});
  for (const Row row : tree.host_rows) {
    poll_interrupt();
    ModuleCosts& own = modules.own[modules.node_of[row]];
    add_to(own.host_ns[static_cast<std::size_t>(modules.pass_of[row])], costs.self_host_ns[row]);
  }
  for (const Row row : tree.gpu_rows) {
    poll_interrupt();
    ModuleCosts& own = modules.own[modules.node_of[row]];
    add_to(own.gpu_ns[static_cast<std::size_t>(modules.pass_of[row])], costs.exclusive_ns[row]);
    ++own.gpu_events;
  }
  modules.total = modules.own;
  for (std::size_t node = modules.nodes.size(); node-- > 0;) {
    if (modules.nodes[node].parent == kNoRow) continue;
    const ModuleCosts& from = modules.total[node];
    ModuleCosts& to = modules.total[modules.nodes[node].parent];
    for (std::size_t pass = 0; pass < from.gpu_ns.size(); ++pass) {
      add_to(to.gpu_ns[pass], from.gpu_ns[pass]);
      add_to(to.host_ns[pass], from.host_ns[pass]);
    }
    to.gpu_events += from.gpu_events;
  }
}

/// Roots and children in order of their first call, what is outside of modules last.
std::vector<std::uint32_t> preorder(const std::vector<ModuleNode>& nodes) {
  std::vector<std::vector<std::uint32_t>> children(nodes.size());
  std::vector<std::uint32_t> open, order;
  for (std::uint32_t node = 0; node < nodes.size(); ++node) {
    if (nodes[node].parent != kNoRow) children[nodes[node].parent].push_back(node);
  }
  open.push_back(kOutside);
  for (auto node = static_cast<std::uint32_t>(nodes.size()); node-- > 1;) {
    if (nodes[node].parent == kNoRow) open.push_back(node);
  }
  while (!open.empty()) {
    const std::uint32_t node = open.back();
    open.pop_back();
    order.push_back(node);
    open.insert(open.end(), children[node].rbegin(), children[node].rend());
  }
  return order;
}

}  // namespace

std::string_view module_source_name(ModuleSource source) {
  constexpr std::array<std::string_view, kModuleSourceCount> kNames{
      "none", "python_frames", "module_hierarchy", "hlo_module", "annotations"};
  return kNames[static_cast<std::size_t>(source)];
}

ModuleTree build_modules(const EventTable& table, const EventTree& tree, const GpuCosts& costs) {
  ModuleTree modules = ModuleAssigner(table, tree).assign();
  add_costs(tree, costs, modules);
  modules.preorder = preorder(modules.nodes);
  return modules;
}

}  // namespace traceap
