#include "traceap/analysis/costs/kernel_sequences.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <tuple>

#include "traceap/base/error.hpp"
#include "traceap/base/interrupt.hpp"
#include "traceap/base/intervals.hpp"
#include "traceap/base/sums.hpp"

namespace traceap {
namespace {

using Place = std::uint32_t;  // index in Text

/// A value from 0 for each place, and their sums over consecutive places.
class PlaceSums {
 public:
  void push_back(std::uint64_t value) { before_.push_back(value); }
  std::uint64_t& back() { return before_.back(); }

  /// Once all values are there.
  void sum_up() {
    double total = 0.0;
    for (const std::uint64_t value : before_) total += static_cast<double>(value);
    before_.push_back(0);
    // The sums over all may wrap, and differences are right all the same unless they wrap too.
    if (total > kNearlyWraps) {
      rough_.assign(before_.begin(), before_.end());
      std::exclusive_scan(rough_.begin(), rough_.end(), rough_.begin(), 0.0);
    }
    std::exclusive_scan(before_.begin(), before_.end(), before_.begin(), std::uint64_t{0});
  }
  /// Of the places from `first` to before `last`; stops at the end of 64 bits.
  std::int64_t between(Place first, Place last) const {
    constexpr std::uint64_t kLargest = std::numeric_limits<std::int64_t>::max();
    const bool wraps = !rough_.empty() && rough_[last] - rough_[first] > kNearlyWraps;
    const std::uint64_t sum = wraps ? kLargest : before_[last] - before_[first];
    return static_cast<std::int64_t>(std::min(sum, kLargest));
  }

 private:
  static constexpr double kNearlyWraps = 1.3e19;  // between 2^63 and 2^64, far from either

  std::vector<std::uint64_t> before_;  // values at first, then sums over the places before
  std::vector<double> rough_;          // the same sums, where some are beyond 64 bits
};

/// Kernels of all streams one after another. Where a sequence must not pass stands a place without
/// a row, whose symbol occurs nowhere else.
struct Text {
  std::vector<std::uint32_t> symbol;  ///< dense, from 0
  std::vector<Row> row;
  std::vector<std::uint32_t> stream;
  PlaceSums gpu_ns;                     ///< durations
  PlaceSums gap_ns;                     ///< idle time of the stream in front of a kernel
  PlaceSums launch_ns;                  ///< launch calls that launch nothing else
  PlaceSums removable_ns;               ///< see KernelSequence
  std::vector<std::uint32_t> launches;  ///< sums over the places before

  Place size() const { return static_cast<Place>(symbol.size()); }
};

/// Number of step borders up to a time.
class StepBorders {
 public:
  explicit StepBorders(const EventTree& tree) {
    for (const Step& step : tree.steps) {
      borders_.push_back(step.start_ns);
      borders_.push_back(step.end_ns);
    }
    std::sort(borders_.begin(), borders_.end());
  }
  std::size_t before(std::int64_t time_ns) const {
    return static_cast<std::size_t>(std::upper_bound(borders_.begin(), borders_.end(), time_ns) -
                                    borders_.begin());
  }

 private:
  std::vector<std::int64_t> borders_;
};

class TextBuilder {
 public:
  TextBuilder(const EventTable& table, const EventTree& tree, std::span<const std::int32_t> symbols,
              const SequenceOptions& options)
      : table_(table), tree_(tree), symbols_(symbols), options_(options), borders_(tree) {}

  Text build() {
    std::vector<std::vector<std::uint32_t>> events(tree_.streams.size());
    for (std::uint32_t i = 0; i < tree_.gpu_rows.size(); ++i) {
      poll_interrupt();
      events[tree_.stream_of[tree_.gpu_rows[i]]].push_back(i);
    }
    for (std::uint32_t stream = 0; stream < events.size(); ++stream) {
      add_stream(stream, events[stream]);
    }
    make_dense();
    sum_up();
    return std::move(text_);
  }

