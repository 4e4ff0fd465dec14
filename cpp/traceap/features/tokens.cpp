#include "traceap/features/tokens.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <string>

#include "traceap/analysis/collectives/metadata.hpp"
#include "traceap/analysis/costs/launches.hpp"
#include "traceap/analysis/idle/host_activity.hpp"
#include "traceap/base/error.hpp"
#include "traceap/base/interrupt.hpp"
#include "traceap/features/feature_columns.hpp"
#include "traceap/features/quantize.hpp"
#include "traceap/table/int_lists.hpp"

namespace traceap {
namespace {

constexpr std::uint32_t kMaxCap = 65536;
constexpr float kPositions = 1000;

constexpr std::array<std::string_view, kTokenKindCount> kKindNames{
    "kernel",          "memset",        "collective",   "copy",      "gap",
    "synchronization", "blocking_copy", "data_loading", "allocator", "compiled_region"};

/// The learned scorers were trained before exchanges of tokens had kinds of their own.
constexpr int kScoredCollectiveKindCount = static_cast<int>(CollectiveKind::kBarrier) + 1;
constexpr CollectiveKind scored_collective_kind(CollectiveKind kind) {
  return is_expert_exchange(kind) ? CollectiveKind::kUnknown : kind;
}

/// Classes of a kind follow each other; most kinds have one.
constexpr int class_count(TokenKind kind) {
  switch (kind) {
    case TokenKind::kCollective:
      return kScoredCollectiveKindCount;
    case TokenKind::kCopy:
      return (kCopyDirectionCount - 1) * kHostMemoryCount;  // a copy has a direction
    case TokenKind::kGap:
      return kScoredIdleCauseCount;
    default:
      return 1;
  }
}

constexpr std::array<int, kTokenKindCount + 1> first_classes() {
  std::array<int, kTokenKindCount + 1> first{};
  for (std::size_t k = 0; k < kTokenKindCount; ++k) {
    first[k + 1] = first[k] + class_count(static_cast<TokenKind>(k));
  }
  return first;
}
constexpr std::array kFirstClass = first_classes();
constexpr auto kClassCount = static_cast<std::size_t>(kFirstClass.back());
static_assert(kClassCount < 256);

std::uint8_t class_of(TokenKind kind, int within = 0) {
  return static_cast<std::uint8_t>(kFirstClass[static_cast<std::size_t>(kind)] + within);
}

std::string class_name(TokenKind kind, int within) {
  const std::string name(token_kind_name(kind));
  switch (kind) {
    case TokenKind::kCollective:
      return name + "/" + std::string(collective_kind_name(static_cast<CollectiveKind>(within)));
    case TokenKind::kCopy:
      return name + "/" +
             std::string(
                 copy_direction_name(static_cast<CopyDirection>(1 + within / kHostMemoryCount))) +
             "/" +
             std::string(host_memory_name(static_cast<HostMemory>(within % kHostMemoryCount)));
    case TokenKind::kGap:
      return name + "/" + std::string(idle_cause_name(static_cast<IdleCause>(within)));
    default:
      return name;
  }
}

/// What may become a token, before windows and caps: little, as there is one for each event.
struct Item {
  std::int64_t start_ns, end_ns;
  Row row;
  std::uint32_t gpu_index;  ///< in tree.gpu_rows; kNoRow for gaps and host rows
  TokenKind kind;
  std::uint8_t class_code;
};

/// What each GPU event's place in its stream and queue says.
struct GpuPlaces {
  std::vector<std::int32_t> queue_depth;
  std::vector<std::int64_t> stream_gap_ns;
};

GpuPlaces find_places(const EventTable& table, const EventTree& tree) {
  GpuPlaces places{build_launch_queue(table, tree).found, {}};
  std::vector<std::int64_t> ended(tree.streams.size(), kNoId);
  for (const Row r : tree.gpu_rows) {
    std::int64_t& end_ns = ended[tree.stream_of[r]];
    const std::int64_t start_ns = table.ts_ns[r];
    places.stream_gap_ns.push_back(end_ns == kNoId ? -1
                                                   : std::max<std::int64_t>(0, start_ns - end_ns));
    end_ns = std::max(end_ns, table.end_ns(r));
  }
  return places;
}

class ItemCollector {
 public:
  ItemCollector(const EventTable& table, const EventTree& tree, const std::vector<Row>& regions)
      : table_(table), tree_(tree), regions_(regions), activity_(table, tree) {}

