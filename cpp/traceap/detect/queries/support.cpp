#include "traceap/detect/queries/support.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>
#include <unordered_map>

namespace traceap {
namespace {

/// A step with this number in its name (ProfilerStep#2) follows two others of the same program, so
/// that compilation, autotuning and the growth of the memory pool lie behind it.
constexpr std::int64_t kFirstWarmStepNumber = 2;
/// A loop shows all its kernels in the first round, a program that runs once shows new ones to the
/// end. When this share of the names has been seen ...
constexpr double kSeenNames = 0.9;
/// ... and this share of the kernels is still to come, it is a loop, and warm from then on.
constexpr double kKernelsToCome = 0.5;
/// Fewer kernels than this tell nothing.
constexpr std::size_t kMinKernels = 50;
/// A shape has a handful of dimensions and an operator a handful of inputs; what is larger is not a
/// shape and is not worth reading.
constexpr std::size_t kMaxLists = 256;
constexpr std::size_t kMaxListLength = 64;

/// N of "ProfilerStep#N".
std::optional<std::int64_t> profiler_step_number(std::string_view name) {
  constexpr std::string_view kPrefix = "ProfilerStep#";
  if (name.substr(0, kPrefix.size()) != kPrefix) return std::nullopt;
  std::int64_t number = 0;
  const char* begin = name.data() + kPrefix.size();
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return number;
}

WarmUp warm_up_by_repetition(const Signals& signals) {
  const auto& rows = signals.tree.linked_gpu_rows;
  if (rows.size() < kMinKernels) return {};
  std::vector<std::uint8_t> seen(signals.table.strings.size(), 0);
  std::vector<std::size_t> first_uses;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::uint8_t& name_seen = seen[signals.table.name[rows[i]]];
    if (name_seen == 0) first_uses.push_back(i);
    name_seen = 1;
  }
  const auto last =
      static_cast<std::size_t>(std::ceil(kSeenNames * static_cast<double>(first_uses.size())) - 1);
  const std::size_t at = first_uses[std::min(last, first_uses.size() - 1)];
  const auto to_come = static_cast<double>(rows.size() - at);
  if (to_come < kKernelsToCome * static_cast<double>(rows.size())) return {};
  const Row launch = signals.tree.launch[rows[at]];
  if (launch == kNoRow) return {};
  return {true, false, signals.table.end_ns(launch)};
}

/// Reads the integer at `at`, if it is one that fits; returns the place behind its digits.
std::size_t parse_number(std::string_view json, std::size_t at, std::vector<std::int64_t>& out) {
  const std::size_t end = std::min(json.find_first_not_of("0123456789", at + 1), json.size());
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(json.data() + at, json.data() + end, value);
  const bool whole = error == std::errc() && stop == json.data() + end;
  if (whole && out.size() < kMaxListLength) out.push_back(value);
  return end;
}

/// Reads one flat list of integers that begins behind '['; returns the place behind its ']'.
std::size_t parse_list(std::string_view json, std::size_t at, std::vector<std::int64_t>& out) {
  int depth = 1;
  bool flat = true;
  while (at < json.size() && depth > 0) {
    const char c = json[at];
    if (c == '[') {
      ++depth;
      flat = false;
    } else if (c == ']') {
      --depth;
    } else if ((c >= '0' && c <= '9') || c == '-') {
      at = parse_number(json, at, out);
      continue;
    }
    ++at;
  }
  if (!flat) out.clear();  // a list of tensors: no single shape
  return at;
}

/// ["float", "", "Scalar"] to its strings; no escapes occur in type names.
std::vector<std::string> parse_strings(std::string_view json) {
  std::vector<std::string> strings;
  std::size_t at = 0;
  while (strings.size() < kMaxLists) {
    const std::size_t open = json.find('"', at);
    if (open == std::string_view::npos) break;
    const std::size_t close = json.find('"', open + 1);
    if (close == std::string_view::npos) break;
    strings.emplace_back(json.substr(open + 1, close - open - 1));
    at = close + 1;
  }
  return strings;
}

}  // namespace

Interval stall_window(const Signals& signals, Interval host_call) {
  const Interval call = signals.on_gpu_clock(host_call);
  const Row next = first_row_from(signals.table, signals.tree.gpu_rows, call.end_ns);
  std::int64_t end_ns = add_saturated(call.end_ns, kRefillReachNs);
  if (next != kNoRow) end_ns = std::min(end_ns, signals.table.ts_ns[next]);
  return {call.start_ns, std::max(end_ns, call.end_ns)};
}

