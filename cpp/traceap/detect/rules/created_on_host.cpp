// Tensors are filled on the host and then copied to the device, which could have filled them
// itself: torch.zeros(n).cuda(). After torch's own pattern ExtraCUDACopy.
//
// Cost: the copies where no kernel covers them, and idle time from the start of the filling to the
// next GPU event behind the copy.

#include <algorithm>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/sums.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/operators.hpp"
#include "traceap/detect/queries/small_uploads.hpp"
#include "traceap/detect/queries/stalls.hpp"
#include "traceap/detect/rules.hpp"

namespace traceap {
namespace {

/// The device fills memory ten times as fast as a link carries it, but the wait may have other
/// reasons.
constexpr SavingShares kSaving{.basis = SavingBasis::kIdleOrExposed, .low = 0.2, .best = 0.8};

/// Operators that make their values from no other tensor, or of one that such an operator made.
bool is_filling_operator(std::string_view name) {
  return is_any(name, {"aten::zeros",      "aten::ones",      "aten::full",       "aten::rand",
                       "aten::randn",      "aten::randint",   "aten::randperm",   "aten::arange",
                       "aten::linspace",   "aten::eye",       "aten::zeros_like", "aten::ones_like",
                       "aten::full_like",  "aten::rand_like", "aten::randn_like", "aten::fill_",
                       "aten::zero_",      "aten::normal_",   "aten::uniform_",   "aten::random_",
                       "aten::bernoulli_", "aten::tril",      "aten::triu",       "aten::tril_",
                       "aten::triu_"});
}
bool is_moving_operator(std::string_view name) {
  return is_any(name, {"aten::to", "aten::_to_copy", "aten::copy_", "aten::cuda"});
}

struct CreatedCopy {
  Row filling, moving;
  const Copy* copy;
};

class CreationFinder {
 public:
  explicit CreationFinder(const Signals& signals)
      : signals_(signals),
        filling_(signals.table, is_filling_operator),
        moving_(signals.table, is_moving_operator),
        constants_(find_small_uploads(signals).copies) {}

  std::vector<CreatedCopy> find() const {
    std::vector<CreatedCopy> found;
    for (const std::vector<Row>& operators : outermost_operators(signals_)) {
      for (std::size_t i = 1; i < operators.size(); ++i) {
        poll_interrupt();
        if (!filling_(operators[i - 1]) || !moving_(operators[i])) continue;
        if (!gpu_rows_inside(signals_, operators[i - 1]).empty()) continue;  // on the device
        const Copy* copy = upload_of(operators[i]);
        if (copy != nullptr) found.push_back({operators[i - 1], operators[i], copy});
      }
    }
    return found;
  }

 private:
  /// The one upload of the operator, which may convert what it uploaded; null if there is none, or
  /// hundreds like it are constants.
  const Copy* upload_of(Row moving) const {
    const Copy* upload = nullptr;
    for (Row r : gpu_rows_inside(signals_, moving)) {
      if (signals_.tree.copy_direction[r] != CopyDirection::kHostToDevice) continue;
      if (upload != nullptr) return nullptr;
      upload = copy_of(r);
    }
    // Both are by start, so that the constants' places in the list of copies ascend.
    return std::binary_search(constants_.begin(), constants_.end(), upload) ? nullptr : upload;
  }
  const Copy* copy_of(Row gpu_row) const {
    const auto& copies = signals_.copies;
    const auto it =
        std::lower_bound(copies.begin(), copies.end(), gpu_row,
                         [&](const Copy& copy, Row r) { return is_before(copy.row, r); });
    return it == copies.end() || it->row != gpu_row ? nullptr : &*it;
  }
  bool is_before(Row a, Row b) const {
    const auto& ts = signals_.table.ts_ns;
    return ts[a] != ts[b] ? ts[a] < ts[b] : a < b;
  }

  const Signals& signals_;
  LazyNames<> filling_, moving_;
  std::vector<const Copy*> constants_;
};

Finding detect(const Signals& signals) {
  if (!signals.has_gpu) return abstain({"GPU events"});
  if (!signals.has_operators) return abstain({"host operators"});
  const std::vector<CreatedCopy> found = CreationFinder(signals).find();
  if (found.empty()) {
    const bool seen = signals.links_operators() || signals.copies.empty();
    return seen ? absent() : abstain({missing_link(signals)});
  }
  Draft draft(kSaving);
  std::vector<Interval> copied, waiting, calls;
  std::vector<Row> filling;
  std::int64_t bytes = 0;
  for (const CreatedCopy& created : found) {
    copied.push_back(interval_of(signals.table, created.copy->row));
    waiting.push_back(signals.on_gpu_clock(interval_of(signals.table, created.filling)));
    waiting.push_back(stall_window(signals, created.copy->host));
    calls.push_back(interval_of(signals.table, created.filling));
    calls.push_back(created.copy->host);
    draft.evidence.push_back(created.moving);
    filling.push_back(created.filling);
    add_to(bytes, created.copy->bytes.value_or(0));
  }
  draft.cost = set_union(set_difference(make_union(std::move(copied)), signals.gpu.compute),
                         unexplained_idle_inside(signals, std::move(waiting)));
  draft.cost = with_lost_lead(signals, std::move(draft.cost), std::move(calls));
  draft.confidence = 0.7;  // that the tensor filled is the tensor copied, only their order tells
  draft.count("copies", found.size());
  if (bytes > 0) draft.bytes("bytes", bytes);
  draft.text("operations", most_frequent_names(signals.table, filling, 2));
  return finish_finding(signals, std::move(draft));
}

}  // namespace

namespace rules {
extern constexpr Rule created_on_host{
    .type = "created_on_host", .claim = Claim::kSpecific, .saving = kSaving, .detect = detect};
}

}  // namespace traceap
