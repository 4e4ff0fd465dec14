#include "traceap/analysis/compare/tree_diff.hpp"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

#include "traceap/analysis/compare/comparable_names.hpp"
#include "traceap/analysis/compare/sequence_alignment.hpp"
#include "traceap/base/interrupt.hpp"
#include "traceap/tree/name_traits.hpp"

namespace traceap {
namespace {

constexpr int kMostOpened = 16;           // wrappers inside wrappers
constexpr int kWrapperLevels = 3;         // how deep to look for what a wrapper wraps
constexpr std::size_t kWrapperLook = 64;  // and at how many calls
constexpr std::size_t kMostTracks = 64;   // threads that are compared by what they run

enum class NodeKind : std::uint8_t { kNone, kOp, kRange, kStep, kModule };
constexpr std::size_t kNodeKinds = 5;

std::uint64_t mix(std::uint64_t seed, std::uint64_t value) {
  // Multiply and fold, as in hash functions of the wyhash family.
  const std::uint64_t x = (seed ^ value) * 0x9e3779b97f4a7c15ULL;
  return x ^ (x >> 32);
}

/// What both sides of all pairs share: names as they are shown, and as they are compared.
class Names {
 public:
  explicit Names(StringPool& shown) : shown_(shown) {}

  struct Name {
    StringId shown = kNoString, compared = kNoString;
  };

  Name add(std::string_view raw) {
    const StringId shown = shown_.intern(comparable_name(raw));
    if (shown >= compared_of_.size()) {
      compared_of_.resize(shown + 1, kNoString);
      compared_of_[shown] = compared_.intern(vendor_free_name(shown_[shown]));
    }
    return {shown, compared_of_[shown]};
  }

 private:
  StringPool& shown_;
  StringPool compared_;
  std::vector<StringId> compared_of_;  // by shown
};

/// The nodes of one side, by number in pre-order, thread after thread.
struct Forest {
  std::vector<Row> row;
  std::vector<std::uint32_t> parent;
  std::vector<NodeKind> kind;
  std::vector<Names::Name> name;
  std::vector<std::int32_t> dims;
  std::vector<AlignKeys> keys;
  std::vector<std::uint32_t> child_offsets, child_nodes;
  struct Thread {
    TrackId track;
    std::vector<std::uint32_t> roots;
    std::uint32_t begin, end;  // its nodes
  };
  std::vector<Thread> threads;

  std::span<const std::uint32_t> children(std::uint32_t node) const {
    return {child_nodes.data() + child_offsets[node], child_nodes.data() + child_offsets[node + 1]};
  }
  std::uint32_t size() const { return static_cast<std::uint32_t>(row.size()); }
};

NodeKind kind_of(const EventTable& table, const std::vector<NameTraits>& traits, Row row) {
  switch (table.kind[row]) {
    case EventKind::kCpuOp:
    case EventKind::kUserAnnotation:
      if ((traits[table.name[row]] & kTraitProfilerStep) != 0) return NodeKind::kStep;
      return table.kind[row] == EventKind::kCpuOp ? NodeKind::kOp : NodeKind::kRange;
    case EventKind::kPythonFunction:
      return table.name_of(row).starts_with("nn.Module: ") ? NodeKind::kModule : NodeKind::kNone;
    default:
      return NodeKind::kNone;
  }
}

/// Kind of each row that may be a node; the rest kNone.
std::vector<NodeKind> candidate_kinds(const DiffSide& side, bool all) {
  std::vector<NodeKind> kinds(side.table.size(), NodeKind::kNone);
  const std::vector<NameTraits> traits = classify_names(side.table.strings);
  for (const Row row : side.tree.host_rows) {
    poll_interrupt();
    if (all || side.costs.subtree_gpu_events[row] > 0)
      kinds[row] = kind_of(side.table, traits, row);
  }
  return kinds;
}

std::vector<bool> kinds_present(const std::vector<NodeKind>& kinds) {
  std::vector<bool> present(kNodeKinds, false);
  for (const NodeKind kind : kinds) present[static_cast<std::size_t>(kind)] = true;
  return present;
}

/// Steps, ranges or modules that only one side recorded would hide what lies below them.
void drop_one_sided(std::vector<NodeKind>& a, std::vector<NodeKind>& b) {
  const std::vector<bool> in_a = kinds_present(a), in_b = kinds_present(b);
  const auto drop = [&](NodeKind& kind) {
    const auto at = static_cast<std::size_t>(kind);
    if (in_a[at] != in_b[at] && kind != NodeKind::kOp) kind = NodeKind::kNone;
  };
  std::for_each(a.begin(), a.end(), drop);
  std::for_each(b.begin(), b.end(), drop);
}

class ForestBuilder {
 public:
  ForestBuilder(const DiffSide& side, const std::vector<NodeKind>& kinds, Names& names)
      : side_(side), kinds_(kinds), names_(names), name_of_(side.table.strings.size()) {}