 private:
  void add_stream(std::uint32_t stream, const std::vector<std::uint32_t>& events) {
    std::int64_t busy_until_ns = kNoId;
    std::size_t step = 0;
    for (const std::uint32_t i : events) {
      poll_interrupt();
      const Row row = tree_.gpu_rows[i];
      const std::int64_t start_ns = table_.ts_ns[row];
      const auto gap_ns =
          busy_until_ns == kNoId || start_ns <= busy_until_ns
              ? 0
              : static_cast<std::uint64_t>(start_ns) - static_cast<std::uint64_t>(busy_until_ns);
      const std::size_t step_here = step_of(row);
      if (step_here != step || gap_ns > static_cast<std::uint64_t>(options_.max_gap_ns)) {
        add_break();
      }
      if (symbols_[i] < 0) {
        add_break();
      } else {
        add_kernel(row, stream, static_cast<std::uint32_t>(symbols_[i]), gap_ns, busy_until_ns);
      }
      step = step_here;
      busy_until_ns = std::max(busy_until_ns, table_.end_ns(row));
    }
    add_break();
  }

  std::size_t step_of(Row row) const {
    const Row launch = tree_.launch[row];
    return borders_.before(table_.ts_ns[launch == kNoRow ? row : launch]);
  }

  void add_kernel(Row row, std::uint32_t stream, std::uint32_t symbol, std::uint64_t gap_ns,
                  std::int64_t busy_until_ns) {
    const Row launch = tree_.launch[row];
    const bool own_call = launch != kNoRow && tree_.launched_by(launch).size() == 1;
    const auto call_ns = own_call ? static_cast<std::uint64_t>(table_.dur_ns[launch]) : 0;
    const bool host_was_late = own_call && table_.end_ns(launch) > on_host_clock(busy_until_ns);
    push(symbol, row, stream);
    text_.gpu_ns.back() = static_cast<std::uint64_t>(table_.dur_ns[row]);
    text_.gap_ns.back() = gap_ns;
    text_.launch_ns.back() = call_ns;
    text_.removable_ns.back() = host_was_late ? std::max(gap_ns, call_ns) : gap_ns;
    text_.launches.back() = own_call;
  }

  std::int64_t on_host_clock(std::int64_t gpu_ns) const {
    std::int64_t shifted;
    const std::int64_t correction = tree_.launch_delay_correction_ns;
    return __builtin_add_overflow(gpu_ns, correction, &shifted) ? gpu_ns : shifted;
  }

  void add_break() {
    if (!text_.row.empty() && text_.row.back() == kNoRow) return;
    push(0, kNoRow, 0);
  }

  /// A place whose times are all 0.
  void push(std::uint32_t symbol, Row row, std::uint32_t stream) {
    text_.symbol.push_back(symbol);
    text_.row.push_back(row);
    text_.stream.push_back(stream);
    text_.gpu_ns.push_back(0);
    text_.gap_ns.push_back(0);
    text_.launch_ns.push_back(0);
    text_.removable_ns.push_back(0);
    text_.launches.push_back(0);
  }

  /// Numbers the symbols that occur from 0, and each break with a number of its own behind them.
  void make_dense() {
    std::vector<std::uint32_t> used;
    for (Place i = 0; i < text_.size(); ++i) {
      poll_interrupt();
      if (text_.row[i] != kNoRow) used.push_back(text_.symbol[i]);
    }
    std::sort(used.begin(), used.end());
    used.erase(std::unique(used.begin(), used.end()), used.end());
    auto next = static_cast<std::uint32_t>(used.size());
    for (Place i = 0; i < text_.size(); ++i) {
      poll_interrupt();
      std::uint32_t& symbol = text_.symbol[i];
      symbol = text_.row[i] == kNoRow
                   ? next++
                   : static_cast<std::uint32_t>(std::lower_bound(used.begin(), used.end(), symbol) -
                                                used.begin());
    }
  }

  void sum_up() {
    text_.gpu_ns.sum_up();
    text_.gap_ns.sum_up();
    text_.launch_ns.sum_up();
    text_.removable_ns.sum_up();
    text_.launches.push_back(0);
    std::exclusive_scan(text_.launches.begin(), text_.launches.end(), text_.launches.begin(), 0U);
  }

  const EventTable& table_;
  const EventTree& tree_;
  std::span<const std::int32_t> symbols_;
  const SequenceOptions& options_;
  StepBorders borders_;
  Text text_;
};

/// Suffixes in order of their first symbols, as many as asked for.
class SuffixOrder {
 public:
  SuffixOrder(const std::vector<std::uint32_t>& symbols, std::uint32_t prefix) : limit_(prefix) {
    const auto size = static_cast<Place>(symbols.size());
    order_.resize(size);
    std::iota(order_.begin(), order_.end(), Place{0});
    sort_by(symbols);
    ranks_.push_back(symbols);
    for (std::uint32_t length = 1; length < limit_ && length < size; length *= 2) double_prefix();
  }

