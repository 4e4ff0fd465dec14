// A Python loop walks over the elements of a tensor: x[i], then the same few operators, again and
// again. After torch's own pattern ForLoopIndexing.
//
// Cost: idle time while the loop runs on the host.

#include <algorithm>
#include <span>

#include "traceap/base/interrupt.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/operators.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// torch's own bound.
constexpr std::size_t kMinTurns = 10;
/// x[i] * y[i] indexes twice in a turn; more than this is hardly written.
constexpr std::size_t kMaxIndexings = 4;
/// One operation on the whole tensor takes the place of all turns, unless each needs the one
/// before.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdle, .best = 0.5};

bool is_indexing(std::string_view name) { return name == "aten::select"; }
/// A loop with products in it goes over layers (qkv[0], qkv[1]) or time steps, which have an order.
bool is_product(std::string_view name) {
  return is_any(name,
                {"aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::matmul",
                 "aten::linear", "aten::einsum", "aten::conv1d", "aten::conv2d", "aten::conv3d",
                 "aten::scaled_dot_product_attention", "aten::lstm", "aten::gru"}) ||
         contains(name, "attention");
}

/// Operators of one thread from `first` to before `last`: `turns` equal turns.
struct Loop {
  std::size_t first, last, turns;
};

/// Finds runs of equal turns among the operators that Python called. A block is an indexing with
/// what follows up to the next one; a turn is one block or a few.
class LoopFinder {
 public:
  LoopFinder(const Signals& signals, std::span<const Row> operators)
      : table_(signals.table), operators_(operators) {
    const LazyNames indexing(table_, is_indexing);
    for (std::size_t i = 0; i < operators.size(); ++i) {
      if (indexing(operators[i])) starts_.push_back(i);
    }
  }

  std::vector<Loop> find() const {
    std::vector<Loop> loops;
    for (std::size_t at = 0; at < starts_.size();) {
      poll_interrupt();
      const Loop loop = longest_from(at);
      if (loop.turns > 0) {
        loops.push_back(loop);
        at = static_cast<std::size_t>(std::lower_bound(starts_.begin(), starts_.end(), loop.last) -
                                      starts_.begin());
      } else {
        ++at;
      }
    }
    return loops;
  }

 private:
  std::size_t start_of(std::size_t block) const {
    return block < starts_.size() ? starts_[block] : operators_.size();
  }
  /// The block may go on beyond the turn's last operator where the loop ends.
  bool same_names(std::size_t a, std::size_t b, std::size_t length) const {
    if (b + length > operators_.size()) return false;
    for (std::size_t i = 0; i < length; ++i) {
      if (table_.name[operators_[a + i]] != table_.name[operators_[b + i]]) return false;
    }
    return true;
  }
  Loop longest_from(std::size_t block) const {
    const std::size_t first = starts_[block];
    Loop best{first, first, 0};
    for (std::size_t blocks = 1; blocks <= kMaxIndexings; ++blocks) {
      const std::size_t length = start_of(block + blocks) - first;
      std::size_t turns = 1;
      while (same_names(first, first + turns * length, length)) ++turns;
      const Loop loop{first, first + turns * length, turns};
      if (turns >= kMinTurns && loop.last > best.last) best = loop;
    }
    return best;
  }

  const EventTable& table_;
  std::span<const Row> operators_;
  std::vector<std::size_t> starts_;
};

class LoopCosts {
 public:
  explicit LoopCosts(const Signals& signals)
      : signals_(signals), product_(signals.table, is_product) {}

  void add(std::span<const Row> operators, const Loop& loop) {
    const std::span<const Row> turn =
        operators.subspan(loop.first, (loop.last - loop.first) / loop.turns);
    const bool has_product =
        std::any_of(turn.begin(), turn.end(), [&](Row r) { return product_(r); });
    if (has_product || !only_computes(turn)) return;
    turns_ += loop.turns;
    ++loops_;
    const Interval host{signals_.table.ts_ns[operators[loop.first]],
                        signals_.table.end_ns(operators[loop.last - 1])};
    times_.push_back(signals_.on_gpu_clock(host));
    evidence_.insert(evidence_.end(), operators.begin() + static_cast<std::ptrdiff_t>(loop.first),
                     operators.begin() + static_cast<std::ptrdiff_t>(loop.last));
  }

  Finding finish() {
    if (loops_ == 0) return absent();
    Draft draft(kSaving);
    draft.cost = unexplained_idle_inside(signals_, std::move(times_));
    draft.confidence = 0.8;  // whether a turn needs the one before it, the trace does not say
    draft.count("loops", loops_);
    draft.count("turns", turns_);
    draft.text("operations", most_frequent_names(signals_.table, evidence_, 3));
    draft.evidence = std::move(evidence_);
    return finish_finding(signals_, std::move(draft));
  }

 private:
  /// aten::select makes a view; the rest of a turn must launch something, or on the host be there.
  /// A turn that copies to or from the host waits for that, however it is indexed
  /// (host_sync_in_loop, small_copies).
  bool only_computes(std::span<const Row> turn) const {
    if (signals_.on_host) return turn.size() > 1;
    bool launches = false;
    for (Row r : turn) {
      for (Row g : gpu_rows_inside(signals_, r)) {
        if (is_host_device(signals_.tree.copy_direction[g])) return false;
        launches = true;
      }
    }
    return launches;
  }

  const Signals& signals_;
  LazyNames<> product_;
  std::size_t loops_ = 0, turns_ = 0;
  std::vector<Interval> times_;
  std::vector<Row> evidence_;
};

Finding detect(const Signals& signals) {
  if (!signals.has_gpu && !signals.on_host) return abstain({"GPU events"});
  if (!signals.has_operators) return abstain({"host operators"});
  LoopCosts costs(signals);
  bool any = false;
  for (const std::vector<Row>& operators : outermost_operators(signals)) {
    for (const Loop& loop : LoopFinder(signals, operators).find()) {
      any = true;
      costs.add(operators, loop);
    }
  }
  // Whether its turns launch anything, only the calls tell.
  if (any && !signals.on_host && !signals.links_operators())
    return abstain({missing_link(signals)});
  return costs.finish();
}

}  // namespace

namespace rules {
extern constexpr Rule for_loop_indexing{
    .type = "for_loop_indexing", .claim = Claim::kSpecific, .saving = kSaving, .detect = detect};
}

}  // namespace traceap