  Forest build() {
    for (const TrackId track : side_.tree.host_tracks) add_thread(track);
    link_children();
    hash_subtrees();
    return std::move(forest_);
  }

 private:
  void add_thread(TrackId track) {
    const std::uint32_t begin = forest_.size();
    Forest::Thread thread{track, {}, begin, begin};
    std::vector<std::pair<std::uint32_t, std::uint32_t>> open;  // node, end of its subtree
    for (std::uint32_t i = side_.tree.host_offsets[track]; i < side_.tree.host_offsets[track + 1];
         ++i) {
      const Row row = side_.tree.host_rows[i];
      while (!open.empty() && open.back().second <= i) open.pop_back();
      if (kinds_[row] == NodeKind::kNone) continue;
      const std::uint32_t node = add_node(row, open.empty() ? kNoNode : open.back().first);
      if (open.empty()) thread.roots.push_back(node);
      open.emplace_back(node, side_.tree.subtree_end[i]);
    }
    thread.end = forest_.size();
    if (thread.end > thread.begin) forest_.threads.push_back(std::move(thread));
  }

  std::uint32_t add_node(Row row, std::uint32_t parent) {
    const std::uint32_t node = forest_.size();
    Names::Name& name = name_of_[side_.table.name[row]];
    if (name.shown == kNoString) name = names_.add(side_.table.name_of(row));
    forest_.row.push_back(row);
    forest_.parent.push_back(parent);
    forest_.kind.push_back(kinds_[row]);
    forest_.name.push_back(name);
    forest_.dims.push_back(side_.dims.empty() ? -1 : side_.dims[row]);
    return node;
  }

  void link_children() {
    const std::uint32_t size = forest_.size();
    forest_.child_offsets.assign(size + 2, 0);
    for (const std::uint32_t parent : forest_.parent) {
      if (parent != kNoNode) ++forest_.child_offsets[parent + 2];
    }
    for (std::uint32_t i = 2; i < size + 2; ++i) {
      forest_.child_offsets[i] += forest_.child_offsets[i - 1];
    }
    forest_.child_nodes.resize(forest_.child_offsets[size + 1]);
    for (std::uint32_t node = 0; node < size; ++node) {
      poll_interrupt();
      const std::uint32_t parent = forest_.parent[node];
      if (parent != kNoNode) forest_.child_nodes[forest_.child_offsets[parent + 1]++] = node;
    }
    forest_.child_offsets.pop_back();
  }

  /// Children come behind their parent, so the last node first.
  void hash_subtrees() {
    forest_.keys.resize(forest_.size());
    for (std::uint32_t node = forest_.size(); node-- > 0;) {
      const auto kind = static_cast<std::uint64_t>(forest_.kind[node]);
      AlignKeys& keys = forest_.keys[node];
      keys.name = mix(kind + 1, forest_.name[node].compared);
      keys.detail = mix(keys.name, static_cast<std::uint64_t>(forest_.dims[node] + 2));
      keys.whole = keys.detail;
      for (const std::uint32_t child : forest_.children(node)) {
        keys.whole = mix(keys.whole, forest_.keys[child].whole);
      }
    }
  }