  const std::vector<Place>& order() const { return order_; }

  /// Symbols that two suffixes share at their front, at most the limit.
  std::uint32_t common_prefix(Place a, Place b) const {
    std::uint32_t common = 0;
    const auto size = static_cast<Place>(order_.size());
    for (std::size_t level = ranks_.size(); level-- > 0;) {
      const std::uint32_t step = 1U << level;
      while (std::max(a, b) + common < size &&
             ranks_[level][a + common] == ranks_[level][b + common]) {
        common += step;
        if (common >= limit_) return limit_;
      }
    }
    return common;
  }

 private:
  /// Stable counting sort of order_ by a rank below its size.
  void sort_by(const std::vector<std::uint32_t>& rank) {
    std::vector<Place> starts(rank.size() + 1, 0), sorted(rank.size());
    for (const std::uint32_t value : rank) ++starts[value + 1];
    std::partial_sum(starts.begin(), starts.end(), starts.begin());
    for (const Place place : order_) sorted[starts[rank[place]]++] = place;
    order_ = std::move(sorted);
  }

  /// From an order by 2^k symbols to one by 2^(k+1) (Manber and Myers 1993).
  void double_prefix() {
    const std::vector<std::uint32_t>& rank = ranks_.back();
    const auto size = static_cast<Place>(rank.size());
    const Place step = Place{1} << (ranks_.size() - 1);
    std::vector<Place> by_second;
    by_second.reserve(size);
    for (Place i = size - std::min(size, step); i < size; ++i) by_second.push_back(i);
    for (const Place place : order_) {
      poll_interrupt();
      if (place >= step) by_second.push_back(place - step);
    }
    order_ = std::move(by_second);
    sort_by(rank);
    // No suffix that is too short equals another one: a break, unique, ends the text.
    const auto second = [&](Place i) { return i + step < size ? rank[i + step] + 1 : 0; };
    std::vector<std::uint32_t> next(size);
    for (Place i = 1; i < size; ++i) {
      poll_interrupt();
      const Place a = order_[i - 1], b = order_[i];
      next[b] = next[a] + (rank[a] != rank[b] || second(a) != second(b));
    }
    ranks_.push_back(std::move(next));
  }