  void add_gpu_events(const CollectiveList& collectives) {
    std::vector<std::pair<Row, CollectiveKind>> by_row;
    for (const Collective& c : collectives.collectives) by_row.emplace_back(c.row, c.kind);
    std::sort(by_row.begin(), by_row.end());
    for (std::uint32_t i = 0; i < tree_.gpu_rows.size(); ++i) {
      poll_interrupt();
      const Row r = tree_.gpu_rows[i];
      const TokenKind kind = gpu_kind(r);
      int within = 0;
      if (kind == TokenKind::kCopy) {
        const CopyKind copy = tree_.copy_of(r);
        within = std::max(0, static_cast<int>(copy.direction) - 1) * kHostMemoryCount +
                 static_cast<int>(copy.memory);
      } else if (kind == TokenKind::kCollective) {
        const auto found =
            std::lower_bound(by_row.begin(), by_row.end(), std::pair(r, CollectiveKind{}));
        if (found != by_row.end() && found->first == r) {
          within = static_cast<int>(scored_collective_kind(found->second));
        }
      }
      items_.push_back({table_.ts_ns[r], table_.end_ns(r), r, i, kind, class_of(kind, within)});
    }
  }

  /// Gaps that are long enough anywhere; what is short in its window is left out there.
  void add_gaps(const IdleBreakdown& idle) {
    for (const IdleInterval& gap : idle.intervals) {
      if (gap.interval.length_ns() <= kMinGapNs) continue;
      const int cause = static_cast<int>(scored_idle_cause(gap.cause));
      items_.push_back({gap.interval.start_ns, gap.interval.end_ns, gap.explained_by, kNoRow,
                        TokenKind::kGap, class_of(TokenKind::kGap, cause)});
    }
  }

  void add_host_rows() {
    const std::vector<std::uint8_t> feeds = feeding_tracks(table_, tree_);
    for (Row r = 0; r < table_.size(); ++r) {
      poll_interrupt();
      if (!is_host(table_.kind[r]) || !table_.is_complete(r) || !feeds[table_.track[r]]) continue;
      const std::optional<TokenKind> kind = host_kind(r);
      if (!kind) continue;
      items_.push_back({table_.ts_ns[r], table_.end_ns(r), r, kNoRow, *kind, class_of(*kind)});
    }
  }

  std::vector<Item> take() {
    std::stable_sort(items_.begin(), items_.end(),
                     [](const Item& a, const Item& b) { return a.start_ns < b.start_ns; });
    return std::move(items_);
  }

 private:
  TokenKind gpu_kind(Row r) const {
    switch (tree_.gpu_class[r]) {
      case GpuClass::kCommunication:
        return TokenKind::kCollective;
      case GpuClass::kMemcpy:
        return TokenKind::kCopy;
      default:
        return table_.kind[r] == EventKind::kGpuMemset ? TokenKind::kMemset : TokenKind::kKernel;
    }
  }

  /// The outermost of what nests: a loader's frames are one fetch.
  std::optional<TokenKind> host_kind(Row r) const {
    switch (activity_(r)) {
      case HostActivity::kSynchronize:
        return outermost(r, TokenKind::kSynchronization);
      case HostActivity::kSyncCopy:
        return TokenKind::kBlockingCopy;
      case HostActivity::kAsyncCopy:
        if (is_blocking_copy(table_, tree_, r)) return TokenKind::kBlockingCopy;
        return std::nullopt;
      case HostActivity::kAllocator:
        return TokenKind::kAllocator;
      case HostActivity::kDataLoading:
        return outermost(r, TokenKind::kDataLoading);
      case HostActivity::kCompiledRegion:
        if (!regions_.empty() && regions_[r] == r) return TokenKind::kCompiledRegion;
        return std::nullopt;
      default:
        return std::nullopt;
    }
  }
  std::optional<TokenKind> outermost(Row r, TokenKind kind) const {
    const Row parent = tree_.parent[r];
    if (parent != kNoRow && activity_(parent) == activity_(r)) return std::nullopt;
    return kind;
  }

