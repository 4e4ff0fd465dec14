// Attention as separate product, softmax and product: the score matrix goes to memory and back.

#include <algorithm>
#include <optional>

#include "traceap/base/interrupt.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/shapes.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// A score matrix with fewer keys fits in registers, and one query (decoding) has no matrix at all:
/// there is no traffic to save.
constexpr std::int64_t kMinKeys = 64;
constexpr std::int64_t kMinQueries = 16;
/// FlashAttention's paper measures two to four times the speed of unfused attention.
constexpr SavingShares kSaving{
    .basis = SavingBasis::kGpuWork, .best = 1.0 - 1.0 / 2.0, .high = 1.0 - 1.0 / 4.0};

enum class Part : std::uint8_t { kOther = 0, kBatchedProduct, kSoftmax, kBreak, kMath };

/// What an operator is to the search. kBreak: work that never stands inside attention.
Part part_of(std::string_view name) {
  if (name == "aten::bmm" || name == "aten::baddbmm") return Part::kBatchedProduct;
  if (name == "aten::_softmax" || name == "aten::_masked_softmax" ||
      name == "aten::_safe_softmax") {
    return Part::kSoftmax;
  }
  if (name == "aten::_scaled_dot_product_attention_math") return Part::kMath;
  if (name == "aten::mm" || name == "aten::addmm" || name == "aten::convolution" ||
      name == "aten::native_layer_norm" || name == "aten::_log_softmax" ||
      name == "aten::_softmax_backward_data" || contains(name, "optimizer")) {
    return Part::kBreak;
  }
  return Part::kOther;
}

struct Block {
  Row first, last;             ///< operators; the block is everything launched between them
  std::optional<Row> softmax;  ///< with the score matrix as its input
};

/// Finds bmm ... softmax ... bmm on one thread, and the math fallback of SDPA.
class BlockFinder {
 public:
  explicit BlockFinder(const Signals& signals)
      : table_(signals.table),
        reader_(signals.table),
        part_(signals.table.strings.size(), kUnjudged) {}

  void begin_thread() {
    reset();
    math_end_ns_ = kNoId;
  }
  void visit(Row op) {
    if (table_.ts_ns[op] < math_end_ns_) return;  // inside the math fallback
    switch (part(op)) {
      case Part::kOther:
        return;
      case Part::kBreak:
        return reset();
      case Part::kMath:
        blocks_.push_back({op, op, std::nullopt});
        note_mask(op);
        math_end_ns_ = table_.end_ns(op);
        return reset();
      case Part::kBatchedProduct:
        return visit_product(op);
      case Part::kSoftmax:
        return visit_softmax(op);
    }
  }
  const std::vector<Block>& blocks() const { return blocks_; }
  bool shapes_known() const { return shapes_known_; }
  const std::string& example() const { return example_; }
  /// Dimensions of a mask with which SDPA fell back to separate operators; empty where none did.
  const std::string& mask() const { return mask_; }

 private:
  static constexpr std::uint8_t kUnjudged = 255;

  Part part(Row op) {
    std::uint8_t& part = part_[table_.name[op]];
    if (part == kUnjudged) part = static_cast<std::uint8_t>(part_of(table_.name_of(op)));
    return static_cast<Part>(part);
  }
  void reset() { first_ = softmax_ = kNoRow; }

  void note_mask(Row op) {
    constexpr std::size_t kMaskInput = 3;  // query, key, value, attn_mask
    const std::vector<TensorInfo> inputs = reader_.inputs(op);
    if (!mask_.empty() || inputs.size() <= kMaskInput) return;
    for (const std::int64_t size : inputs[kMaskInput].dims) {
      mask_ += (mask_.empty() ? "" : " by ") + std::to_string(size);
    }
  }

  void visit_product(Row op) {
    if (softmax_ != kNoRow) {
      blocks_.push_back({first_, op, softmax_});
      reset();
    } else if (first_ == kNoRow) {
      first_ = op;
    }
  }
  void visit_softmax(Row op) {
    if (first_ == kNoRow) return;
    if (is_score_matrix(op)) {
      softmax_ = op;
    } else {
      reset();
    }
  }
  bool is_score_matrix(Row softmax) {
    const std::vector<TensorInfo> inputs = reader_.inputs(softmax);
    if (inputs.empty()) return true;  // shapes not recorded: the order of operators has to do
    shapes_known_ = true;
    const auto& dims = inputs.front().dims;
    if (dims.size() < 2) return false;
    const std::int64_t queries = dims[dims.size() - 2], keys = dims.back();
    if (queries < kMinQueries || keys < kMinKeys) return false;
    if (example_.empty()) {
      example_ = std::to_string(queries) + " by " + std::to_string(keys) + " scores";
    }
    return true;
  }