  std::uint32_t limit_;
  std::vector<Place> order_;
  std::vector<std::vector<std::uint32_t>> ranks_;  ///< [k]: equal where 2^k symbols are
};

/// Suffixes first..last of the order share exactly `length` symbols.
struct Repeat {
  std::uint32_t length;
  Place first, last;
};

constexpr std::uint32_t kManySymbols = 0xFFFFFFFF;

/// Calls `found` with each maximal repeat, by the stack of Abouelhoda et al.
template <typename Found>
void for_each_maximal_repeat(const Text& text, const SuffixOrder& suffixes, Found found) {
  struct Open {
    std::uint32_t length;
    Place first;
    std::uint32_t left;  // the symbol before all of its suffixes; kManySymbols if they differ
  };
  const std::vector<Place>& order = suffixes.order();
  const auto left_of = [&](Place place) {
    return place == 0 ? kManySymbols : text.symbol[place - 1];
  };
  const auto merge = [](std::uint32_t a, std::uint32_t b) { return a == b ? a : kManySymbols; };
  std::vector<Open> open{{0, 0, kManySymbols}};
  for (Place i = 0; i < order.size(); ++i) {
    poll_interrupt();
    const std::uint32_t shared =
        i + 1 < order.size() ? suffixes.common_prefix(order[i], order[i + 1]) : 0;
    std::uint32_t left = left_of(order[i]);
    Place first = i;
    while (open.back().length > shared) {
      Open done = open.back();
      open.pop_back();
      done.left = merge(done.left, left);
      if (done.left == kManySymbols) found(Repeat{done.length, done.first, i});
      left = done.left;
      first = done.first;
    }
    if (open.back().length < shared) {
      open.push_back({shared, first, left});
    } else {
      open.back().left = merge(open.back().left, left);
    }
  }
}

/// Is it a part that repeats at least twice, other than a pair of one symbol?
bool is_periodic(std::span<const std::uint32_t> symbols) {
  if (symbols.size() <= 2) return false;
  std::vector<std::size_t> border(symbols.size(), 0);  // Knuth, Morris, Pratt
  for (std::size_t i = 1; i < symbols.size(); ++i) {
    poll_interrupt();
    std::size_t k = border[i - 1];
    while (k > 0 && symbols[i] != symbols[k]) k = border[k - 1];
    border[i] = k + (symbols[i] == symbols[k]);
  }
  return 2 * (symbols.size() - border.back()) <= symbols.size();
}

/// Starts of occurrences that don't overlap, from the left.
std::vector<Place> separate(std::span<const Place> places, std::uint32_t length) {
  std::vector<Place> sorted(places.begin(), places.end());
  std::sort(sorted.begin(), sorted.end());
  std::vector<Place> kept;
  for (const Place place : sorted) {
    poll_interrupt();
    if (kept.empty() || place - kept.back() >= length) kept.push_back(place);
  }
  return kept;
}

std::span<const Place> places_of(const SuffixOrder& suffixes, const Repeat& repeat) {
  return std::span(suffixes.order()).subspan(repeat.first, repeat.last - repeat.first + 1);
}

struct Candidate {
  Repeat repeat;
  Place first_place;
  KernelSequence sequence;  // without rows
};

Candidate measure(const Text& text, const Repeat& repeat, const std::vector<Place>& starts) {
  std::int64_t gpu_ns = 0, gap_ns = 0, launch_ns = 0, removable_ns = 0;
  std::uint32_t launches = 0;
  for (const Place start : starts) {
    poll_interrupt();
    const Place end = start + repeat.length;
    add_to(gpu_ns, text.gpu_ns.between(start, end));
    add_to(gap_ns, text.gap_ns.between(start + 1, end));
    add_to(launch_ns, text.launch_ns.between(start + 1, end));
    add_to(removable_ns, text.removable_ns.between(start + 1, end));
    launches += text.launches[end] - text.launches[start + 1];
  }
  KernelSequence sequence{};
  sequence.length = repeat.length;
  sequence.count = static_cast<std::uint32_t>(starts.size());
  sequence.stream = text.stream[starts.front()];
  sequence.gpu_ns = gpu_ns;
  sequence.gap_ns = gap_ns;
  sequence.launch_ns = launch_ns;
  sequence.launches = launches;
  sequence.removable_ns = removable_ns;
  sequence.op = kNoRow;
  return {repeat, starts.front(), sequence};
}

bool all_linked(const EventTree& tree, std::span<const Row> kernels) {
  return std::all_of(kernels.begin(), kernels.end(),
                     [&](Row kernel) { return tree.launch[kernel] != kNoRow; });
}

/// The innermost op whose subtree launches all these linked kernels; kNoRow if there is none.
Row common_op(const EventTable& table, const EventTree& tree, std::span<const Row> kernels) {
  Row above = tree.launch[kernels.front()];
  for (const Row kernel : kernels) {
    poll_interrupt();
    while (above != kNoRow && !is_inside(tree, tree.launch[kernel], above)) {
      above = tree.parent[above];
    }
  }
  while (above != kNoRow && table.kind[above] != EventKind::kCpuOp) above = tree.parent[above];
  return above;
}

/// Adds a sequence with its op and rows; occurrences with unknown launches say nothing about the
/// op.
void add_sequence(const EventTable& table, const EventTree& tree, const Text& text,
                  const std::vector<Place>& starts, KernelSequence sequence,
                  KernelSequences& found) {
  Place shown = starts.front();
  bool known = false;
  for (const Place start : starts) {
    poll_interrupt();
    const std::span<const Row> kernels = std::span(text.row).subspan(start, sequence.length);
    if (!all_linked(tree, kernels)) continue;
    const Row op = common_op(table, tree, kernels);
    if (!known) {
      sequence.op = op;
      shown = start;
    } else if (op == kNoRow || sequence.op == kNoRow || table.name[op] != table.name[sequence.op]) {
      sequence.op = kNoRow;
    }
    known = true;
  }
  sequence.first_row = text.row[starts.front()];
  sequence.kernels_begin = static_cast<std::uint32_t>(found.kernel_rows.size());
  const auto first = text.row.begin() + shown;
  found.kernel_rows.insert(found.kernel_rows.end(), first, first + sequence.length);
  found.sequences.push_back(sequence);
}

std::vector<Candidate> find_candidates(const Text& text, const SuffixOrder& suffixes,
                                       const SequenceOptions& options) {
  std::vector<Candidate> candidates;
  const std::uint32_t shortest = options.length == 0 ? 2 : options.length;
  for_each_maximal_repeat(text, suffixes, [&](const Repeat& repeat) {
    if (repeat.length < shortest) return;
    const Place place = suffixes.order()[repeat.first];
    if (is_periodic(std::span(text.symbol).subspan(place, repeat.length))) return;
    const std::vector<Place> starts = separate(places_of(suffixes, repeat), repeat.length);
    if (starts.size() >= 2) candidates.push_back(measure(text, repeat, starts));
  });
  return candidates;
}

void sort_by_gain(std::vector<Candidate>& candidates) {
  const auto key = [](const Candidate& c) {
    return std::tuple(-c.sequence.removable_ns, -static_cast<std::int64_t>(c.sequence.count),
                      c.first_place, c.repeat.length);
  };
  std::sort(candidates.begin(), candidates.end(),
            [&](const Candidate& a, const Candidate& b) { return key(a) < key(b); });
}

/// Which kernels belong to listed sequences, and how often those occur. One layer for each power of
/// two of counts, so that a frequent pair doesn't hide the long sequence around it.
class Coverage {
 public:
  explicit Coverage(Place size) : size_(size), layers_(34) {}