  const EventTable& table_;
  const EventTree& tree_;
  const std::vector<Row>& regions_;
  HostActivities activity_;
  std::vector<Item> items_;
};

/// Note [Thinning]: a window over its cap keeps the classes of few events whole, and the others
/// share what is left equally (max-min fair); a class that gives up events keeps evenly spaced
/// ones, its first among them. So a lone copy among a thousand kernels is never lost, and what is
/// kept follows the window's course. Deterministic.
class Thinning {
 public:
  explicit Thinning(std::uint32_t cap) : cap_(cap) {}

  /// Leaves at most cap of `items`, in their order. Returns how many went.
  std::uint32_t operator()(std::vector<Item>& items) const {
    if (items.size() <= cap_) return 0;
    std::array<std::uint64_t, kClassCount> counts{}, seen{};
    for (const Item& item : items) ++counts[item.class_code];
    const std::array<std::uint64_t, kClassCount> quota = share_out(counts);
    const auto before = items.size();
    std::erase_if(items, [&](const Item& item) {
      const std::size_t c = item.class_code;
      const std::uint64_t i = seen[c]++;
      // Kept where the line i * quota / count enters a new integer: evenly, and quota in all.
      const bool same = i != 0 && i * quota[c] / counts[c] == (i - 1) * quota[c] / counts[c];
      return quota[c] == 0 || same;
    });
    return static_cast<std::uint32_t>(before - items.size());
  }

 private:
  std::array<std::uint64_t, kClassCount> share_out(
      const std::array<std::uint64_t, kClassCount>& counts) const {
    std::array<std::size_t, kClassCount> order{};
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return counts[a] < counts[b]; });
    std::array<std::uint64_t, kClassCount> quota{};
    std::uint64_t left = cap_;
    for (std::size_t i = 0; i < kClassCount; ++i) {
      const std::uint64_t share = left / (kClassCount - i);
      quota[order[i]] = std::min(counts[order[i]], share);
      left -= quota[order[i]];
    }
    return quota;
  }

  std::uint32_t cap_;
};

class TokenWriter {
 public:
  TokenWriter(const EventTable& table, const EventTree& tree, const CollectiveList& collectives,
              const std::vector<Row>& regions)
      : table_(table),
        tree_(tree),
        regions_(regions),
        places_(find_places(table, tree)),
        bytes_(table, "bytes"),
        grid_(table, "grid"),
        name_of_string_(table.strings.size(), -1) {
    for (const Collective& c : collectives.collectives) {
      if (c.bytes) message_bytes_.emplace_back(c.row, *c.bytes);
    }
    std::sort(message_bytes_.begin(), message_bytes_.end());
    tokens_.names = {"[none]", "[no launch]"};
    for (int cause = 0; cause < kScoredIdleCauseCount; ++cause) {
      tokens_.names.push_back(idle_cause_name(static_cast<IdleCause>(cause)));
    }
    tokens_.offsets.push_back(0);
  }

  void write(const Item& item, Interval window) {
    tokens_.row.push_back(item.row);
    tokens_.kind.push_back(item.kind);
    tokens_.class_code.push_back(item.class_code);
    tokens_.start_ns.push_back(item.start_ns);
    tokens_.dur_ns.push_back(item.end_ns - item.start_ns);
    tokens_.position.push_back(position(item.start_ns, window));
    duration_ns_.push_back(item.end_ns - item.start_ns);
    write_names(item);
    write_place(item);
    write_sizes(item);
    std::uint8_t flags = flags_of(item);
    if (item.start_ns < window.start_ns) flags |= kTokenContinued;
    tokens_.flags.push_back(flags);
  }
  void end_window(std::uint32_t folded) {
    tokens_.folded.push_back(folded);
    tokens_.offsets.push_back(static_cast<std::uint32_t>(tokens_.row.size()));
  }
  Tokens take() {
    tokens_.duration_code = codes(duration_ns_, kDurationRange);
    tokens_.delay_code = codes(delay_ns_, kDelayRange);
    for (std::size_t i = 0; i < delay_ns_.size(); ++i) {
      if (delay_ns_[i] == kNoId) tokens_.delay_code[i] = kNoDelayCode;
    }
    return std::move(tokens_);
  }