  const DiffSide& side_;
  const std::vector<NodeKind>& kinds_;
  Names& names_;
  std::vector<Names::Name> name_of_;  // by string of the table
  Forest forest_;
};

// ---------------------------------------------------------------------------------- matching

struct Match {
  std::uint32_t before, after;  // nodes; kNoNode on the side that lacks it
  MatchedBy by;
  bool opened = false;  ///< a wrapper whose children stand beside it
};

class Matcher {
 public:
  Matcher(const Forest& before, const Forest& after) : before_(before), after_(after) {}

  /// Two sibling lists as one, in an order that keeps both.
  std::vector<Match> match(std::vector<std::uint32_t> a, std::vector<std::uint32_t> b,
                           int opened = 0) const {
    std::vector<Match> merged;
    const std::vector<std::uint32_t> partner = align_sequences(keys(before_, a), keys(after_, b));
    std::size_t i = 0, j = 0;
    while (i < a.size() || j < b.size()) {
      std::size_t next_a = i;
      while (next_a < a.size() && partner[next_a] == kUnaligned) ++next_a;
      const std::size_t next_b = next_a < a.size() ? partner[next_a] : b.size();
      merge_gap({a.begin() + diff(i), a.begin() + diff(next_a)},
                {b.begin() + diff(j), b.begin() + diff(next_b)}, opened, merged);
      if (next_a < a.size()) merged.push_back(pair(a[next_a], b[next_b]));
      i = next_a + 1;
      j = next_b + 1;
      if (next_a >= a.size()) break;
    }
    return merged;
  }

 private:
  using Nodes = std::vector<std::uint32_t>;
  static std::ptrdiff_t diff(std::size_t n) { return static_cast<std::ptrdiff_t>(n); }

  static std::vector<AlignKeys> keys(const Forest& forest, const Nodes& nodes) {
    std::vector<AlignKeys> keys;
    keys.reserve(nodes.size());
    for (const std::uint32_t node : nodes) keys.push_back(forest.keys[node]);
    return keys;
  }

  Match pair(std::uint32_t a, std::uint32_t b) const {
    if (before_.name[a].compared != after_.name[b].compared) return {a, b, MatchedBy::kPosition};
    const bool shapes = before_.dims[a] == after_.dims[b];
    return {a, b, shapes ? MatchedBy::kNameAndShape : MatchedBy::kName};
  }

  /// What lies between two matched neighbours, and has no name in common.
  void merge_gap(Nodes a, Nodes b, int opened, std::vector<Match>& merged) const {
    if (!a.empty() && !b.empty()) {
      const bool one_side = opened < kMostOpened && open_wrappers(a, b, merged);
      if (!one_side && alike_by_position(a, b)) {
        for (std::size_t i = 0; i < a.size(); ++i) merged.push_back(pair(a[i], b[i]));
        return;
      }
      if (one_side || (opened < kMostOpened && open_other_wrappers(a, b, merged))) {
        const std::vector<Match> inner = match(std::move(a), std::move(b), opened + 1);
        merged.insert(merged.end(), inner.begin(), inner.end());
        return;
      }
    }
    for (const std::uint32_t node : a) merged.push_back({node, kNoNode, MatchedBy::kUnmatched});
    for (const std::uint32_t node : b) merged.push_back({kNoNode, node, MatchedBy::kUnmatched});
  }

  bool alike_by_position(const Nodes& a, const Nodes& b) const {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i) {
      poll_interrupt();
      if (before_.kind[a[i]] != after_.kind[b[i]]) return false;
      const bool shapes = before_.dims[a[i]] >= 0 && before_.dims[a[i]] == after_.dims[b[i]];
      if (a.size() > 1 && !shapes) return false;
    }
    return true;
  }

  using Keys = std::vector<std::uint64_t>;
  using Key = std::uint64_t AlignKeys::*;

  /// Opens what wraps calls of the other side's names, on one side.
  bool open_wrappers(Nodes& a, Nodes& b, std::vector<Match>& merged) const {
    const Keys in_a = keys_of(before_, a), in_b = keys_of(after_, b);
    return open(a, before_, in_b, &AlignKeys::name, false, merged) ||
           open(b, after_, in_a, &AlignKeys::name, true, merged);
  }