  /// Is it nearly what is listed, shifted or cut?
  bool holds(const KernelSequence& sequence, const std::vector<Place>& starts) const {
    std::size_t covered = 0;
    for (const Place start : starts) covered += is_covered(sequence, start);
    return 10 * covered >= 9 * starts.size();
  }

  void add(const KernelSequence& sequence, const std::vector<Place>& starts) {
    std::vector<std::uint32_t>& layer = layers_[layer_of(sequence.count)];
    layer.resize(size_, 0);
    for (const Place start : starts) {
      poll_interrupt();
      for (Place i = start; i < start + sequence.length; ++i) {
        poll_interrupt();
        layer[i] = std::max(layer[i], sequence.count);
      }
    }
  }

 private:
  static std::size_t layer_of(std::uint32_t count) {
    return static_cast<std::size_t>(std::bit_width(count));
  }

  /// Is the middle of this occurrence in one of a listed sequence that occurs about as often?
  bool is_covered(const KernelSequence& sequence, Place start) const {
    const std::size_t own = layer_of(sequence.count);  // at least 2: a sequence occurs twice
    const Place middle = start + sequence.length / 2;
    return std::any_of(layers_.begin() + static_cast<std::ptrdiff_t>(own - 1),
                       layers_.begin() + static_cast<std::ptrdiff_t>(own + 2),
                       [&](const auto& layer) {
                         return !layer.empty() && 4 * std::uint64_t{sequence.count} <=
                                                      5 * std::uint64_t{layer[middle]};
                       });
  }

  Place size_;
  std::vector<std::vector<std::uint32_t>> layers_;  ///< per place: the largest count, or 0
};

}  // namespace

KernelSequences find_kernel_sequences(const EventTable& table, const EventTree& tree,
                                      std::span<const std::int32_t> symbols,
                                      const SequenceOptions& options) {
  if (symbols.size() != tree.gpu_rows.size()) {
    throw SchemaError("symbols: expected one per GPU event");
  }
  const std::uint32_t longest = options.length == 0 ? options.max_length : options.length;
  if (longest < 2) throw OptionError("length: a sequence has at least 2 kernels");
  const Text text = TextBuilder(table, tree, symbols, options).build();
  if (text.size() < 2) return {};
  const SuffixOrder suffixes(text.symbol, std::min(longest, text.size()));
  std::vector<Candidate> candidates = find_candidates(text, suffixes, options);
  sort_by_gain(candidates);
  KernelSequences found;
  Coverage coverage(text.size());
  for (Candidate& candidate : candidates) {
    if (found.sequences.size() == options.limit) break;
    const std::vector<Place> starts =
        separate(places_of(suffixes, candidate.repeat), candidate.repeat.length);
    if (options.drop_similar && coverage.holds(candidate.sequence, starts)) continue;
    if (options.drop_similar) coverage.add(candidate.sequence, starts);
    add_sequence(table, tree, text, starts, candidate.sequence, found);
  }
  return found;
}

}  // namespace traceap