IntervalSet idle_inside(const Signals& signals, std::vector<Interval> intervals) {
  return set_intersection(make_union(std::move(intervals)), signals.gpu_idle);
}

IntervalSet unexplained_idle_inside(const Signals& signals, std::vector<Interval> intervals) {
  std::vector<Interval> elsewhere;
  for (const IdleInterval& idle : signals.idle.intervals) {
    if (idle.cause == IdleCause::kDataLoading || idle.cause == IdleCause::kCompilation ||
        idle.cause == IdleCause::kProfiler) {
      elsewhere.push_back(idle.interval);
    }
  }
  return set_difference(idle_inside(signals, std::move(intervals)),
                        make_union(std::move(elsewhere)));
}

void bound_gpu_saving(const Signals& signals, Finding& finding, double best_share,
                      double high_share) {
  const auto cost = static_cast<double>(finding.cost_ns);
  const auto profiled = static_cast<double>(std::max<std::int64_t>(signals.profiled_ns(), 1));
  const double idle_share = static_cast<double>(total_length_ns(signals.gpu_idle)) / profiled;
  const double busy_share = std::clamp(1.0 - idle_share, 0.0, 1.0);
  finding.saving_low_ns = 0;
  finding.saving_best_ns = static_cast<std::int64_t>(cost * best_share * busy_share);
  finding.saving_high_ns = static_cast<std::int64_t>(cost * high_share);
}

WarmUp find_warm_up(const Signals& signals) {
  const auto& steps = signals.tree.steps;
  if (!steps.empty() && !signals.tree.steps_inferred) {
    const auto number = profiler_step_number(steps.front().name);
    if (number && *number >= kFirstWarmStepNumber) return {true, true, steps.front().start_ns};
  }
  if (steps.size() >= 2) return {true, true, steps[1].start_ns};
  return warm_up_by_repetition(signals);
}

std::vector<std::uint8_t> launching_tracks(const Signals& signals) {
  std::vector<std::uint8_t> launching(signals.table.tracks.size(), 0);
  for (Row r : signals.api_rows) {
    const ApiClass api = signals.api(r);
    if (is_launch(api) || api == ApiClass::kMemcpy || api == ApiClass::kMemset) {
      launching[signals.table.track[r]] = 1;
    }
  }
  return launching;
}

std::vector<std::uint8_t> rows_inside_operators(const Signals& signals) {
  const EventTable& table = signals.table;
  const LazyNames is_operator(table, is_operator_name);
  std::vector<std::uint8_t> inside(table.size(), 0);
  for (Row r = 0; r < table.size(); ++r) {  // parents precede children
    const Row parent = signals.tree.parent[r];
    if (parent == kNoRow) continue;
    inside[r] =
        inside[parent] != 0 || (table.kind[parent] == EventKind::kCpuOp && is_operator(parent));
  }
  return inside;
}

bool has_backward(const Signals& signals) {
  const LazyNames backward(signals.table, [](std::string_view name) {
    return contains(name, "autograd::engine::evaluate_function") ||
           (contains(name, "Backward") && !contains(name, "aten::"));
  });
  return std::any_of(signals.tree.host_rows.begin(), signals.tree.host_rows.end(), [&](Row r) {
    return signals.table.kind[r] == EventKind::kCpuOp && backward(r);
  });
}

std::vector<Row> range_rows(const std::vector<Row>& outer) {
  std::vector<Row> rows;
  for (Row r = 0; r < outer.size(); ++r) {
    if (outer[r] == r) rows.push_back(r);
  }
  return rows;
}

std::vector<RangeLaunches> launches_by_range(const Signals& signals,
                                             const std::vector<Row>& outer) {
  std::vector<RangeLaunches> ranges;
  std::vector<std::uint32_t> place(outer.size(), 0);
  for (Row r : range_rows(outer)) {
    place[r] = static_cast<std::uint32_t>(ranges.size());
    ranges.push_back({r, {}});
  }
  for (Row g : signals.tree.gpu_rows) {
    const Row launch = signals.tree.launch[g];
    if (launch == kNoRow || outer[launch] == kNoRow) continue;
    ranges[place[outer[launch]]].gpu_rows.push_back(g);
  }
  return ranges;
}