 private:
  static float position(std::int64_t start_ns, Interval window) {
    const std::int64_t after = std::max<std::int64_t>(0, start_ns - window.start_ns);
    const std::int64_t length = std::max<std::int64_t>(1, window.length_ns());
    return std::min(kPositions, kPositions * static_cast<float>(static_cast<double>(after) /
                                                                static_cast<double>(length)));
  }
  static std::vector<std::int16_t> codes(const std::vector<std::int64_t>& times_ns,
                                         const QuantizeRange& range) {
    const std::vector<std::int32_t> wide = quantize_ns(times_ns, range);
    return {wide.begin(), wide.end()};
  }

  std::int32_t name_of(Row r) {
    std::int32_t& name = name_of_string_[table_.name[r]];
    if (name < 0) {
      name = static_cast<std::int32_t>(tokens_.names.size());
      tokens_.names.push_back(table_.name_of(r));
    }
    return name;
  }

  void write_names(const Item& item) {
    const bool gpu = is_gpu_token(item.kind);
    if (item.kind == TokenKind::kGap) {
      const int cause = item.class_code - kFirstClass[static_cast<std::size_t>(TokenKind::kGap)];
      tokens_.name.push_back(kNoLaunchName + 1 + cause);
      tokens_.cpu_name.push_back(item.row == kNoRow ? kNoneName : name_of(item.row));
      return;
    }
    tokens_.name.push_back(name_of(item.row));
    const Row op = tree_.op[item.row];
    if (op != kNoRow) {
      tokens_.cpu_name.push_back(name_of(op));
    } else {
      const bool orphan = gpu && tree_.launch[item.row] == kNoRow;
      tokens_.cpu_name.push_back(orphan ? kNoLaunchName : kNoneName);
    }
  }

  void write_place(const Item& item) {
    if (!is_gpu_token(item.kind)) {
      delay_ns_.push_back(kNoId);
      tokens_.stream.push_back(-1);
      tokens_.stream_role.push_back(kNoStreamRole);
      tokens_.queue_depth.push_back(-1);
      tokens_.stream_gap_ns.push_back(-1);
      tokens_.launch_dur_ns.push_back(-1);
      return;
    }
    const std::uint32_t stream = tree_.stream_of[item.row];
    const Row launch = tree_.launch[item.row];
    delay_ns_.push_back(launch_delay_ns(table_, tree_, item.row));
    tokens_.stream.push_back(static_cast<std::int32_t>(stream));
    tokens_.stream_role.push_back(static_cast<std::uint8_t>(tree_.streams[stream].role));
    tokens_.queue_depth.push_back(places_.queue_depth[item.gpu_index]);
    tokens_.stream_gap_ns.push_back(places_.stream_gap_ns[item.gpu_index]);
    tokens_.launch_dur_ns.push_back(launch == kNoRow ? -1 : table_.dur_ns[launch]);
  }

  void write_sizes(const Item& item) {
    std::int64_t bytes = 0, blocks = 0;
    if (item.kind == TokenKind::kCopy || item.kind == TokenKind::kMemset) {
      bytes = bytes_.integer(item.row).value_or(0);
    } else if (item.kind == TokenKind::kCollective) {
      bytes = message_bytes(item.row);
    } else if (item.kind == TokenKind::kKernel) {
      blocks = grid_blocks(item.row);
    }
    tokens_.bytes.push_back(std::max<std::int64_t>(0, bytes));
    tokens_.grid_blocks.push_back(blocks);
  }
  std::int64_t message_bytes(Row r) const {
    const auto found = std::lower_bound(message_bytes_.begin(), message_bytes_.end(),
                                        std::pair<Row, std::int64_t>(r, INT64_MIN));
    return found != message_bytes_.end() && found->first == r ? found->second : 0;
  }
  /// Product of the sides; 0 where one is missing, not positive, or the product leaves 64 bits.
  std::int64_t grid_blocks(Row r) const {
    const std::optional<std::string> text = grid_.json(r);
    if (!text) return 0;
    std::int64_t blocks = 1;
    const std::vector<std::int64_t> sides = parse_int_list(*text);
    for (const std::int64_t side : sides) {
      if (side <= 0 || __builtin_mul_overflow(blocks, side, &blocks)) return 0;
    }
    return sides.empty() ? 0 : blocks;
  }