  const EventTable& table_;
  InputReader reader_;
  std::vector<std::uint8_t> part_;
  std::vector<Block> blocks_;
  std::string example_, mask_;
  Row first_ = kNoRow, softmax_ = kNoRow;
  std::int64_t math_end_ns_ = kNoId;
  bool shapes_known_ = false;
};

void visit_operators(const Signals& signals, BlockFinder& finder) {
  const EventTree& tree = signals.tree;
  for (std::size_t t = 0; t + 1 < tree.host_offsets.size(); ++t) {
    finder.begin_thread();
    for (std::uint32_t i = tree.host_offsets[t]; i < tree.host_offsets[t + 1]; ++i) {
      poll_interrupt();
      const Row r = tree.host_rows[i];
      if (signals.table.kind[r] == EventKind::kCpuOp) finder.visit(r);
    }
  }
}

/// Host rows between the first and the last operator of each block.
std::vector<std::uint8_t> rows_in_blocks(const Signals& signals, const std::vector<Block>& blocks) {
  const EventTree& tree = signals.tree;
  std::vector<std::uint8_t> in_block(signals.table.size(), 0);
  for (const Block& block : blocks) {
    const std::size_t begin = tree.host_position[block.first];
    const std::size_t end =
        tree.host_position[block.last] + 1 + subtree_rows(tree, block.last).size();
    for (std::size_t i = begin; i < end; ++i) in_block[tree.host_rows[i]] = 1;
  }
  return in_block;
}

/// Adds the backward operators whose forward lies in a block, and what they enclose.
void add_backward(const Signals& signals, std::vector<std::uint8_t>& in_block) {
  const EventTree& tree = signals.tree;
  for (Row r = 0; r < signals.table.size(); ++r) {  // parents precede children
    const Row forward = tree.forward[r];
    const Row parent = tree.parent[r];
    if (in_block[r] == 0 && ((forward != kNoRow && in_block[forward] == 1) ||
                             (parent != kNoRow && in_block[parent] == 2))) {
      in_block[r] = 2;
    }
  }
}

bool has_products(const Signals& signals) {
  const LazyNames product(signals.table, [](std::string_view name) {
    return name == "aten::bmm" || name == "aten::baddbmm" || name == "aten::_softmax";
  });
  return std::any_of(signals.tree.host_rows.begin(), signals.tree.host_rows.end(),
                     [&](Row r) { return product(r); });
}

Finding detect(const Signals& signals) {
  if (!signals.has_gpu) return abstain({"GPU events"});
  if (!signals.has_operators) return abstain({"host operators"});
  BlockFinder finder(signals);
  visit_operators(signals, finder);
  if (finder.blocks().empty())
    return absent(has_products(signals) ? 0.8 : 0.9);  // operators of its own
  if (!signals.links_operators()) return abstain({missing_link(signals)});

  std::vector<std::uint8_t> in_block = rows_in_blocks(signals, finder.blocks());
  add_backward(signals, in_block);
  Draft draft(kSaving);
  for (Row r : signals.tree.gpu_rows) {
    const Row launch = signals.tree.launch[r];
    if (launch != kNoRow && in_block[launch] != 0) {
      draft.cost.push_back(interval_of(signals.table, r));
    }
  }
  for (const Block& block : finder.blocks())
    draft.evidence.push_back(block.softmax.value_or(block.first));
  if (!finder.shapes_known()) {
    draft.missing_signals.emplace_back("input shapes (record_shapes=True)");
    draft.confidence = 0.6;  // decoding has the same operators
  }
  draft.count("blocks", finder.blocks().size());
  if (!finder.example().empty()) draft.text("example", finder.example());
  if (!finder.mask().empty()) draft.text("mask", finder.mask());
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule attention_not_fused{
    .type = "attention_not_fused", .saving = kSaving, .detect = detect};
}

}  // namespace traceap
