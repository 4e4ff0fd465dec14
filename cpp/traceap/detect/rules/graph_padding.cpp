// A serving engine pads the batch up to the size for which a CUDA graph was captured, and the GPU
// works on rows that belong to no request.
//
// The annotation tells the size of the graph (ATOM), or the grids of kernels that launch a block
// for each row. Cost: where graphs of two sizes or more ran, what each additional row takes by a
// fit through them, times the padded rows; else the share of the padded rows, which is the most
// that it can be, as memory bounds small batches.

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/statistics.hpp"
#include "traceap/base/text.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/rules.hpp"
#include "traceap/table/int_lists.hpp"

namespace traceap {
namespace {

constexpr SavingShares kSaving{.basis = SavingBasis::kCost, .best = 0.5};
/// The same where a fit tells the cost.
constexpr SavingShares kFitted{.basis = SavingBasis::kCost, .low = 0.5, .best = 0.9};
/// Engines capture every eighth size or finer; what that leaves is usual.
constexpr double kMinShare = 0.125;
/// Kernels of different names that have to agree on the rows.
constexpr std::size_t kMinNames = 2;

/// A kernel that launches a block for each row of the batch.
bool is_row_wise(std::string_view name) {
  return contains_any(to_lower(name), {"norm", "rotary", "rope", "silu", "act_and_mul"});
}

/// The blocks of a grid that extends in one direction only; nothing for others.
std::optional<std::int64_t> blocks_in_line(std::string_view grid) {
  struct Dimensions {
    std::vector<std::int64_t> values;
    void open() {}
    void close() {}
    void number(std::optional<std::int64_t> value) { values.push_back(value.value_or(0)); }
  } dimensions;
  walk_int_lists(grid, dimensions);
  const auto& values = dimensions.values;
  if (values.size() != 3 || values[1] != 1 || values[2] != 1) return std::nullopt;
  return values[0];
}

struct Batch {
  std::int64_t rows, graph_rows;
};

class BatchReader {
 public:
  explicit BatchReader(const Signals& signals)
      : signals_(signals),
        grid_(signals.table, "grid"),
        blocks_(signals.table, "blocks per SM"),
        row_wise_(signals.table, is_row_wise) {}

  std::optional<Batch> operator()(const ServedIteration& iteration) const {
    const IterationMark& mark = *iteration.mark;
    if (mark.graph_batch) {
      if (!mark.requests) return std::nullopt;
      return Batch{*mark.requests, *mark.graph_batch};
    }
    const auto rows = mark.decode.tokens ? mark.decode.tokens : mark.requests;
    if (!rows) return std::nullopt;
    const auto graph_rows = rows_by_grids(iteration, *rows);
    return graph_rows ? std::optional(Batch{*rows, *graph_rows}) : std::nullopt;
  }

 private:
  /// The fewest rows, of those that hold the batch, on which kernels of different names agree.
  std::optional<std::int64_t> rows_by_grids(const ServedIteration& iteration,
                                            std::int64_t rows) const {
    std::map<std::int64_t, std::set<StringId>> names;
    for (const Row row : iteration.gpu_rows) {
      if (!row_wise_(row) || signals_.api(signals_.tree.launch[row]) != ApiClass::kGraphLaunch)
        continue;
      // As many blocks as multiprocessors: the kernel takes the whole device, whatever the batch.
      if (blocks_.number(row) == 1.0) continue;
      const auto grid = grid_.json(row);
      const auto blocks = grid ? blocks_in_line(*grid) : std::nullopt;
      if (blocks && *blocks >= rows) names[*blocks].insert(signals_.table.name[row]);
    }
    for (const auto& [blocks, of] : names) {
      if (of.size() >= kMinNames) return blocks;
    }
    return std::nullopt;
  }

  const Signals& signals_;
  ArgReader grid_, blocks_;
  LazyNames<> row_wise_;
};

/// How much longer an iteration takes for each row of its graph, by a line through the medians of
/// the sizes; nothing where all graphs have one size.
std::optional<double> fit_ns_per_row(
    const std::map<std::int64_t, std::vector<std::int64_t>>& spans) {
  if (spans.size() < 2) return std::nullopt;
  double sum_x = 0, sum_y = 0, sum_xx = 0, sum_xy = 0;
  for (auto [rows, lengths] : spans) {
    const auto x = static_cast<double>(rows), y = static_cast<double>(median_of(lengths));
    sum_x += x, sum_y += y, sum_xx += x * x, sum_xy += x * y;
  }
  const auto n = static_cast<double>(spans.size());
  return std::max(0.0, (n * sum_xy - sum_x * sum_y) / (n * sum_xx - sum_x * sum_x));
}

Finding detect(const Signals& signals) {
  if (!signals.served.marked) return absent();
  const BatchReader batch_of(signals);
  std::vector<std::pair<const ServedIteration*, Batch>> padded;
  std::map<std::int64_t, std::vector<std::int64_t>> spans;
  std::int64_t rows = 0, graph_rows = 0;
  for (const ServedIteration& iteration : signals.served.iterations) {
    poll_interrupt();
    if (!iteration.is_decode() || iteration.graphs == 0) continue;
    const auto batch = batch_of(iteration);
    if (!batch || batch->rows <= 0 || batch->graph_rows < batch->rows) continue;
    spans[batch->graph_rows].push_back(iteration.gpu.length_ns());
    rows += batch->rows;
    graph_rows += batch->graph_rows;
    if (batch->graph_rows > batch->rows) padded.emplace_back(&iteration, *batch);
  }
  if (padded.empty()) return absent();
  const double share = 1.0 - static_cast<double>(rows) / static_cast<double>(graph_rows);
  if (share < kMinShare) return absent();
  const std::optional<double> ns_per_row = fit_ns_per_row(spans);
  Draft draft(ns_per_row ? kFitted : kSaving);
  for (const auto& [iteration, batch] : padded) {
    const auto length_ns = static_cast<double>(iteration->gpu.length_ns());
    const auto empty = static_cast<double>(batch.graph_rows - batch.rows);
    double cost_ns = length_ns * empty / static_cast<double>(batch.graph_rows);
    if (ns_per_row) cost_ns = std::min(cost_ns, *ns_per_row * empty);
    draft.cost.push_back({iteration->gpu.end_ns - std::llround(cost_ns), iteration->gpu.end_ns});
    draft.evidence.push_back(evidence_of(signals, *iteration));
    draft.evidence_weights.push_back(std::llround(cost_ns));
  }
  draft.confidence = ns_per_row ? 0.9 : 0.6;
  const Batch& first = padded.front().second;
  draft.count("iterations", padded.size());
  draft.share("padded rows", share);
  draft.count("batch", first.rows);
  draft.count("graph", first.graph_rows);
  if (ns_per_row) draft.duration("a row", std::llround(*ns_per_row));
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule graph_padding{
    .type = "graph_padding", .subject = Subject::kServing, .saving = kSaving, .detect = detect};
}

}  // namespace traceap