  std::uint8_t flags_of(const Item& item) const {
    if (item.row == kNoRow) return 0;
    std::uint8_t flags = 0;
    if (tree_.phase[item.row] == Phase::kBackward) flags |= kTokenBackward;
    const Row caller = is_gpu_token(item.kind) ? tree_.launch[item.row] : item.row;
    if (caller == kNoRow) return flags;
    if (tree_.api[caller] == ApiClass::kGraphLaunch) flags |= kTokenInGraph;
    if (!regions_.empty() && regions_[caller] != kNoRow) flags |= kTokenInCompiled;
    return flags;
  }

  const EventTable& table_;
  const EventTree& tree_;
  const std::vector<Row>& regions_;
  GpuPlaces places_;
  ArgReader bytes_, grid_;
  std::vector<std::int32_t> name_of_string_;  ///< by StringId: in tokens_.names, or -1
  std::vector<std::pair<Row, std::int64_t>> message_bytes_;
  std::vector<std::int64_t> duration_ns_, delay_ns_;
  Tokens tokens_;
};

/// The items of one window after the other.
class WindowItems {
 public:
  WindowItems(std::vector<Item>&& items, const WindowSet& windows, bool continued)
      : items_(std::move(items)), windows_(windows), continued_(continued) {}

  /// By start. Valid, and the caller's, until the next call.
  std::vector<Item>& next_window() {
    const Interval window = windows_.bounds(window_);
    const bool last = ++window_ == windows_.count();
    if (!continued_) live_.clear();
    std::erase_if(live_, [&](const Item& item) { return item.end_ns <= window.start_ns; });
    const auto begun = [&](std::int64_t time_ns) {  // the end bound belongs to the last window
      return time_ns < window.end_ns || (last && time_ns == window.end_ns);
    };
    for (; next_ < items_.size() && begun(items_[next_].start_ns); ++next_) {
      const Item& item = items_[next_];
      const bool reaches = continued_ && item.end_ns > window.start_ns;
      if (reaches || item.start_ns >= window.start_ns) live_.push_back(item);
    }
    current_.clear();
    std::copy_if(live_.begin(), live_.end(), std::back_inserter(current_),
                 [&](const Item& item) { return counts_in(item, window); });
    return current_;
  }

 private:
  /// Is it a token of the window at all? Gaps by the part of them that lies in it.
  static bool counts_in(const Item& item, Interval window) {
    if (item.kind != TokenKind::kGap) return true;
    const std::int64_t inside =
        std::min(item.end_ns, window.end_ns) - std::max(item.start_ns, window.start_ns);
    return inside > kMinGapNs &&
           static_cast<double>(inside) > kMinGapShare * static_cast<double>(window.length_ns());
  }

  std::vector<Item> items_, live_, current_;  ///< live: begun, and may reach into the window
  const WindowSet& windows_;
  bool continued_;
  std::size_t next_ = 0;
  std::uint32_t window_ = 0;
};

}  // namespace

std::string_view token_kind_name(TokenKind kind) {
  return kKindNames[static_cast<std::size_t>(kind)];
}

const std::vector<std::string>& token_class_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (int k = 0; k < kTokenKindCount; ++k) {
      const auto kind = static_cast<TokenKind>(k);
      for (int c = 0; c < class_count(kind); ++c) all.push_back(class_name(kind, c));
    }
    return all;
  }();
  return names;
}

Tokens build_tokens(const EventTable& table, const EventTree& tree, const IdleBreakdown& idle,
                    const WindowSet& windows, const TokenOptions& options) {
  if (options.cap == 0 || options.cap > kMaxCap) {
    throw OptionError("cap: a window has 1 to 65536 tokens");
  }
  const std::vector<Row> regions = compiled_regions(table, tree);
  const CollectiveList collectives = build_collectives(table, tree);
  ItemCollector collector(table, tree, regions);
  collector.add_gpu_events(collectives);
  if (options.gaps) collector.add_gaps(idle);
  if (options.host) collector.add_host_rows();

  TokenWriter writer(table, tree, collectives, regions);
  const Thinning thin(options.cap);
  WindowItems walk(collector.take(), windows, options.continued);
  for (std::uint32_t w = 0; w < windows.count(); ++w) {
    poll_interrupt_now();
    std::vector<Item>& items = walk.next_window();
    const std::uint32_t folded = thin(items);
    for (const Item& item : items) writer.write(item, windows.bounds(w));
    writer.end_window(folded);
  }
  return writer.take();
}

}  // namespace traceap
