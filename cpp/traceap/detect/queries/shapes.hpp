#pragma once
// Shapes and number types of an operator's inputs, as recorded with record_shapes=True.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "traceap/table/event_table.hpp"

namespace traceap {

struct TensorInfo {
  std::vector<std::int64_t> dims;
  std::vector<std::int64_t> strides;  ///< empty where not recorded
  std::string type;                   ///< "float", "c10::Half", "c10::BFloat16", ...
};
class InputReader {
 public:
  explicit InputReader(const EventTable& table);
  /// One entry per input; empty if shapes were not recorded for this row.
  std::vector<TensorInfo> inputs(Row op) const;
  /// Number types only; empty if not recorded.
  std::vector<std::string> types(Row op) const;

 private:
  ArgReader dims_, old_dims_, types_, strides_;
};
bool is_half_type(std::string_view type);  ///< fp16 or bf16
/// [[2, 3], [], [4]] to lists of integers; anything else in a place becomes an empty list.
std::vector<std::vector<std::int64_t>> parse_int_lists(std::string_view json);

}  // namespace traceap