  /// Opens wrappers that differ on both sides but wrap the same calls. Names alone may agree by
  /// chance that deep, so shapes have to as well.
  bool open_other_wrappers(Nodes& a, Nodes& b, std::vector<Match>& merged) const {
    const Keys below_a = keys_below(before_, a), below_b = keys_below(after_, b);
    const bool any = open(a, before_, below_b, &AlignKeys::detail, false, merged);
    return any && open(b, after_, below_a, &AlignKeys::detail, true, merged);
  }

  static Keys keys_of(const Forest& forest, const Nodes& nodes) {
    Keys names;
    for (const std::uint32_t node : nodes) names.push_back(forest.keys[node].name);
    std::sort(names.begin(), names.end());
    return names;
  }

  static Keys keys_below(const Forest& forest, const Nodes& nodes) {
    Keys details;
    for (const std::uint32_t node : nodes) {
      look_below(forest, node, [&](std::uint32_t inner) {
        details.push_back(forest.keys[inner].detail);
        return false;
      });
    }
    std::sort(details.begin(), details.end());
    return details;
  }

  /// Puts the children of each node that wraps something wanted in its place; says whether there
  /// was one.
  static bool open(Nodes& nodes, const Forest& forest, const Keys& wanted, Key key, bool is_after,
                   std::vector<Match>& merged) {
    Nodes opened;
    bool any = false;
    for (const std::uint32_t node : nodes) {
      const bool wraps = look_below(forest, node, [&](std::uint32_t inner) {
        return std::binary_search(wanted.begin(), wanted.end(), forest.keys[inner].*key);
      });
      if (!wraps) {
        opened.push_back(node);
        continue;
      }
      any = true;
      const std::span<const std::uint32_t> children = forest.children(node);
      opened.insert(opened.end(), children.begin(), children.end());
      merged.push_back(
          {is_after ? kNoNode : node, is_after ? node : kNoNode, MatchedBy::kUnmatched, true});
    }
    nodes = std::move(opened);
    return any;
  }

  /// Whether `found` holds for a call below a node, as far as one looks.
  template <class Found>
  static bool look_below(const Forest& forest, std::uint32_t node, Found found) {
    poll_interrupt();
    std::vector<std::pair<std::uint32_t, int>> todo{{node, 0}};
    for (std::size_t i = 0; i < todo.size() && i < kWrapperLook; ++i) {
      const auto [inner, level] = todo[i];
      if (level > 0 && found(inner)) return true;
      if (level == kWrapperLevels) continue;
      for (const std::uint32_t child : forest.children(inner)) {
        if (todo.size() >= kWrapperLook) break;
        todo.emplace_back(child, level + 1);
      }
    }
    return false;
  }

  const Forest& before_;
  const Forest& after_;
};

using NameCounts = std::vector<std::pair<std::uint64_t, std::uint32_t>>;

/// How often each name occurs in a thread, by name.
NameCounts name_counts(const Forest& forest, const Forest::Thread& thread) {
  std::vector<std::uint64_t> names;
  for (std::uint32_t node = thread.begin; node < thread.end; ++node) {
    names.push_back(forest.keys[node].name);
  }
  std::sort(names.begin(), names.end());
  NameCounts counts;
  for (const std::uint64_t name : names) {
    if (counts.empty() || counts.back().first != name) counts.emplace_back(name, 0U);
    ++counts.back().second;
  }
  return counts;
}

std::uint64_t overlap(const NameCounts& a, const NameCounts& b) {
  std::uint64_t common = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    poll_interrupt();
    if (a[i].first < b[j].first) {
      ++i;
    } else if (b[j].first < a[i].first) {
      ++j;
    } else {
      common += std::min(a[i++].second, b[j++].second);
    }
  }
  return common;
}

struct ThreadPair {
  const Forest::Thread* before;  ///< nullptr: only in the other
  const Forest::Thread* after;
};

