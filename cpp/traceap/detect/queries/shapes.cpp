#include "traceap/detect/queries/shapes.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

namespace traceap {
namespace {

/// A shape has a handful of dimensions and an operator a handful of inputs; what is larger is not a
/// shape and is not worth reading.
constexpr std::size_t kMaxLists = 256;
constexpr std::size_t kMaxListLength = 64;

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
