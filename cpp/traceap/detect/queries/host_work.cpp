#include "traceap/detect/queries/host_work.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/text.hpp"
#include "traceap/detect/queries/names.hpp"
#include "traceap/detect/queries/ranges.hpp"
#include "traceap/detect/queries/shapes.hpp"

namespace traceap {
namespace {

constexpr std::string_view kAten = "aten::";

bool is_fetch(std::string_view name) { return contains(name, "enumerate(DataLoader)"); }

/// Operators whose copy gives the same values another type, layout or place.
bool is_copying(std::string_view name) {
  return is_any(name,
                {"aten::to", "aten::_to_copy", "aten::copy_", "aten::type_as", "aten::contiguous",
                 "aten::clone", "aten::reshape", "aten::repeat", "aten::cat", "aten::stack"});
}
bool is_joining(std::string_view name) { return is_any(name, {"aten::cat", "aten::stack"}); }

bool is_floating(std::string_view type) {
  return type == "float" || type == "double" || is_half_type(type) || contains(type, "Float8");
}

/// Elements of images: four or five dimensions, of which none that the layout orders is 1.
bool has_layout(const TensorInfo& tensor) {
  const std::size_t rank = tensor.dims.size();
  if ((rank != 4 && rank != 5) || tensor.strides.size() != rank) return false;
  std::int64_t spatial = 1;
  for (std::size_t i = 2; i < rank; ++i) spatial = std::max(spatial, tensor.dims[i]);
  return tensor.dims[1] > 1 && spatial > 1;
}
/// NHWC: channels lie beside each other, and rows of pixels apart.
bool is_channels_last(const TensorInfo& tensor) {
  return tensor.strides[1] == 1 && tensor.strides.back() >= tensor.dims[1];
}
bool is_channels_first(const TensorInfo& tensor) {
  return tensor.strides.back() == 1 && tensor.strides[1] > 1;
}
bool turns_layout(const TensorInfo& to, const TensorInfo& from) {
  if (!has_layout(to) || !has_layout(from)) return false;
  return (is_channels_last(to) && is_channels_first(from)) ||
         (is_channels_first(to) && is_channels_last(from));
}

class CopyJudge {
 public:
  explicit CopyJudge(const Signals& signals)
      : reader_(signals.table),
        copy_(signals.table, [](std::string_view name) { return name == "aten::copy_"; }),
        joining_(signals.table, is_joining) {}

  bool is_copy(Row row) const { return copy_(row); }

  /// The purpose of an aten::copy_(target, source); none where it is no copy of this kind.
  std::optional<HostCopy> judge(Row copy, Row called) const {
    const std::vector<TensorInfo> inputs = reader_.inputs(copy);
    if (inputs.size() < 2 || inputs[0].type.empty() || inputs[1].type.empty()) {
      return HostCopy{called, CopyPurpose::kUnknown, {}, {}};
    }
    const TensorInfo& to = inputs[0];
    const TensorInfo& from = inputs[1];
    if (to.type != from.type) {
      if (to.dims.empty() && from.dims.empty()) return std::nullopt;  // a number of Python's
      if (!is_floating(to.type) || !is_floating(from.type)) return std::nullopt;
      return HostCopy{called, CopyPurpose::kCast, from.type, to.type};
    }
    if (turns_layout(to, from)) return HostCopy{called, CopyPurpose::kLayout, {}, {}};
    if (copy_(called)) return std::nullopt;
    return HostCopy{called, CopyPurpose::kMove, {}, {}};
  }
  /// aten::cat and its kin write their result themselves.
  std::optional<HostCopy> judge_joining(Row row) const {
    if (!joining_(row)) return std::nullopt;
    return HostCopy{row, CopyPurpose::kMove, {}, {}};
  }

 private:
  InputReader reader_;
  LazyNames<> copy_, joining_;
};

}  // namespace

bool is_pointwise_operator(std::string_view name) {
  if (!name.starts_with(kAten)) return false;
  name.remove_prefix(kAten.size());
  if (name.ends_with('_')) name.remove_suffix(1);
  return is_any(name, {"add",   "sub",  "mul",   "div",     "addcmul", "addcdiv",    "lerp",
                       "sqrt",  "neg",  "pow",   "copy",    "zero",    "fill",       "maximum",
                       "sign",  "abs",  "clamp", "minimum", "exp",     "reciprocal", "rsqrt",
                       "where", "rsub", "clone", "square",  "log",     "clamp_min",  "clamp_max"});
}

bool is_backward_node(std::string_view name) {
  return contains(name, "autograd::engine::evaluate_function");
}

std::vector<std::uint8_t> awaited_tracks(const Signals& signals) {
  const EventTable& table = signals.table;
  const bool marked = !signals.tree.steps.empty() && !signals.tree.steps_inferred;
  if (!marked || signals.tree.main_track == kNoTrack) {
    return std::vector<std::uint8_t>(table.tracks.size(), 1);
  }
  std::vector<std::uint8_t> awaited(table.tracks.size(), 0);
  awaited[signals.tree.main_track] = 1;
  const LazyNames backward(table, is_backward_node);
  for (const Row r : signals.tree.host_rows) {
    poll_interrupt();
    if (backward(r)) awaited[table.track[r]] = 1;
  }
  return awaited;
}

std::vector<Row> operators_called_inside(const Signals& signals, Row range) {
  const EventTable& table = signals.table;
  const LazyNames is_operator(table, is_operator_name);
  std::vector<Row> called;
  for (const Row r : subtree_rows(signals.tree, range)) {  // a pre-order: parents come first
    poll_interrupt();
    if (!called.empty() && is_inside(signals.tree, r, called.back())) continue;
    if (table.kind[r] == EventKind::kCpuOp && is_operator(r)) called.push_back(r);
  }
  return called;
}

std::vector<HostCopy> copies_on_host(const Signals& signals) {
  const EventTable& table = signals.table;
  const std::vector<std::uint8_t> awaited = awaited_tracks(signals);
  const LazyNames fetch(table, is_fetch), copying(table, is_copying);
  const std::vector<Row> fetches =
      outermost_ranges(signals, [&](Row r) { return !is_api_call(table.kind[r]) && fetch(r); });
  const std::vector<Row> outer = outermost_ranges(
      signals, [&](Row r) { return table.kind[r] == EventKind::kCpuOp && copying(r); });
  const CopyJudge judge(signals);
  std::vector<HostCopy> copies;
  for (const Row r : signals.tree.host_rows) {
    poll_interrupt();
    const Row called = outer[r];
    if (called == kNoRow || fetches[r] != kNoRow || awaited[table.track[r]] == 0) continue;
    if (!copies.empty() && copies.back().called == called) continue;  // its first copy tells
    const auto copy = judge.is_copy(r) ? judge.judge(r, called)
                      : called == r    ? judge.judge_joining(r)
                                       : std::nullopt;
    if (copy) copies.push_back(*copy);
  }
  return copies;
}

std::vector<Interval> intervals_of(const Signals& signals, const std::vector<Row>& rows) {
  std::vector<Interval> intervals;
  for (const Row r : rows) intervals.push_back(signals.on_gpu_clock(interval_of(signals.table, r)));
  return intervals;
}

std::int64_t host_cost_ns(const Signals& signals, const std::vector<Row>& rows) {
  return total_length_ns(set_clip(make_union(intervals_of(signals, rows)), signals.profiled));
}

}  // namespace traceap