/// Threads of the two sides: the main ones first, then those that have most in common.
class ThreadMatcher {
 public:
  ThreadMatcher(const Forest& before, TrackId main_before, const Forest& after, TrackId main_after)
      : before_(before), after_(after) {
    for (const Forest::Thread& thread : before.threads) a_.push_back(&thread);
    for (const Forest::Thread& thread : after.threads) b_.push_back(&thread);
    const auto main_a = std::find_if(a_.begin(), a_.end(), [&](const Forest::Thread* thread) {
      return thread->track == main_before;
    });
    const auto main_b = std::find_if(b_.begin(), b_.end(), [&](const Forest::Thread* thread) {
      return thread->track == main_after;
    });
    if (main_a == a_.end() || main_b == b_.end()) return;
    pairs_.push_back({*main_a, *main_b});
    a_.erase(main_a);
    b_.erase(main_b);
  }

  std::vector<ThreadPair> match() {
    pair_by_content();
    for (const Forest::Thread* thread : a_) {
      if (thread != nullptr) pairs_.push_back({thread, nullptr});
    }
    for (const Forest::Thread* thread : b_) {
      if (thread != nullptr) pairs_.push_back({nullptr, thread});
    }
    return std::move(pairs_);
  }

 private:
  struct Likeness {
    std::uint64_t common;
    std::size_t a, b;
  };

  static void largest_first(std::vector<const Forest::Thread*>& threads) {
    std::stable_sort(threads.begin(), threads.end(),
                     [](const Forest::Thread* x, const Forest::Thread* y) {
                       return x->end - x->begin > y->end - y->begin;
                     });
  }

  void pair_by_content() {
    largest_first(a_);
    largest_first(b_);
    const std::size_t rows = std::min(a_.size(), kMostTracks);
    const std::size_t columns = std::min(b_.size(), kMostTracks);
    std::vector<NameCounts> counts;
    for (std::size_t j = 0; j < columns; ++j) counts.push_back(name_counts(after_, *b_[j]));
    std::vector<Likeness> likeness;
    for (std::size_t i = 0; i < rows; ++i) {
      const NameCounts own = name_counts(before_, *a_[i]);
      for (std::size_t j = 0; j < columns; ++j) {
        const std::uint64_t common = overlap(own, counts[j]);
        if (common > 0) likeness.push_back({common, i, j});
      }
    }
    std::stable_sort(likeness.begin(), likeness.end(),
                     [](const Likeness& x, const Likeness& y) { return x.common > y.common; });
    for (const Likeness& like : likeness) {
      if (a_[like.a] == nullptr || b_[like.b] == nullptr) continue;
      pairs_.push_back({a_[like.a], b_[like.b]});
      a_[like.a] = b_[like.b] = nullptr;
    }
  }

  const Forest& before_;
  const Forest& after_;
  std::vector<const Forest::Thread*> a_, b_;
  std::vector<ThreadPair> pairs_;
};

// ---------------------------------------------------------------------------------- contexts

struct Key {
  std::uint32_t owner, before, after;
  friend bool operator==(const Key&, const Key&) = default;
};

struct KeyHash {
  std::size_t operator()(const Key& key) const {
    return mix(mix(mix(0, key.owner), key.before), key.after);
  }
};

/// Classes of pairs (before, after) below an owner; what has no partner joins the class of its
/// equals, or one in which they have another partner.
class Classes {
 public:
  static constexpr std::uint32_t kAny = 0xfffffffeU;

  std::uint32_t of_matched(std::uint32_t owner, std::uint32_t before, std::uint32_t after) {
    const auto [it, fresh] = ids_.try_emplace(Key{owner, before, after}, size_);
    if (!fresh) return it->second;
    ids_.try_emplace(Key{owner, before, kAny}, size_);
    ids_.try_emplace(Key{owner, kAny, after}, size_);
    return size_++;
  }

  std::uint32_t of_unmatched(std::uint32_t owner, std::uint32_t value, bool is_after) {
    const auto equal = ids_.find(Key{owner, value, value});
    if (equal != ids_.end()) return equal->second;
    const auto other = ids_.find(is_after ? Key{owner, kAny, value} : Key{owner, value, kAny});
    return other != ids_.end() ? other->second : of_matched(owner, value, value);
  }

  std::uint32_t size() const { return size_; }

 private:
  std::unordered_map<Key, std::uint32_t, KeyHash> ids_;
  std::uint32_t size_ = 0;
};

