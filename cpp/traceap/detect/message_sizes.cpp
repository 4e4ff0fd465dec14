// How many bytes a collective moves, from whatever event of a trace says so.

#include <algorithm>
#include <string>

#include "traceap/detect/collectives.hpp"

namespace traceap {
namespace {

struct ElementSize {
  std::string_view dtype;
  std::int64_t bytes;
};
/// Spellings of c10::ScalarType as torch writes them into "dtype".
constexpr ElementSize kElementSizes[] = {
    {"Double", 8}, {"Long", 8}, {"ComplexFloat", 8}, {"Float", 4},  {"Int", 4},
    {"UInt32", 4}, {"Half", 2}, {"BFloat16", 2},     {"Short", 2},  {"UInt16", 2},
    {"Byte", 1},   {"Char", 1}, {"Bool", 1},         {"UInt64", 8}, {"ComplexDouble", 16},
};

std::optional<std::int64_t> element_bytes(std::string_view dtype) {
  for (const ElementSize& size : kElementSizes) {
    if (size.dtype == dtype) return size.bytes;
  }
  if (dtype.substr(0, 6) == "Float8") return 1;
  return std::nullopt;
}

/// An absurd number of elements is no size; nothing in a trace is trusted.
constexpr std::int64_t kMaxElements = std::int64_t{1} << 48;

/// Elements of the largest shape in "[[8, 1024], [], [[4], [4]]]"; 0 if there is none.
std::int64_t largest_shape(std::string_view dims) {
  std::int64_t largest = 0, product = 1, number = 0;
  bool in_number = false, has_number = false;
  for (char c : dims) {
    if (c >= '0' && c <= '9') {
      number = std::min(number * 10 + (c - '0'), kMaxElements);
      in_number = true;
      continue;
    }
    if (in_number) {
      product = number == 0 || product > kMaxElements / number ? kMaxElements : product * number;
      if (number == 0) product = 0;
      has_number = true;
    }
    number = 0;
    in_number = false;
    if (c == ']' && has_number) largest = std::max(largest, product);
    if (c == '[' || c == ']') {
      product = 1;
      has_number = false;
    }
  }
  return largest;
}

/// Bytes of the first tensor type in an "Input type" list; these are C++ spellings.
std::optional<std::int64_t> first_type_bytes(std::string_view types) {
  constexpr ElementSize kTypes[] = {
      {"\"float\"", 4},       {"\"double\"", 8},   {"\"c10::Half\"", 2}, {"\"c10::BFloat16\"", 2},
      {"\"int\"", 4},         {"\"long int\"", 8}, {"\"long\"", 8},      {"\"unsigned char\"", 1},
      {"\"signed char\"", 1}, {"\"bool\"", 1},
  };
  std::size_t first = std::string_view::npos;
  std::optional<std::int64_t> bytes;
  for (const ElementSize& type : kTypes) {
    const std::size_t place = types.find(type.dtype);
    if (place < first) {
      first = place;
      bytes = type.bytes;
    }
  }
  return bytes;
}

/// Message size of a row, from its own arguments.
class MessageReader {
 public:
  explicit MessageReader(const EventTable& table)
      : in_(table, "In msg nelems"),
        out_(table, "Out msg nelems"),
        dtype_(table, "dtype"),
        dims_(table, "Input Dims"),
        types_(table, "Input type") {}

  std::optional<std::int64_t> bytes(Row row) const {
    if (!in_.has(row) && !out_.has(row)) return shape_bytes(row);
    const auto dtype = dtype_.text(row);
    const auto element = dtype ? element_bytes(*dtype) : std::nullopt;
    const std::int64_t count =
        std::max(in_.integer(row).value_or(0), out_.integer(row).value_or(0));
    if (!element || count < 0 || count > kMaxElements) return std::nullopt;
    return count * *element;
  }

 private:
  /// Older traces, and collectives that are not NCCL's, only have the operator's inputs.
  std::optional<std::int64_t> shape_bytes(Row row) const {
    if (!dims_.has(row) || !types_.has(row)) return std::nullopt;
    const auto dims = dims_.json(row);
    const auto types = types_.json(row);
    const auto element = types ? first_type_bytes(*types) : std::nullopt;
    const std::int64_t count = dims ? largest_shape(*dims) : 0;
    if (!element || count <= 0 || count >= kMaxElements) return std::nullopt;
    return count * *element;
  }

  ArgReader in_, out_, dtype_, dims_, types_;
};

/// Of the kernel itself, or of the nearest host event above its launch that tells.
std::optional<std::int64_t> message_bytes(const Signals& signals, const MessageReader& reader,
                                          Row kernel) {
  constexpr int kMaxLevels = 8;  // c10d puts record_param_comms at most a few levels up
  if (auto bytes = reader.bytes(kernel)) return bytes;
  Row host = signals.tree.launch[kernel];
  for (int level = 0; level < kMaxLevels && host != kNoRow; ++level) {
    if (auto bytes = reader.bytes(host)) return bytes;
    host = signals.tree.parent[host];
  }
  return std::nullopt;
}

}  // namespace

std::vector<Collective> build_collectives(const Signals& signals) {
  const MessageReader reader(signals.table);
  std::vector<Collective> collectives;
  for (Row r : signals.tree.gpu_rows) {
    if (signals.tree.gpu_class[r] != GpuClass::kCommunication) continue;
    collectives.push_back({r, message_bytes(signals, reader, r)});
  }
  return collectives;
}

}  // namespace traceap