Interval extent_of(const EventTable& table, const std::vector<Row>& gpu_rows) {
  if (gpu_rows.empty()) return {0, 0};
  Interval extent = interval_of(table, gpu_rows.front());
  for (Row r : gpu_rows) {
    extent.start_ns = std::min(extent.start_ns, table.ts_ns[r]);
    extent.end_ns = std::max(extent.end_ns, table.end_ns(r));
  }
  return extent;
}

void add_per_step_fact(const Signals& signals, Draft& draft, std::string name, std::size_t count) {
  const std::size_t steps = signals.tree.steps.size();
  if (steps == 0) return;
  char text[32];
  const double per_step = static_cast<double>(count) / static_cast<double>(steps);
  std::snprintf(text, sizeof text, "%.*f", per_step < 10 ? 1 : 0, per_step);
  draft.fact(std::move(name), text);
}

std::string most_frequent_names(const EventTable& table, const std::vector<Row>& rows,
                                std::size_t top) {
  std::unordered_map<StringId, std::size_t> counts;
  for (Row r : rows) ++counts[table.name[r]];
  std::vector<std::pair<StringId, std::size_t>> ranked(counts.begin(), counts.end());
  std::sort(ranked.begin(), ranked.end(), [&](const auto& a, const auto& b) {
    if (a.second != b.second) return a.second > b.second;
    return table.strings[a.first] < table.strings[b.first];
  });
  std::string text;
  for (std::size_t i = 0; i < std::min(top, ranked.size()); ++i) {
    if (i > 0) text += ", ";
    text += table.strings[ranked[i].first].substr(0, 80);
  }
  return text;
}

std::string format_bytes(std::int64_t bytes) {
  char text[48];
  const auto value = static_cast<double>(bytes);
  if (bytes < 10'000) {
    std::snprintf(text, sizeof text, "%lld B", static_cast<long long>(bytes));
  } else if (bytes < 1'000'000) {
    std::snprintf(text, sizeof text, "%.1f kB", value * 1e-3);
  } else if (bytes < 1'000'000'000) {
    std::snprintf(text, sizeof text, "%.1f MB", value * 1e-6);
  } else {
    std::snprintf(text, sizeof text, "%.1f GB", value * 1e-9);
  }
  return text;
}

std::string format_us(std::int64_t ns) {
  char text[48];
  if (ns < 100) return "under 0.1 µs";  // older traces cut times to whole microseconds
  std::snprintf(text, sizeof text, "%.1f µs", static_cast<double>(ns) * 1e-3);
  return text;
}

std::int64_t median_of(std::vector<std::int64_t>& values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

InputReader::InputReader(const EventTable& table)
    : dims_(table, "Input Dims"),
      old_dims_(table, "Input dims"),  // PyTorch before 1.13
      types_(table, "Input type"),
      strides_(table, "Input Strides") {}

std::vector<std::string> InputReader::types(Row op) const {
  const auto json = types_.json(op);
  return json ? parse_strings(*json) : std::vector<std::string>{};
}

std::vector<TensorInfo> InputReader::inputs(Row op) const {
  auto dims_json = dims_.json(op);
  if (!dims_json) dims_json = old_dims_.json(op);
  if (!dims_json) return {};
  std::vector<std::vector<std::int64_t>> dims = parse_int_lists(*dims_json);
  const std::vector<std::string> names = types(op);
  const auto strides_json = strides_.json(op);
  std::vector<std::vector<std::int64_t>> strides;
  if (strides_json) strides = parse_int_lists(*strides_json);
  std::vector<TensorInfo> inputs(dims.size());
  for (std::size_t i = 0; i < dims.size(); ++i) {
    inputs[i].dims = std::move(dims[i]);
    if (i < names.size()) inputs[i].type = names[i];
    if (i < strides.size() && strides[i].size() == inputs[i].dims.size()) {
      inputs[i].strides = std::move(strides[i]);
    }
  }
  return inputs;
}

bool is_half_type(std::string_view type) {
  return type == "c10::Half" || type == "c10::BFloat16" || type == "at::Half" ||
         type == "at::BFloat16";
}

std::vector<std::vector<std::int64_t>> parse_int_lists(std::string_view json) {
  std::vector<std::vector<std::int64_t>> lists;
  std::size_t at = json.find('[');
  if (at == std::string_view::npos) return lists;
  for (++at; at < json.size() && lists.size() < kMaxLists;) {
    if (json[at] == ']') break;
    if (json[at] != '[') {
      ++at;
      continue;
    }
    lists.emplace_back();
    at = parse_list(json, at + 1, lists.back());
  }
  return lists;
}

}  // namespace traceap