class TreeDiffer {
 public:
  TreeDiff diff(std::span<const DiffPair> pairs) {
    result_.pair_offsets.push_back(0);
    for (const DiffPair& pair : pairs) {
      poll_interrupt();
      add_pair(pair);
      result_.pair_offsets.push_back(static_cast<std::uint32_t>(result_.before_row.size()));
    }
    return std::move(result_);
  }

 private:
  struct Open {
    Match match;
    std::uint32_t parent;
  };

  void add_pair(const DiffPair& pair) {
    const bool all = pair.before.tree.gpu_rows.empty() || pair.after.tree.gpu_rows.empty();
    std::vector<NodeKind> kinds_before = candidate_kinds(pair.before, all);
    std::vector<NodeKind> kinds_after = candidate_kinds(pair.after, all);
    drop_one_sided(kinds_before, kinds_after);
    const Forest before = ForestBuilder(pair.before, kinds_before, names_).build();
    const Forest after = ForestBuilder(pair.after, kinds_after, names_).build();
    const auto begin = static_cast<std::uint32_t>(result_.before_row.size());
    node_of_before_.assign(before.size(), kNoNode);
    node_of_after_.assign(after.size(), kNoNode);
    const std::vector<Match> matches =
        merge(before, pair.before.tree.main_track, after, pair.after.tree.main_track);
    assign_classes(before, after, matches, begin);
    result_.before_node.push_back(nodes_of_rows(pair.before, before, node_of_before_));
    result_.after_node.push_back(nodes_of_rows(pair.after, after, node_of_after_));
  }

  /// Emits the merged forest in pre-order.
  std::vector<Match> merge(const Forest& before, TrackId main_before, const Forest& after,
                           TrackId main_after) {
    const Matcher matcher(before, after);
    std::vector<Match> emitted;
    std::vector<Open> todo;
    const auto push = [&](const std::vector<Match>& siblings, std::uint32_t parent) {
      for (auto it = siblings.rbegin(); it != siblings.rend(); ++it) todo.push_back({*it, parent});
    };
    const auto list = [](const Forest& forest, std::uint32_t node) {
      if (node == kNoNode) return std::vector<std::uint32_t>{};
      const std::span<const std::uint32_t> children = forest.children(node);
      return std::vector<std::uint32_t>(children.begin(), children.end());
    };
    for (const ThreadPair& threads :
         ThreadMatcher(before, main_before, after, main_after).match()) {
      using Roots = std::vector<std::uint32_t>;
      push(matcher.match(threads.before != nullptr ? threads.before->roots : Roots{},
                         threads.after != nullptr ? threads.after->roots : Roots{}),
           kNoNode);
      while (!todo.empty()) {
        const Open next = todo.back();
        todo.pop_back();
        const std::uint32_t node = emit(before, after, next);
        emitted.push_back(next.match);
        if (next.match.opened) continue;
        push(matcher.match(list(before, next.match.before), list(after, next.match.after)), node);
      }
    }
    return emitted;
  }

  std::uint32_t emit(const Forest& before, const Forest& after, const Open& next) {
    const auto node = static_cast<std::uint32_t>(result_.before_row.size());
    const auto [a, b, by, opened] = next.match;
    if (a != kNoNode) node_of_before_[a] = node;
    if (b != kNoNode) node_of_after_[b] = node;
    result_.before_row.push_back(a == kNoNode ? kNoRow : before.row[a]);
    result_.after_row.push_back(b == kNoNode ? kNoRow : after.row[b]);
    result_.parent.push_back(next.parent);
    constexpr std::uint16_t kDeepest = std::numeric_limits<std::uint16_t>::max();
    const std::uint16_t above = next.parent == kNoNode ? kDeepest : result_.depth[next.parent];
    result_.depth.push_back(next.parent == kNoNode ? std::uint16_t{0}
                            : above == kDeepest    ? kDeepest
                                                   : static_cast<std::uint16_t>(above + 1));
    result_.matched_by.push_back(by);
    result_.variant.push_back(kNoNode);
    return node;
  }

  /// Matched nodes first, so that the others find the classes to join. Parents precede children,
  /// and a matched node's parent is matched.
  void assign_classes(const Forest& before, const Forest& after, const std::vector<Match>& matches,
                      std::uint32_t begin) {
    for (std::uint32_t i = 0; i < matches.size(); ++i) {
      poll_interrupt();
      const auto [a, b, by, opened] = matches[i];
      if (by == MatchedBy::kUnmatched) continue;
      const std::uint32_t context = contexts_.of_matched(
          context_above(begin + i), before.name[a].compared, after.name[b].compared);
      const std::uint32_t variant =
          variants_.of_matched(context, code(before.dims[a]), code(after.dims[b]));
      note_node(begin + i, context, variant, &before, a, &after, b, by);
    }
    for (std::uint32_t i = 0; i < matches.size(); ++i) {
      poll_interrupt();
      const auto [a, b, by, opened] = matches[i];
      if (by != MatchedBy::kUnmatched) continue;
      const bool is_after = a == kNoNode;
      const Forest& forest = is_after ? after : before;
      const std::uint32_t own = is_after ? b : a;
      const std::uint32_t context =
          contexts_.of_unmatched(context_above(begin + i), forest.name[own].compared, is_after);
      const std::uint32_t variant =
          variants_.of_unmatched(context, code(forest.dims[own]), is_after);
      note_node(begin + i, context, variant, &before, a, &after, b, by);
    }
  }

  static std::uint32_t code(std::int32_t dims) { return static_cast<std::uint32_t>(dims + 1); }

  std::uint32_t context_above(std::uint32_t node) const {
    const std::uint32_t parent = result_.parent[node];
    return parent == kNoNode ? kNoNode : result_.variant_context[result_.variant[parent]];
  }

  void note_node(std::uint32_t node, std::uint32_t context, std::uint32_t variant,
                 const Forest* before, std::uint32_t a, const Forest* after, std::uint32_t b,
                 MatchedBy by) {
    if (context == result_.context_parent.size()) {
      result_.context_parent.push_back(context_above(node));
      result_.context_before.push_back(kNoString);
      result_.context_after.push_back(kNoString);
    }
    if (variant == result_.variant_context.size()) {
      result_.variant_context.push_back(context);
      result_.variant_before_dims.push_back(-1);
      result_.variant_after_dims.push_back(-1);
      result_.variant_matched_by.push_back(by);
    }
    result_.variant_matched_by[variant] = std::min(result_.variant_matched_by[variant], by);
    if (a != kNoNode) {
      note_side(before->name[a].shown, before->dims[a], result_.context_before[context],
                result_.variant_before_dims[variant]);
    }
    if (b != kNoNode) {
      note_side(after->name[b].shown, after->dims[b], result_.context_after[context],
                result_.variant_after_dims[variant]);
    }
    result_.variant[node] = variant;
  }

  static void note_side(StringId name, std::int32_t dims, StringId& context_name,
                        std::int32_t& variant_dims) {
    if (context_name == kNoString) context_name = name;
    if (variant_dims < 0) variant_dims = dims;
  }

  static std::vector<std::uint32_t> nodes_of_rows(const DiffSide& side, const Forest& forest,
                                                  const std::vector<std::uint32_t>& merged) {
    std::vector<std::uint32_t> nodes(side.table.size(), kNoNode);
    for (std::uint32_t node = 0; node < forest.size(); ++node)
      nodes[forest.row[node]] = merged[node];
    for (Row row = 0; row < side.table.size(); ++row) {  // parents precede children
      const Row parent = side.tree.parent[row];
      if (nodes[row] == kNoNode && parent != kNoRow) nodes[row] = nodes[parent];
    }
    for (const Row row : side.tree.gpu_rows) {
      poll_interrupt();
      const Row launch =
          side.tree.launch[row] != kNoRow ? side.tree.launch[row] : side.tree.op[row];
      if (launch != kNoRow) nodes[row] = nodes[launch];
    }
    return nodes;
  }

  TreeDiff result_;
  Names names_{result_.names};
  Classes contexts_, variants_;
  std::vector<std::uint32_t> node_of_before_, node_of_after_;  // of the pair at hand
};

}  // namespace

TreeDiff build_tree_diff(std::span<const DiffPair> pairs) { return TreeDiffer().diff(pairs); }

}  // namespace traceap
